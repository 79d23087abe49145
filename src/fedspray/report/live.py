"""What is going on in a folder now, as plain JSON: a run, the cells of a study, a project, or a site's kit.

Everything is read from the files that a run writes anyway, so watching costs the run nothing. A site's kit shows what
the site itself knows: its connection and its ledger.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from fedspray import stored
from fedspray.deploy import kinds, ledger
from fedspray.errors import InputError
from fedspray.files import Json
from fedspray.runs import store

EVENTS = 60
"""The last so many are shown."""
RECENT = 20
"""Rounds by which the time left is estimated."""


def kind_of(folder: Path) -> str:
    """What a folder is: "run", "study", "project" or "site"."""
    signs = {"project": "project.json", "site": "local/site.json", "run": "settings.json"}
    for kind, sign in signs.items():
        if (folder / sign).is_file():
            return kind
    if (folder / "runs").is_dir():
        return "study"
    raise InputError(
        f"{folder} is not a run folder, a folder of cells, a project or a site's kit, but one of these can be watched"
    )


def state_of(folder: Path) -> Json:
    """All that the page shows."""
    known = {"run": run_state, "study": study_state, "project": project_state, "site": site_state}
    return {"kind": (kind := kind_of(folder)), "now": time.time(), **known[kind](folder)}


# ---- runs and projects ----------------------------------------------------------------------------


def run_state(folder: Path) -> Json:
    """A run in this process or between organisations, of which the server's folder is known from where the run is."""
    content = stored.read(folder / "settings.json", stored.Settings)
    seeds = content["run"]["seeds"]
    records = {seed: _records(folder, seed) for seed in seeds}
    now = next((seed for seed in reversed(seeds) if records[seed]), seeds[0])
    exchanges = {seed: stored.read_lines(folder / f"seed-{seed}" / "exchanges.jsonl", kinds.Exchange) for seed in seeds}
    names, deployed = _names(folder), (folder / "agreement.json").is_file()
    progress = _progress(folder)
    done = sum(len(rows) for rows in records.values())
    finished = (folder / "result.json").exists()
    rounds = len(records[now]) if finished else content["settings"]["rounds"]
    sites = _sites(names, records[now], exchanges[now], progress, folder) if deployed else _clients(names, records[now])
    last = records[now][-1] if records[now] else None
    return {
        "title": f"{content['algorithm']} on {content['dataset']}, {content['backbone']}",
        "name": folder.name,
        "state": "done" if finished else progress.get("state", "running"),
        "reason": progress.get("reason"),
        "done": finished,
        "waiting_for": [] if finished else progress.get("waiting_for") or [],
        "waiting_since": progress.get("waiting_since"),
        "seed": now,
        "seeds": seeds,
        "round": min(max(progress.get("round", 0), len(records[now])), rounds),
        "rounds": rounds,
        "seconds_left": None if finished else _seconds_left(records[now], exchanges[now], rounds * len(seeds) - done),
        "curve": _curve(records[now]),
        "accuracy": None if last is None else {name: last["val"][name] for name in ("overall", "minority")},
        "result": _result(folder) if finished else None,
        "clients": sites,
        "bytes": _bytes([row for rows in records.values() for row in rows]),
        **({} if last is None else {"left": _left(folder), "left_bytes": _bytes([last])}),
        "events": _shown(ledger.read_events(folder)),
    }


def last_run(project: Path) -> Path | None:
    """The folder of a project's run that was begun last."""
    runs = [(file.stat().st_mtime, file.parent) for file in (project / "runs").glob("*/settings.json")]
    return max(runs)[1] if runs else None


def project_state(folder: Path) -> Json:
    """A project: its last run, with the server's own events and the certificates' days."""
    from fedspray.deploy.locks import PID_FILE, holder

    last = last_run(folder)
    server = folder / "kits" / "server"
    pid = holder(server / PID_FILE)
    events = ledger.read_events(server)
    shown: Json = {"title": folder.name, "name": "no run yet", "state": "waiting", "done": False, "clients": []}
    if last is not None:
        shown = run_state(last)
        events = events + ledger.read_events(last)
    else:
        names = stored.read(folder / "agreement.json", kinds.AgreementFile)["sites"]
        shown["clients"] = _sites(names, [], [], {}, folder / "runs" / "none")
    if pid is None:  # nobody wrote down that the sites were lost, or that nobody waits any more
        here, shown["waiting_for"] = ("connected", "waited for"), []
        shown["clients"] = [
            row | ({"state": "not connected", "since": None} if row["state"] in here else {})
            for row in shown["clients"]
        ]
    return {
        **shown,
        "done": False,  # a project goes on after its run
        "server": "running" if pid is not None else "stopped",
        "healthy": pid is not None,
        "certificates": _days_left([server, folder / "kits" / "coordinator"]),
        "events": _shown(sorted(events, key=lambda event: event["time"])),
    }


def _records(folder: Path, seed: int) -> list[Json]:
    return stored.read_lines(folder / f"seed-{seed}" / store.RECORDS, stored.Record)


def _result(folder: Path) -> Json:
    """On test nodes, on average over seeds: what was found out."""
    from fedspray.runs.result import spread

    seeds = stored.read(folder / "result.json", stored.Result)["seeds"]
    return {name: spread([row[name] for row in seeds])["mean"] for name in ("overall", "minority")}


def _names(folder: Path) -> list[str]:
    if (folder / "agreement.json").is_file():
        return list(stored.read(folder / "agreement.json", kinds.AgreementFile)["sites"])
    if (folder / store.FEDERATION).is_file():
        return [row["name"] for row in stored.read(folder / store.FEDERATION, stored.Description)["clients"]]
    return []


def _progress(folder: Path) -> Json:
    """Of a run between organisations; others write none."""
    try:
        return stored.read(folder / "progress.json", kinds.Progress)
    except InputError:
        return {}


def _clients(names: Sequence[str], records: Sequence[Json]) -> list[Json]:
    last = records[-1] if records else {}
    return [
        {
            "name": name,
            "state": "left out" if name in last.get("failed", {}) else "trains",
            "reason": last.get("failed", {}).get(name),
            "bytes_up": sum(_sent(row, k) for row in records),
            "bytes_last": _sent(last, k),
            **_accuracies(last, k),
        }
        for k, name in enumerate(names)
    ]


def _sent(record: Mapping[str, Any], client_id: int) -> int:
    sizes = record.get("bytes_up_by_client", [])
    return int(sizes[client_id]) if client_id < len(sizes) else 0


def _sites(
    names: Sequence[str], records: Sequence[Json], exchanges: Sequence[Json], progress: Json, run: Path
) -> list[Json]:
    server = run.parents[1] / "kits" / "server"
    here, last = ledger.presence(server), records[-1] if records else {}
    gone, in_round = _removed(server), Json()
    for each in exchanges:  # after the last round comes the report; of a round that was repeated, the last counts
        in_round = each["sites"] if each["round"] == last.get("round") else in_round
    rows = []
    for k, name in enumerate(names):
        answers = [(each["time"], each["sites"][name]) for each in exchanges if name in each["sites"]]
        good = [(moment, row) for moment, row in answers if row["failed"] is None]
        connected, since = here.get(name, (False, None))
        failed = answers[-1][1]["failed"] if answers else None
        state = "connected" if connected else "away" if name in here else "never seen"
        if connected and name in (progress.get("waiting_for") or []):
            state = "waited for"
        elif connected and failed is not None:
            state = "left out"
        rows.append(
            {
                "name": name,
                "state": "removed" if name in gone else state,
                "since": since,
                "reason": failed,
                "last_answer": good[-1][0] if good else None,
                "seconds": good[-1][1].get("seconds") if good else None,
                "bytes_up": sum(row.get("bytes_up", 0) for _, row in answers),
                "bytes_last": in_round.get(name, {}).get("bytes_up", 0),
                **_accuracies(last, k),
            }
        )
    return rows


def _removed(server: Path) -> set[str]:
    file = server / "local" / "members.json"
    members = stored.read(file, kinds.Members) if file.is_file() else {}
    return {name for name, entry in members.items() if entry.get("left")}


def _accuracies(record: Mapping[str, Any], client_id: int) -> Json:
    row = record.get("clients", {}).get(str(client_id), {}).get("val", {})
    return {name: row.get(name) for name in ("overall", "minority")}


def _curve(records: Sequence[Json]) -> Json:
    step = -(-len(records) // 400) or 1
    kept = [row for i, row in enumerate(records) if i % step == 0 or i == len(records) - 1]
    return {
        "rounds": [row["round"] for row in kept],
        **{name: [row["val"][name] for row in kept] for name in ("overall", "minority")},
    }


def _seconds_left(records: Sequence[Json], exchanges: Sequence[Json], rounds: int) -> float | None:
    """By the last rounds: between organisations by the clock, since a round also waits."""
    moments = [each["time"] for each in exchanges[-RECENT:]]
    if len(moments) > 1:
        return rounds * float(moments[-1] - moments[0]) / (len(moments) - 1)
    return rounds * fmean(row["seconds"] for row in records[-RECENT:]) if records else None


def _bytes(records: Sequence[Json]) -> Json:
    return {way: sum(row.get(f"bytes_{way}", 0) for row in records) for way in ("up", "down", "evaluation")}


def _left(folder: Path) -> list[Json]:
    """What clients send in each round, field by field; nothing if this version cannot tell."""
    return _declared(folder, (folder / "settings.json").stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _declared(folder: Path, written: int) -> list[Json]:
    from fedspray.deploy.agreement import Agreement
    from fedspray.runs.leaves import END, of_settings

    try:
        if (folder / "agreement.json").is_file():
            entries = Agreement.load(folder).entries()
        else:
            sizes = stored.read(folder / store.FEDERATION, stored.Description)
            content = stored.read(folder / "settings.json", stored.Settings)
            entries = [entry.to_json() for entry in of_settings(content, sizes)]
    except InputError:
        return []
    shown = ("server_gets", "reveals", "protection")
    return [{"what": row["field"], **{name: row[name] for name in shown}} for row in entries if row["when"] != END]


# ---- studies --------------------------------------------------------------------------------------


def study_state(folder: Path) -> Json:
    """The cells of a study: those that are finished, and how far the others are."""
    done = [_cell(file) for file in sorted(folder.glob("*.json"))]
    running = [_unfinished(run) for run in sorted((folder / "runs").iterdir()) if (run / "settings.json").is_file()]
    return {
        "title": f"{len(done)} cells finished, {len(running)} under way",
        "name": folder.name,
        "state": "running" if running else "idle",
        "done": False,
        "clients": [],
        "cells": [*running, *sorted(done, key=lambda cell: -cell["time"])],
        "events": [],
    }


def _cell(file: Path) -> Json:
    metrics = stored.read(file, stored.Cell)["metrics"]
    return _row(file.stem, "done", metrics["rounds"], metrics["rounds"], file, metrics["val"])


def _unfinished(run: Path) -> Json:
    content = stored.read(run / "settings.json", stored.Settings)
    records = _records(run, content["run"]["seeds"][0])
    val = records[-1]["val"] if records else {}
    return _row(run.name, "running", len(records), content["settings"]["rounds"], run, val)


def _row(name: str, state: str, done: int, rounds: int, place: Path, val: Json) -> Json:
    shown = {"name": name, "state": state, "round": done, "rounds": rounds, "time": place.stat().st_mtime}
    return {**shown, **{name: val.get(name) for name in ("overall", "minority")}}


# ---- a site ---------------------------------------------------------------------------------------


def site_state(kit: Path) -> Json:
    """A site: its connection, and what left the building."""
    from fedspray.deploy.site import consent
    from fedspray.deploy.site.status import look, site_name

    found, answers = look(kit, ask=False), ledger.read_answers(kit)
    last = answers[-1] if answers else {}
    known = ledger.what_left(kit).get(last.get("run", ""), {}).get("fields", {})
    kept = [line for line in answers if line["run"] == last.get("run") and line.get("round")]
    name = site_name(kit)
    row = {
        "name": name,
        "state": found["state"],
        "since": found["since"],
        "reason": found["reason"],
        "last_answer": _seconds(last.get("time")),
        "bytes_up": sum(line.get("bytes", 0) for line in answers),
    }
    return {
        "title": f"site {name}, server {found['server']}",
        "name": last.get("run", "no run yet"),
        "state": found["state"],
        "reason": found["reason"],
        "healthy": found["state"] == "connected",
        "asking": [each["offer"]["run"] for each in consent.answers(kit) if each["answer"] is None],
        "done": False,
        "round": last.get("round"),
        "clients": [row],
        "bytes": {"up": row["bytes_up"]},
        "sent": {"rounds": [line["round"] for line in kept], "bytes": [line.get("bytes", 0) for line in kept]},
        "left": [
            {"what": field, **known.get(field, {}), "bytes": size} for field, size in last.get("fields", {}).items()
        ],
        "certificates": _days_left([kit]),
        "events": _shown(ledger.read_events(kit)),
    }


def _days_left(kits: Sequence[Path]) -> dict[str, int]:
    from fedspray.deploy.provisioning.certificates import CERTIFICATE, read_certificate

    ends = {}
    for kit in kits:
        own = kit / "startup" / "server.crt"
        end = read_certificate(own if own.is_file() else kit / "startup" / CERTIFICATE).not_valid_after_utc
        ends[kit.name] = (end - datetime.now(UTC)).days
    return ends


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def _shown(events: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return list(events[-EVENTS:])[::-1]
