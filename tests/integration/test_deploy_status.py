"""A site's status is true, and its kit may be read-only where nothing is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from federations import FEDSPRAY

from fedspray import build_federation
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.local import LocalFederation
from fedspray.deploy.provisioning.federation import set_disabled
from fedspray.deploy.provisioning.kits import make_kits
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.site.status import FILE
from fedspray.experiment import RunSettings

pytestmark = pytest.mark.slow

SETTINGS = RunSettings(values={"rounds": 1, "min_clients": 1})
LIKE_OTHERS = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []
"""Without these rights, modes of files hold for root too."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A federation that does not run, and `foreign`, of another authority at the same address."""
    folder = tmp_path_factory.mktemp("status")
    made = LocalFederation(folder / "own", build_federation("banks", clients=2, nodes=200), SETTINGS)
    (folder / "foreign").mkdir()
    make_kits(folder / "foreign", made.project.agreement(), made.project.address, keys_for=())
    yield folder
    processes.stop([folder / "own/kits/server", folder / "own/kits/bank_00", folder / "foreign/kits/server"])


def status(kit: Path) -> tuple[str, int, str | None]:
    """What is said of a site, the exit code, and why."""
    done = subprocess.run([FEDSPRAY, "site", "status", kit, "--json"], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    return found["state"], done.returncode, found["reason"]


def becomes(kit: Path, state: str, seconds: float = 60) -> tuple[int, str | None]:
    deadline = time.monotonic() + seconds
    while (found := status(kit))[0] != state:
        assert time.monotonic() < deadline, f"it did not become {state}: {found}"
        time.sleep(0.2)
    return found[1:]


def start(kit: Path) -> subprocess.CompletedProcess[str]:
    command = [*LIKE_OTHERS, str(FEDSPRAY), "site", "start", str(kit)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_the_states_of_a_site(place: Path) -> None:
    site, server, foreign = place / "own/kits/bank_00", place / "own/kits/server", place / "foreign/kits/server"
    assert status(site) == ("stopped", 3, None)
    assert start(site).returncode == 0
    code, reason = becomes(site, "unreachable")
    assert code == 4
    assert "does not answer" in str(reason)
    processes.start(server)
    assert becomes(site, "connected") == (0, None)
    processes.stop([server], seconds=1.0)
    assert status(site)[:2] == ("unreachable", 4), "at once, without waiting for a heartbeat"
    processes.start(foreign)
    code, reason = becomes(site, "refused")
    assert code == 4
    assert "not the server" in str(reason)
    processes.stop([foreign, site], seconds=1.0)
    assert status(site) == ("stopped", 3, None)


@pytest.mark.nightly
def test_a_copy_and_a_site_that_is_disabled(place: Path) -> None:
    project = Project.open(place / "own")
    site, copy = project.site("bank_00"), place / "copy"
    shutil.copytree(site, copy, ignore=shutil.ignore_patterns("*.pid", FILE))
    try:
        processes.start(project.server)
        assert start(site).returncode == 0
        assert becomes(site, "connected") == (0, None)
        assert start(copy).returncode == 0
        code, reason = becomes(copy, "refused")
        assert code == 4
        assert "is connected with this site's certificate" in str(reason)
        assert status(site) == ("connected", 0, None)
        processes.stop([copy], seconds=1.0)
        assert set_disabled(project, "bank_00", True)
        code, reason = becomes(site, "refused")
        assert code == 4
        assert "coordinator disabled" in str(reason)
    finally:
        set_disabled(project, "bank_00", False)
        processes.stop([project.server, site, copy], seconds=1.0)


@pytest.mark.nightly
def test_a_kit_that_is_read_only_where_nothing_is_kept(place: Path, tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    shutil.copytree(place / "own/kits/bank_00", kit, ignore=shutil.ignore_patterns("*.pid"))
    for folder in (kit / "startup", kit / "local"):
        for file in folder.iterdir():
            file.chmod(0o400)
        folder.chmod(0o500)
    try:
        started = start(kit)
        assert started.returncode == 0, started.stderr
        assert processes.running(kit) is not None
        processes.stop([kit], seconds=1.0)
        for kept in (kit / "state", kit):
            kept.mkdir(exist_ok=True)
            kept.chmod(0o500)
            refused = start(kit)
            assert refused.returncode == 2
            assert refused.stderr.startswith(f"error: {kept} ")
            kept.chmod(0o700)
        (kit / "startup" / "client.key").chmod(0o440)
        refused = start(kit)
        assert refused.returncode == 2
        assert f"chmod 600 {kit / 'startup' / 'client.key'}" in " ".join(refused.stderr.split())
        assert (kit / "startup" / "client.key").stat().st_mode & 0o777 == 0o440
    finally:
        processes.stop([kit], seconds=1.0)
        for folder in (kit, kit / "startup", kit / "local"):
            folder.chmod(0o700)
