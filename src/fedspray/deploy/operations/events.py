"""Everything that happened, as JSON lines with stable names, for a SIEM: from a project or a site's kit.

The files of a federation are read, nothing is asked of its processes, so this works while they run and after they died.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fedspray import files, stored
from fedspray.deploy import kinds, ledger
from fedspray.deploy.site.status import site_name
from fedspray.errors import MissingDataError, printable
from fedspray.files import Json

POLL = 1.0
WARNINGS = (
    *("refused", "run refused", "refused by the server", "notice", "connection lost", "job process ended"),
    *("job ended", "left out", "left", "removed", "forgotten", "restarted", "server down", "restored"),
    "did not say whether it takes part",
)
"""Events that somebody may want to look at; all others are "info"."""


def sources(folder: Path) -> list[tuple[Path, Json]]:
    """The files that hold events, and what is the same for all of their lines."""
    if (folder / "local" / "site.json").is_file():
        name = site_name(folder)
        return [(folder / ledger.LEDGER, {"source": "site", "name": name, "run": None})]
    if not (folder / "project.json").is_file():
        raise MissingDataError(f"{folder} is neither a project nor a site's start-up kit")
    name = printable(stored.read(folder / "agreement.json", kinds.AgreementFile)["federation"])
    runs = sorted(file.parent for file in (folder / "runs").glob("*/settings.json"))
    return [
        (folder / "kits" / "server" / ledger.EVENTS, {"source": "server", "name": name, "run": None}),
        *((run / ledger.EVENTS, {"source": "run", "name": name, "run": run.name}) for run in runs),
    ]


def read(folder: Path) -> list[Json]:
    """All events, from old to new."""
    found = [_event(line, about) for file, about in sources(folder) for line in files.read_lines(file)]
    return sorted(found, key=lambda event: str(event["time"]))


def stream(
    folder: Path, *, follow: bool, seen: Iterable[str] = (), wait: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Each event once, as one line of JSON; with ``follow`` it waits for more, without an end."""
    told, sizes = set(seen), dict[Path, int]()
    while True:
        now = {file: file.stat().st_size for file, _ in sources(folder) if file.exists()}
        if now != sizes:
            sizes = now
            for line in map(json.dumps, read(folder)):
                if line not in told:
                    told.add(line)
                    yield line
        if not follow:
            return
        wait(POLL)


def _event(line: Json, about: Json) -> Json:
    if "event" in line:
        event = {key: printable(str(line.get(key, ""))) for key in ("event", "sender", "what")}
        own: Json = {"run": about["run"], "bytes": None}
    else:  # an answer that left a site
        own = {"run": printable(str(line.get("run"))), "bytes": line.get("bytes")}
        what = f"seed {line.get('seed')}, round {line.get('round')}: {', '.join(line.get('fields', {}))}"
        event = {"event": "answer", "sender": about["name"], "what": printable(what)}
    severity = "warning" if event["event"] in WARNINGS else "info"
    return {"time": line.get("time"), **about, **own, **event, "severity": severity}
