"""Real processes: a run waits for each site's answer, names who is missing, and goes on without who refuses."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from federations import GuardedFederation, fedspray, until

from fedspray.deploy import ledger
from fedspray.deploy.network import sockets
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.local import RUN
from fedspray.deploy.operations.runs import ledgers, project_status
from fedspray.deploy.site import policy

pytestmark = pytest.mark.slow


def say(*arguments: str | Path) -> str:
    process = fedspray(*arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out + err


def test_a_run_waits_for_a_yes_and_goes_on_without_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    federation = GuardedFederation(tmp_path / "project", grace=5.0)
    kits = [federation.kit(name) for name in ("server", "bank_00", "bank_01", "bank_02")]
    for name in ("bank_00", "bank_02"):
        (federation.kit(name) / "state" / policy.FILE).unlink()
    folder, done = federation.project.run_folder(RUN), list[dict[str, Any]]()
    try:
        for kit in kits:
            processes.start(kit)
        driver = threading.Thread(target=lambda: done.append(federation.drive()), daemon=True)
        driver.start()

        def waiting() -> list[str]:
            return [e["sender"] for e in ledger.read_events(folder) if e["event"] == "waiting for consent"]

        until(lambda: "bank_00, bank_02" in waiting(), 120, "nobody was waited for")
        row = project_status(federation.project)["runs"][RUN]
        assert (row["state"], row["round"], row["waiting_for"]) == ("asking", 0, ["bank_00", "bank_02"])
        assert f"{RUN} waits for your answer" in say("site", "status", kits[1])
        assert "waits for your answer (the policy asks about every run)" in say("site", "runs", kits[1])
        say("site", "refuse", kits[3], RUN, "--reason", "not before the audit")
        until(lambda: "bank_00" in waiting(), 60, "the refusal was not noticed")
        say("site", "accept", kits[1], RUN)
        driver.join(120)
        assert done
        assert set(done[0]["models"]) == {"bank_00", "bank_01"}
        told = [
            (event["sender"], event["what"]) for event in ledger.read_events(folder) if event["event"] == "run refused"
        ]
        assert told == [("bank_02", "Refused: bank_02 refused this run: not before the audit")]
        for site, acknowledged in ledgers(federation.project).items():
            assert ledger.verify(federation.kit(site), [acknowledged["head"]])["lines"] > 3
        assert len(list((tmp_path / "tmp").glob(f"{sockets.PREFIX}*"))) == 4
    finally:
        processes.stop(kits, seconds=1.0)
    assert not list((tmp_path / "tmp").iterdir())
