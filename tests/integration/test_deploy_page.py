"""The live page in a browser while a federation of seven real sites runs, loses one for good, and finishes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from browsers import chromium, needs_chromium, resize, wait
from federations import fedspray, kill_all, result, wait_for_round
from test_deploy_people import say_json

from fedspray import build_federation, files
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.local import RUN, LocalFederation
from fedspray.experiment import RunSettings

pytestmark = [pytest.mark.nightly, needs_chromium]

SITES, ROUNDS, KILLED = 7, 60, "bank_03"
TOKEN = "long-enough-for-a-token"
SUMMARY = "document.getElementById('summary').textContent"
PICTURES = os.environ.get("FEDSPRAY_PICTURES")
"""A folder for screenshots, to look at."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Seven banks, connected, with nobody to start them again."""
    settings = RunSettings(algorithm="fedspray2", values={"rounds": ROUNDS, "min_clients": 4, "local_epochs": 20})
    data = build_federation("banks", clients=SITES, nodes=7000)
    folder = tmp_path / "fraud"
    here = LocalFederation(folder, data, settings, grace=6.0)
    kits = [here.project.server, *(here.project.site(name) for name in data.roster.clients)]
    try:
        for kit in kits:
            processes.start(kit)
        yield folder
    finally:
        processes.stop(kits, seconds=1.0)


@pytest.fixture
def page(project: Path) -> Iterator[str]:
    watch = fedspray("watch", project, "--token", TOKEN)
    try:
        assert watch.stderr is not None
        yield next(word for line in watch.stderr for word in line.split() if word.startswith("http://"))
    finally:
        watch.kill()
        watch.communicate()


def keep(browser: Any, name: str) -> None:
    """Checks that nothing is wider than the page, at both widths; with `PICTURES`, keeps screenshots."""
    for width in (1280, 390):
        resize(browser, width)
        time.sleep(0.5)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, (name, width)
        if PICTURES:
            resize(browser, width, browser.execute_script("return document.body.scrollHeight"))
            time.sleep(0.5)
            Path(PICTURES).mkdir(exist_ok=True)
            browser.save_screenshot(str(Path(PICTURES) / f"{name}-{width}.png"))


def test_a_killed_site_is_named_within_ten_seconds(project: Path, page: str, tmp_path: Path) -> None:
    run = fedspray("deploy", "run", project, "--attach", "--run", RUN, "--json")
    with chromium(tmp_path / "profile") as browser:
        browser.get(page)
        wait_for_round(project, 5, run)
        wait(browser, "document.documentElement.dataset.ready", "charts")
        wait(browser, "document.querySelectorAll('#site-table tbody tr').length", SITES)
        wait(browser, "document.querySelectorAll('#curve .scatterlayer .trace').length", 2)
        assert "away" not in browser.execute_script(f"return {SUMMARY}")
        keep(browser, "running")
        kill_all(project, KILLED)
        wait(browser, f"{SUMMARY}.includes('{KILLED} is away')", seconds=10)
        keep(browser, "killed")
        summary = result(run)
        wait(browser, f"{SUMMARY}.startsWith('Done, {ROUNDS} rounds.')", seconds=10)
        keep(browser, "finished")
        browser.get(browser.execute_script("return document.querySelector('#report a').href"))
        wait(browser, "document.documentElement.dataset.ready", "charts")
        keep(browser, "report")
        assert KILLED in browser.page_source
        assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    missed = [row["failed"] for row in files.read_lines(project / "runs" / RUN / "seed-0" / "rounds.jsonl")]
    assert {name for failed in missed for name in failed or {}} == {KILLED}
    assert summary["seeds"][0]["rounds"] == ROUNDS
    state = json.loads(say_json("site", "status", project / "kits" / "bank_00"))
    assert state["benefit"][RUN][0].startswith("bank_00: ")
