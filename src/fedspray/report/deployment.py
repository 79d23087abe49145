"""A deployed run as it goes on, for the coordinator's terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedspray.deploy.agreement import Agreement
from fedspray.deploy.operations.driver import last_record
from fedspray.deploy.server.progress import read_exchanges, read_progress
from fedspray.display import percent


def progress_table(folder: Path, agreement: Agreement) -> RenderableType:
    """The round, the sites' last answers, and the last validation figures."""
    progress = read_progress(folder)
    if not progress:
        return Text("waiting for the job to start …", style="dim")
    seed = progress.get("seed", agreement.settings.seeds[0])
    rounds = agreement.resolved.rounds.rounds
    record, exchanges = last_record(folder, seed), read_exchanges(folder, seed)
    last = exchanges[-1]["sites"] if exchanges else {}
    sites = agreement.roster.clients
    sent = [sum(each["sites"].get(name, {}).get("bytes_up", 0) for each in exchanges) for name in sites]
    table = Table("site", "last answer", "seconds", "bytes sent", box=None, pad_edge=False)
    for name, size in zip(sites, sent, strict=True):
        answer = last.get(name, {})
        state = "waited for" if name in (progress.get("waiting_for") or []) else answer.get("failed") or "in time"
        seconds = f"{answer['seconds']:.2f}" if "seconds" in answer else "–"
        table.add_row(name, Text(state if answer else "–"), seconds, f"{size:,}")  # Text: a reason is no markup
    figures = ""
    if record is not None:
        overall, minority = (percent(record["val"][name]) for name in ("overall", "minority"))
        figures = f"   validation: overall {overall}, minority {minority}"
    return Group(Text(f"seed {seed}, round {min(progress['round'], rounds)} of {rounds}{figures}"), table)
