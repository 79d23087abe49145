"""Units for systemd, as systemd itself judges them; which runs go on after a reboot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from fedspray.deploy.locks import Lock
from fedspray.deploy.operations.runs import resumable_runs
from fedspray.deploy.operations.service import project_units, site_units
from fedspray.deploy.provisioning.kits import Address
from fedspray.deploy.provisioning.project import Project

ANALYZE = shutil.which("systemd-analyze")


def units(folder: Path) -> dict[str, str]:
    for name in ("a kit", "fraud", "50%"):
        (folder / name).mkdir()
    return site_units(folder / "a kit", "north", folder / "50%", "root") | project_units(folder / "fraud", "root")


def test_what_the_units_run(tmp_path: Path) -> None:
    made = units(tmp_path)
    assert set(made) == {
        "fedspray-site-north.service",
        "fedspray-server-fraud.service",
        "fedspray-runs-fraud.service",
    }
    site = made["fedspray-site-north.service"]
    assert f'fedspray site start "{tmp_path}/a kit" --foreground\n' in site
    assert f'ReadWritePaths="{tmp_path}/a kit"\n' in site
    assert f" {tmp_path}/50%%\n" in site
    assert f"fedspray deploy resume {tmp_path}/fraud\n" in made["fedspray-runs-fraud.service"]
    assert "After=network-online.target fedspray-server-fraud.service\n" in made["fedspray-runs-fraud.service"]


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on this machine (Debian: systemd)")
def test_systemd_takes_them_and_finds_them_safe(tmp_path: Path) -> None:
    made = units(tmp_path)
    for name, text in made.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in made]
    verified = subprocess.run([str(ANALYZE), "verify", *files], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    for file in files:
        judged = [str(ANALYZE), "security", "--offline=true", "--no-pager", "--threshold=30", file]
        subprocess.run(judged, capture_output=True, check=True)


def test_which_runs_are_resumed(tmp_path: Path) -> None:
    project = Project(tmp_path, Address("localhost", 1))

    def run(name: str, progress: dict[str, Any] | None = None, **files: str) -> Path:
        folder = project.run_folder(name)
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text("{}")
        os.utime(folder / "settings.json", (1000, 1000))
        if progress:
            (folder / "progress.json").write_text(json.dumps(progress))
        return folder

    run("waits")
    run("failed", {"state": "failed"})
    run("stopped", {"state": "stopped"})
    (run("done") / "result.json").write_text("{}")
    os.utime(run("new") / "settings.json")
    lock = Lock(run("driven") / "driver.lock")
    lock.acquire(1)
    try:
        assert resumable_runs(project) == ["failed", "waits"]
    finally:
        lock.release()
