"""For whom the driver waits, and what it says of a job that ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from fedspray.deploy import ledger
from fedspray.deploy.operations.driver import RETURNING, time_to_come, why_ended

JOB = {"id": "12", "time": 1000.0}


def why(server: Path, progress: dict[str, Any], *, started: float = 0.0) -> str:
    session: Any = SimpleNamespace(started=lambda: started, status=lambda job: "FINISHED:ODD")
    return why_ended(JOB, progress, server, session)


@pytest.mark.parametrize(
    ("jobs", "started", "grace", "seconds"),
    [
        ([], 1030.0, 4.0, 4.0),  # a new run
        ([JOB], 900.0, 4.0, 4.0),  # the job ended, the server did not
        ([JOB], 1030.0, 4.0, RETURNING),  # sites must find the server again
        ([JOB], 1030.0, 2 * RETURNING, 2 * RETURNING),
    ],
)
def test_sites_have_longer_to_come_after_a_restart(
    jobs: list[dict[str, Any]], started: float, grace: float, seconds: float
) -> None:
    session: Any = SimpleNamespace(started=lambda: started)
    assert time_to_come(jobs, session, grace) == seconds


def test_the_best_known_reason(tmp_path: Path) -> None:
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_server.json").write_text("{}")
    assert why(tmp_path, {}) == "NVFlare says FINISHED:ODD"
    assert why(tmp_path, {"job": "11", "state": "failed", "reason": "of another job"}) == "NVFlare says FINISHED:ODD"
    running = {"job": "12", "state": "running", "time": 1015.0}
    assert why(tmp_path, running) == "the server's job process ended after 1970-01-01T00:16:55+00:00"
    assert why(tmp_path, running, started=1030.0) == "the server was restarted at 1970-01-01T00:17:10+00:00"
    ledger.write_event(tmp_path, ledger.JOB_ENDED, "north", "job 11: exit code 3")
    ledger.write_event(tmp_path, ledger.JOB_ENDED, "south", "job 12: exit code 101")
    ledger.write_event(tmp_path, ledger.JOB_ENDED, "north", "job 12: exit code 9")
    moment = ledger.read_events(tmp_path)[1]["time"]
    assert why(tmp_path, running) == f"the job process of south ended (exit code 101) at {moment}"
    assert why(tmp_path, {"job": "12", "state": "failed", "reason": "no disk"}) == "no disk"
