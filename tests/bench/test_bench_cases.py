from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import QUICK, SUITE, Case, choose_cases
from fedspray.errors import InputError
from fedspray.experiment import Data


def choose(**given: Any) -> list[Case]:
    nothing: dict[str, Any] = {
        "names": [],
        "banks": [],
        "backbones": [],
        "algorithms": [],
        "partitions": None,
        "quick": False,
    }
    return choose_cases(**{**nothing, **given})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and an empty cache."""
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def sources(cases: list[Case]) -> list[tuple[str, int | None, int | None]]:
    return list(dict.fromkeys((case.data.dataset, case.data.own.get("nodes"), case.data.clients) for case in cases))


@pytest.mark.parametrize(("quick", "sizes", "models"), [(False, SUITE, 6), (True, QUICK, 1)])
def test_the_default_is_all_of_banks_and_the_data_at_hand(
    data: Path, quick: bool, sizes: tuple[tuple[int, int], ...], models: int
) -> None:
    banks = [("banks", *size) for size in sizes]
    assert sources(choose(quick=quick)) == banks
    (data / "PubMed" / "raw").mkdir(parents=True)
    (data / "PubMed" / "raw" / "x").touch()
    cases = choose(quick=quick)
    assert sources(cases) == [("pubmed", None, None), *banks]
    assert len(cases) == models * (len(sizes) + 1)


@pytest.mark.usefixtures("data")
def test_what_is_given_is_all_that_is_measured() -> None:
    cases = choose(names=["pubmed"], banks=["200/4"], backbones=["sage"], algorithms=["fedavg"])
    assert cases == [
        Case(Data.of(dataset="pubmed"), "sage", "fedavg"),
        Case(Data.of(dataset="banks", nodes=200, clients=4), "sage", "fedavg"),
    ]
    assert str(cases[1]) == "banks 200/4, sage, fedavg"


def test_client_lists_are_looked_for_in_the_data_folder(data: Path) -> None:
    (data / "partitions" / "PubMed").mkdir(parents=True)
    for given in (None, Path("partitions")):
        (case,) = choose(names=["pubmed"], backbones=["gcn"], algorithms=["fedavg"], partitions=given)
        assert case.data.own["partition_dir"] == str(data / "partitions" / "PubMed")


def test_client_lists_are_found_by_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "PubMed").mkdir()
    cases = choose(names=["pubmed", "physics"], backbones=["gcn"], algorithms=["fedavg"], partitions=tmp_path)
    assert [case.data.own.get("partition_dir") for case in cases] == [str(tmp_path / "PubMed"), None]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"banks": ["1000"]}, "--banks is '1000'"),
        ({"banks": ["1e6/10"]}, "--banks is '1e6/10'"),
        ({"backbones": ["gat"]}, "unknown backbone of a benchmark 'gat'"),
        ({"algorithms": ["ditto"]}, "unknown algorithm of a benchmark 'ditto'"),
        ({"partitions": Path("nowhere")}, "--partitions nowhere is not a folder"),
    ],
)
def test_bad_input_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        choose(**given)
    assert str(error.value).startswith(sentence)
