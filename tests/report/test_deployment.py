from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from toys import ragged_federation

from fedspray.deploy.agreement import Agreement
from fedspray.deploy.server.progress import ProgressRecorder
from fedspray.experiment import RunSettings
from fedspray.report.deployment import progress_table


def test_a_sites_reason_is_shown_as_it_is(tmp_path: Path) -> None:
    """Square brackets are markup to rich, and an end without a beginning is an error."""
    roster, shown = ragged_federation().roster, io.StringIO()
    (tmp_path / "seed-0").mkdir()
    recorder = ProgressRecorder(tmp_path, "job")
    recorder.show(seed=0, round=2)
    site = {"failed": "[/bold] [red]no[/red]", "bytes_down": 1}
    recorder.add_exchange(0, {"round": 1, "time": 0.0, "sites": dict.fromkeys(roster.clients, site)})
    table = progress_table(tmp_path, Agreement(roster, RunSettings(values={"rounds": 5})))
    Console(width=200, file=shown).print(table)
    assert "round 2 of 5" in shown.getvalue()
    assert shown.getvalue().count("[/bold] [red]no[/red]") == 3
