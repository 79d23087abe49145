"""A link written by following docs/links.md works with every algorithm that sends means and sums, here and deployed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from federations import fedspray, result
from sites import Crash, Sites, stable
from toys import ragged_federation

from fedspray import algorithms, messages
from fedspray.cli.main import run_command
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import read_answers
from fedspray.deploy.messages.wire import Ask
from fedspray.engine.local import single_blocks
from fedspray.experiment import RunSettings
from fedspray.runs import run

PAGE = (Path(__file__).parents[2] / "docs" / "links.md").read_text()
(GUIDE,) = [block for block in re.findall(r"```python[^\n]*\n(.*?)```", PAGE, flags=re.S) if "class TopK" in block]

FOR_ALL = [
    name
    for name in algorithms.names()
    if (keys := messages.fates(algorithms.find(name).uplink).values())
    and not any(key.fate == "each" and key.kind is messages.WEIGHTS for key in keys)
]


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-process engine trains client by client, as sites do."""
    monkeypatch.setattr("fedspray.engine.local.choose_blocks", lambda federation, _, **more: single_blocks(federation))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The guide's file in a package of one's own, which every machine has installed."""
    write_guide(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "mypkg.topk:TopK share=0.3"


def write_guide(folder: Path) -> None:
    (folder / "mypkg").mkdir()
    (folder / "mypkg" / "__init__.py").touch()
    (folder / "mypkg" / "topk.py").write_text(GUIDE)


def settings_of(algorithm: str, *chain: str) -> RunSettings:
    return RunSettings(algorithm=algorithm, values={"rounds": 4, "hidden": 8}, link=chain)


def test_the_guide_has_about_thirty_lines() -> None:
    body = GUIDE.split("class TopK")[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 30
    assert len(FOR_ALL) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", FOR_ALL)
def test_every_algorithm_of_means_and_sums(algorithm: str, tmp_path: Path, installed: str) -> None:
    """Deployed it gives the bits of the run in one process, and bytes are those that travelled."""
    federation, settings = ragged_federation(sparse=True), settings_of(algorithm, installed)
    here = run.carry_out(federation, settings, None).summary()
    plain = run.carry_out(federation, settings_of(algorithm), None).summary()
    assert here["models"] != plain["models"] or algorithm == "fedspray2"  # only gradients go up: nothing to count from
    sites = Sites(tmp_path / "sites", federation, Agreement(federation.roster, settings))
    assert stable(sites.run()) == stable(here)


def test_a_crash_changes_nothing(tmp_path: Path, installed: str) -> None:
    federation = ragged_federation(sparse=True)
    settings = settings_of("fedspray", installed, "used-rows", "compress")
    whole, sites = (
        Sites(tmp_path / name, federation, Agreement(federation.roster, settings)) for name in ("whole", "crash")
    )
    expected = stable(whole.run())
    died: list[str] = []

    def trouble(name: str, ask: Ask) -> None:
        if not died and ask.request.round_index == 3 and name == federation.clients[1].name:
            died.append(name)
            raise Crash

    sites.trouble = trouble
    with pytest.raises(Crash):
        sites.run()
    assert stable(sites.run()) == expected
    first = federation.clients[0].name
    line = next(line for line in read_answers(tmp_path / "crash" / first) if "server_gets" in line)
    assert "which features the client's nodes use" in line["server_gets"]["link used-rows"]


def test_a_package_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_guide(tmp_path)
    monkeypatch.chdir(tmp_path)
    chosen = ["--dataset", "banks", "--nodes", "200", "--rounds", "2", "--algorithm", "fedavg"]
    assert run_command(["run", *chosen, "--link", "mypkg.topk:TopK share=0.1", "--out", "runs/a"]) == 0
    assert run_command(["run", *chosen, "--link", "mypkg.topk:TopK size=0.1", "--out", "runs/b"]) == 2
    assert not (tmp_path / "runs" / "b").exists()


@pytest.mark.nightly
def test_between_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NVFlare, with the link installed but no part of fedspray: the bits of one process."""
    write_guide(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    chosen = ["--dataset", "banks", "--clients", "3", "--nodes", "300", "--rounds", "3", "--algorithm", "fedavg"]
    chosen += ["--link", "mypkg.topk:TopK share=0.1", "--json"]
    here = result(fedspray("run", *chosen, "--out", tmp_path / "here"))
    there = result(fedspray("deploy", "local", *chosen, "--out", tmp_path / "there"))
    assert there["seeds"][0]["bytes_up"] == here["seeds"][0]["bytes_up"]
    assert there["models"] == here["models"]
    agreed = json.loads((tmp_path / "there" / "kits" / "bank_00" / "local" / "agreement.json").read_text())
    assert list(agreed["outside"]) == ["mypkg.topk"]
