"""Processes of a federation are killed at random moments, and the run ends as promised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from federations import fedspray, kill_all, kill_job, result, stable, wait_for_round

from fedspray.deploy.ledger import read_events

pytestmark = pytest.mark.nightly

ROUNDS = 24
RUN = ["--dataset", "banks", "--clients", "3", "--nodes", "600", "--rounds", str(ROUNDS), "--json"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The run in one process, left alone."""
    return stable(result(fedspray("run", *RUN, "--out", tmp_path_factory.mktemp("alone") / "run")))


@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("victim", ["site's job", "server's job", "site", "server"])
def test_same_bits_after_kill_9(tmp_path: Path, expected: dict[str, object], victim: str, attempt: int) -> None:
    moment = random.Random(f"{victim} {attempt}")
    project = tmp_path / "federation"
    process = fedspray("deploy", "local", *RUN, "--out", project)
    try:
        wait_for_round(project, moment.randint(1, ROUNDS - 4), process)
        kit = "server" if victim.startswith("server") else f"bank_0{moment.randrange(3)}"
        kill = kill_job if victim.endswith("job") else kill_all
        kill(project, kit)
        summary = result(process)
    finally:
        process.kill()
    assert stable(summary) == expected
    assert summary["engine"]["jobs"] >= 2
    told = read_events(project / "runs" / "run")
    ends = [event["what"] for event in told if event["event"] == "job ended"]
    reason = {
        "site's job": f"the job process of {kit} ended (exit code",
        "server's job": "the server's job process ended after",
        "site": f"{kit} is back: starting again from the last round",
        "server": "the server was restarted at",
    }
    assert any(reason[victim] in what for what in ends), told
    if not victim.endswith("job"):
        assert [event["sender"] for event in told if event["event"] == "restarted"] == [kit]
