"""No result moves, and no stored cell is lost: see `frozen`."""

from __future__ import annotations

import json
from pathlib import Path

import frozen
import pytest

from fedspray.experiment import Data, RunSettings
from fedspray.studies.cells import Cell

FROZEN = json.loads(frozen.FILE.read_text())
STORED = sorted((frozen.ROOT / "tests" / "studies" / "stored").glob("*.json"))


@pytest.fixture
def same_machine() -> str:
    """What to say where models differ; on a machine that computes otherwise the test is skipped."""
    if frozen.machine() != FROZEN["machine"]:
        pytest.skip(f"{frozen.FILE.name} was made with {FROZEN['machine']}, but this is {frozen.machine()}: make one")
    return f"made on {FROZEN['processor']}, run on {frozen.processor()}"


@pytest.mark.parametrize("name", FROZEN["banks"])
def test_models_and_figures_on_banks(name: str, same_machine: str) -> None:
    assert frozen.digests(frozen.banks(), frozen.ON_BANKS[name]) == FROZEN["banks"][name], same_machine


@pytest.mark.data
@pytest.mark.slow
def test_models_and_figures_on_pubmed(real_data: Path, monkeypatch: pytest.MonkeyPatch, same_machine: str) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    federation = frozen.pubmed()
    found = {name: frozen.digests(federation, settings) for name, settings in frozen.ON_PUBMED.items()}
    assert found == FROZEN["pubmed"], same_machine


def test_another_setting_gives_other_digests() -> None:
    """What is compared above can differ."""
    changed = frozen.digests(frozen.banks(), {"algorithm": "fedavg", "lr": 0.0031})
    assert set(changed.values()).isdisjoint(FROZEN["banks"]["fedavg"].values())


@pytest.mark.parametrize("study", FROZEN["keys_on_banks"])
def test_keys_without_data(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(frozen.ROOT)  # experiments/random_types.py is named from there
    assert frozen.keys_on_banks(study, monkeypatch.setattr) == FROZEN["keys_on_banks"][study]


@pytest.mark.data
@pytest.mark.slow
def test_keys_on_pubmed(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    monkeypatch.chdir(frozen.ROOT)
    assert {study: frozen.keys(frozen.cells_of(study)) for study in FROZEN["keys"]} == FROZEN["keys"]


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_keys_of_stored_cells(file: Path) -> None:
    stored = json.loads(file.read_text())
    run = RunSettings(algorithm=stored["algorithm"], values=stored["settings"], seeds=(stored["seed"],))
    source = Data.of(dataset="banks", nodes=stored["federation"]["num_nodes"]).located()
    cell = Cell(dataset="banks", method="any", data=source, run=run)
    assert (cell.key(), f"{cell.name(cell.key())}.json") == (stored["key"], file.name)
