from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedspray.cli.main import run_command
from reproduction.access import Access
from reproduction.command import NAMES
from reproduction.parts import PARTS

STUDY = """
dataset = "banks"
nodes = 200
rounds = 2
seeds = 2

[compare]
algorithms = ["local", "fedspray"]
backbones = ["gcn"]
"""


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "table2-banks.toml").write_text(STUDY)
    return tmp_path


def test_the_names_are_those_of_the_parts() -> None:
    assert set(NAMES) == {*PARTS, "all"}


def test_a_table_is_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "table2", "--experiments", "mine", "--jobs", "1", "--out", "results"]
    assert run_command([*arguments, "--stored"]) == 0
    wanted = "0 of 4 cells are finished. Then: fedspray reproduce table2 --experiments mine --out results"
    assert wanted in capsys.readouterr().err
    assert not Path("results/table2.csv").exists()
    assert run_command(arguments) == 0
    assert "difference" in capsys.readouterr().out
    assert len(Path("results/table2.csv").read_text().splitlines()) == 5
    assert "## Table 2" in Path("results/table2.md").read_text()
    assert run_command([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert [part["part"] for part in summary["parts"]] == ["table2"]
    assert summary["files"] == ["table2.md", "table2-published.csv", "table2.csv"]
    assert "4 cells are already" in captured.err


@pytest.mark.slow
@pytest.mark.data
def test_what_needs_no_training_works_with_pubmed_alone(
    capsys: pytest.CaptureFixture[str], real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PubMed").symlink_to(real_data / "PubMed")
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path / "data"))
    arguments = [
        "reproduce",
        "table1",
        "table4",
        "proposition1",
        "--quick",
        "--dataset",
        "pubmed",
        "--dataset",
        "banks",
    ]
    assert run_command(arguments) == 0
    out = Path("studies/reproduce-quick")
    assert (out / "proposition1.png").exists()
    captured = capsys.readouterr()
    assert "Louvain, which" in captured.out
    assert "into partitions/PubMed" in captured.err


def test_node_lists_are_looked_for_in_the_data_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "lists").mkdir(parents=True)
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path / "data"))
    assert Access.from_environment(Path("lists")).partitions == [tmp_path / "data" / "lists"]
    assert run_command(["reproduce", "table1", "--partitions", "nowhere"]) == 2
    assert "--partitions nowhere" in capsys.readouterr().err


def test_quick_figures_do_not_stand_beside_full_ones(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "table2", "--experiments", "mine", "--jobs", "1", "--out", "results"]
    assert run_command([*arguments, "--quick"]) == 0
    assert run_command(arguments) == 0  # the other way round nothing is lost
    full = Path("results/table2.md").read_text()
    capsys.readouterr()
    assert run_command([*arguments, "--quick"]) == 2
    assert "figures of full" in capsys.readouterr().err
    assert Path("results/table2.md").read_text() == full


def test_figures_of_other_data_sets_are_not_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    study = STUDY.replace("[compare]", '[compare]\ndatasets = ["banks", { name = "more", dataset = "banks" }]')
    Path("mine/table2-banks.toml").write_text(study.replace("nodes = 200", "nodes = 100"))
    arguments = ["reproduce", "table2", "--experiments", "mine", "--jobs", "1", "--out", "results"]
    assert run_command(arguments) == 0
    both = Path("results/table2.csv").read_text()
    capsys.readouterr()
    assert run_command([*arguments, "--dataset", "banks"]) == 2
    said = capsys.readouterr().err
    assert "figures of more" in said
    assert "--dataset banks" in said
    assert Path("results/table2.csv").read_text() == both


def test_figures_whose_cells_are_gone_stay(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "table2", "--experiments", "mine", "--jobs", "1", "--out", "results"]
    assert run_command(arguments) == 0
    before = Path("results/table2-published.csv").read_text()
    capsys.readouterr()
    assert run_command([*arguments, "--stored", "--cells", "elsewhere"]) == 2
    said = capsys.readouterr().err
    assert ("holds 4 figures" in said, "(banks local" in said) == (True, True)
    assert Path("results/table2-published.csv").read_text() == before


def test_figures_of_more_seeds_stay(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "table2", "--experiments", "mine", "--jobs", "1", "--out", "results"]
    assert run_command(arguments) == 0
    before = Path("results/table2.csv").read_text()
    for cell in Path("studies/cells").glob("*fedspray*seed1*.json"):
        cell.unlink()
    capsys.readouterr()
    assert run_command([*arguments, "--stored"]) == 2
    said = capsys.readouterr().err
    assert ("holds 2 figures" in said, "(banks fedspray" in said) == (True, True)
    assert Path("results/table2.csv").read_text() == before


def test_figures_of_the_authors_clients_stay(capsys: pytest.CaptureFixture[str]) -> None:
    """Where their lists cannot be found, this is said before anything is run."""
    Path("results").mkdir()
    line = "pubmed,local,gcn,overall,87.49,0.24,87.69,0.38,0.2,5,authors',done,table2-pubmed.toml"
    head = "dataset,algorithm,backbone,quantity,published,published_std,ours,ours_std,difference,seeds,split,status"
    Path("results/table2-published.csv").write_text(f"{head},settings\n{line}\n")
    Path("empty").mkdir()
    assert run_command(["reproduce", "table2", "--partitions", "empty", "--out", "results"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("results/table2-published.csv", "clients of pubmed", "empty/PubMed"))


def test_a_part_that_does_not_know_the_data_set_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["reproduce", "table1", "--dataset", "cora"]) == 2
    assert "cora: remove --dataset" in capsys.readouterr().err
    assert not Path("studies").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table9"], "unknown part 'table9'"),
        (["table2", "--dataset", "pubmet"], "unknown data set 'pubmet'"),
        (["table2", "--partitions", "nowhere"], "--partitions nowhere is not a folder"),
        (["table2", "--experiments", "nowhere"], "--experiments nowhere is not a folder"),
        (["table3", "--experiments", "mine"], "mine holds no file table3.toml"),
    ],
)
def test_bad_input_gets_one_sentence_and_writes_nothing(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["reproduce", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")
    assert not Path("studies").exists()
