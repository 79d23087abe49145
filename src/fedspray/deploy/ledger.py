"""What a site and the server write down, one JSON object on each line.

::

    KIT/ledger.jsonl     at a site: every answer that left, and every event
    KIT/events.jsonl     at the server: every event, which is something that it refused or was told

Nothing here imports torch, so that `fedspray site status` answers at once.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedspray import files
from fedspray.errors import printable
from fedspray.files import Json

LEDGER, EVENTS = "ledger.jsonl", "events.jsonl"


def is_server(kit: Path) -> bool:
    """Whether a kit is the server's."""
    return (kit / "startup" / "fed_server.json").is_file()


def write_event(kit: Path, event: str, sender: str, what: str) -> None:
    """Adds an event to a kit's ledger or list of events."""
    line = {"time": now(), "event": event, "sender": printable(sender), "what": printable(what)}
    files.append_line(_file(kit), json.dumps(line))


def write_answer(kit: Path, line: str) -> None:
    """Adds an answer that is about to leave to a site's ledger."""
    files.append_line(kit / LEDGER, line)


def read_events(kit: Path) -> list[dict[str, str]]:
    """What the processes of a kit refused or were told."""
    known = ("time", "event", "sender", "what")
    lines = files.read_lines(_file(kit))
    return [{key: printable(str(line.get(key, ""))) for key in known} for line in lines if "event" in line]


def read_answers(kit: Path) -> list[dict[str, Any]]:
    """Every answer in a site's ledger; a line that a crash cut off is left out."""
    lines = files.read_lines(kit / LEDGER)
    return [{**line, "run": printable(str(line.get("run")))} for line in lines if "event" not in line]


def last_answers(kit: Path) -> Json:
    """The last answer of each run, by the run's name."""
    runs: Json = {}
    for line in read_answers(kit):
        if line.get("round") is not None:  # else it is the answer to a request that could not be read
            runs[line["run"]] = {key: line.get(key) for key in ("seed", "round", "time")}
    return runs


def now() -> str:
    """The time of a line."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _file(kit: Path) -> Path:
    return kit / (EVENTS if is_server(kit) else LEDGER)
