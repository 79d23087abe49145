"""A link written by following docs/links.md works with every algorithm that sends means and sums, here and deployed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sites import Crash, Sites, stable
from toys import ragged_federation

from fedspray import algorithms, links, messages
from fedspray.cli.main import run_command
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import read_answers
from fedspray.deploy.messages.wire import Ask
from fedspray.engine.local import single_blocks
from fedspray.experiment import RunSettings
from fedspray.runs import run

PAGE = (Path(__file__).parents[2] / "docs" / "links.md").read_text()
(GUIDE,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S) if "class TopK" in block]

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
    """The guide's file in the folder of links, which is the registry."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "topk.py").write_text(GUIDE)
    monkeypatch.setattr(links, "__path__", [*links.__path__, str(tmp_path / "more")])
    return "topk share=0.3"


def settings_of(algorithm: str, *chain: str) -> RunSettings:
    return RunSettings(algorithm=algorithm, values={"rounds": 4, "hidden": 8}, link=chain)


def test_the_guide_has_about_thirty_lines() -> None:
    body = GUIDE.split("class TopK")[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 30
    assert len(FOR_ALL) >= 12


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
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "__init__.py").touch()
    (tmp_path / "mypkg" / "topk.py").write_text(GUIDE)
    monkeypatch.chdir(tmp_path)
    chosen = ["--dataset", "banks", "--nodes", "200", "--rounds", "2", "--algorithm", "fedavg"]
    assert run_command(["run", *chosen, "--link", "mypkg.topk:TopK share=0.1", "--out", "runs/a"]) == 0
    assert run_command(["run", *chosen, "--link", "mypkg.topk:TopK size=0.1", "--out", "runs/b"]) == 2
    assert not (tmp_path / "runs" / "b").exists()
