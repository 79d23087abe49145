"""What a site and the server write down, one JSON object on each line.

::

    KIT/ledger.jsonl     at a site: every answer that left, and every event, as a chain (`fedspray.deploy.chain`)
    KIT/state/ledger.json   the sha256 that ends its last line; the coordinator has one of each answer (`ledger` in
                         RUN/seed-0/exchanges.jsonl), so that a site cannot cut its ledger unseen
    KIT/events.jsonl     at the server: every event: what it refused, who came and went, which job ended where
    RUN/events.jsonl     at the coordinator: every event of one run

Nothing here imports torch, so that `fedspray site status` answers at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedspray import files, stored
from fedspray.deploy import chain, kinds
from fedspray.errors import DiskFull, printable
from fedspray.files import Json

LEDGER, EVENTS, HEAD = "ledger.jsonl", "events.jsonl", "ledger.json"
BY_LINK = "by its link"
STARTED, CONNECTED, LOST, JOB_ENDED = "started", "connected", "connection lost", "job process ended"
"""Events that are looked for by their name."""


def is_server(kit: Path) -> bool:
    """Whether a kit is the server's."""
    return (kit / "startup" / "fed_server.json").is_file()


def write_event(folder: Path, event: str, sender: str, what: str) -> None:
    """Adds an event to a kit's ledger, or to the events of the server or a run; a full disk stops nothing."""
    line = {"time": now(), "event": event, "sender": printable(sender), "what": printable(what)}
    with contextlib.suppress(OSError, DiskFull):
        if (file := _file(folder)).name == LEDGER:
            _enter(folder, line)
        else:
            files.append_line(file, json.dumps(line))


def write_statistics(kit: Path, site: str, name: str, text: str) -> None:
    """Adds statistics of a site's tables that may leave, in full, to its ledger."""
    what = f"statistics of tables, {name}, {len(text.encode())} bytes"
    line = {"time": now(), "event": "statistics", "sender": printable(site), "what": printable(what)}
    _enter(kit, {**line, "statistics": json.loads(text)})


def write_answer(kit: Path, line: Json) -> str:
    """Adds an answer that is about to leave to a site's ledger; returns the head of the ledger."""
    return _enter(kit, line)


def verify(kit: Path, heads: Collection[str] = ()) -> Json:
    """Checks a site's ledger line by line, and that the head which was kept apart and ``heads`` are in it."""
    kept = stored.read(kit / "state" / HEAD, kinds.Head).values() if (kit / "state" / HEAD).exists() else ()
    return chain.verify(kit / LEDGER, [*kept, *heads])


def read_events(folder: Path) -> list[dict[str, str]]:
    """The events of a kit or a run, from old to new."""
    known = ("time", "event", "sender", "what")
    lines = stored.read_lines(_file(folder), kinds.Event)
    return [{key: printable(line.get(key, "")) for key in known} for line in lines]


def read_answers(kit: Path) -> list[dict[str, Any]]:
    """Every answer in a site's ledger; a line that a crash cut off is left out."""
    lines = stored.read_lines(kit / LEDGER, kinds.Answer)
    return [{**line, "run": printable(line["run"])} for line in lines if "event" not in line]


def what_left(kit: Path) -> dict[str, Json]:
    """By run: how many answers and bytes, and of each field how often, how much, and what the ledger says of it."""
    runs: dict[str, Json] = {}
    for line in read_answers(kit):
        run = runs.setdefault(line["run"], {"answers": 0, "bytes": 0, "fields": {}, "leaves": []})
        run["answers"] += 1
        run["bytes"] += line.get("bytes", 0)
        run["leaves"] = line.get("leaves", run["leaves"])
        for field, size in line.get("fields", {}).items():
            entry = run["fields"].setdefault(field, {"times": 0, "bytes": 0})
            entry["times"] += 1
            entry["bytes"] += size
    for run in runs.values():
        entries = run.pop("leaves")
        for field, entry in run["fields"].items():
            said = _said_of(field, entries)
            entry |= {name: said.get(name, "") for name in ("server_gets", "reveals", "protection")}
    return runs


def _said_of(field: str, entries: Sequence[Json]) -> Json:
    """The entry of a field as it crosses (``uplink.gnn.conv1.weight#8``): the algorithm's own first, then a link's."""
    name = field.partition(".")[2] if field.startswith(("uplink.", "counts.")) else field
    found = [each for each in entries if fnmatchcase(name, each["field"])]
    return max(found, key=lambda each: (each["when"] != BY_LINK, len(each["field"])), default={})


def last_answers(kit: Path) -> Json:
    """The last answer of each run, by the run's name."""
    runs: Json = {}
    for line in read_answers(kit):
        if line.get("round") is not None:  # else it is the answer to a request that could not be read
            runs[line["run"]] = {key: line.get(key) for key in ("seed", "round", "time")}
    return runs


def presence(server: Path) -> dict[str, tuple[bool, str]]:
    """By site: whether it is connected, as the server's events tell, and since when."""
    found: dict[str, tuple[bool, str]] = {}
    for event in read_events(server):
        if event["event"] in (CONNECTED, LOST):
            found[event["sender"]] = (event["event"] == CONNECTED, event["time"])
        elif event["event"] == STARTED:  # a new server process knows nobody yet
            found = {site: (False, event["time"] if here else since) for site, (here, since) in found.items()}
    return found


def now() -> str:
    """The time of a line."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _enter(kit: Path, line: Json) -> str:
    head = chain.append(kit / LEDGER, line)
    with contextlib.suppress(OSError, DiskFull):  # the line is there; this only helps to find out if it goes missing
        (kit / "state").mkdir(exist_ok=True)
        files.write_json(kit / "state" / HEAD, {"head": head})
    return head


def _file(folder: Path) -> Path:
    is_run = (folder / "settings.json").is_file()
    return folder / (EVENTS if is_run or is_server(folder) else LEDGER)
