"""A federation whose sites reach the server through a real proxy process, and not otherwise."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from federations import GuardedFederation

from fedspray.deploy.operations import processes
from fedspray.deploy.site.kit import Site
from fedspray.deploy.site.status import look

pytestmark = pytest.mark.slow

PROXY = Path(__file__).parents[1] / "deploy" / "connect_proxy.py"
SITES = ("bank_00", "bank_01", "bank_02")


def test_all_sites_behind_a_proxy(tmp_path: Path) -> None:
    federation = GuardedFederation(tmp_path / "project", grace=5.0)
    kits = [federation.kit(name) for name in ("server", *SITES)]
    with subprocess.Popen([sys.executable, str(PROXY)], stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        address = f"http://127.0.0.1:{int(proxy.stdout.readline())}"
        try:
            for kit in kits[1:]:
                replace(Site.open(kit), proxy=address).save()
            for kit in kits:
                processes.start(kit)
            assert federation.drive()["models"] == federation.undisturbed()
            assert look(kits[1])["state"] == "connected"
            proxy.kill()
            proxy.wait()
            assert look(kits[1])["state"] == "unreachable"
            asked = proxy.stdout.read().splitlines()
        finally:
            proxy.kill()
            processes.stop(kits, seconds=1.0)
    assert set(asked) == {f"CONNECT localhost:{federation.project.address.port}"}
    assert len(asked) > 2 * len(SITES)  # each site's main process and its job, and the question above
