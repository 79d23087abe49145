from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedspray.cli.main import run_command
from fedspray.cli.study import duration

SMALL = ["--nodes", "200", "--rounds", "2", "--jobs", "1"]
TOML = """
nodes = 200
rounds = 2
seeds = 2

[compare]
algorithms = ["local", "fedspray"]
backbones = ["gcn", "mlp"]

[compare.set.mlp]
lr = 0.02

[compare.tune]
untuned = ["local"]
[compare.tune.shared]
weight_decay = [0, 0.001]
[compare.tune.grid.fedspray]
distill_weight = [1, 4]
"""


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_a_comparison_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(TOML)
    assert run_command(["compare", "study.toml", "--jobs", "1", "--bootstrap", "50", "--json"]) == 0
    summary, messages = printed(capsys)
    assert [(r["backbone"], r["method"]) for r in summary["rows"]] == [
        *(("gcn", "local"), ("gcn", "fedspray")),
        *(("mlp", "local"), ("mlp", "fedspray")),
    ]
    assert [r["settings"]["lr"] for r in summary["rows"]][2:] == [0.02, 0.02]
    for backbone in ("gcn", "mlp"):  # shared per backbone, whatever was chosen
        decays = {r["settings"]["weight_decay"] for r in summary["rows"] if r["backbone"] == backbone}
        assert len(decays) == 1
    assert len(summary["tuning"]) == 4  # two backbones: shared settings, then fedspray's own
    assert all(search["num_trials"] == 2 for search in summary["tuning"])
    assert "about" in messages
    folder = Path("studies/study")
    assert json.loads((folder / "comparison.json").read_text()) == summary
    pages = {page.name for page in folder.glob("*.html")}
    assert pages == {"report-banks-gcn.html", "report-banks-mlp.html"}
    rows = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    assert len([row for row in rows if row["metric"] in ("overall", "minority")]) == 8
    assert {row["settings"] for row in rows} == {"study.toml"}
    assert (folder / "comparison.tex").read_text().count(r"\begin{table}") == 4
    stored = {file: file.stat().st_mtime_ns for file in Path("studies/cells").glob("*.json")}

    assert run_command(["compare", "study.toml", "--jobs", "1", "--bootstrap", "50", "--json"]) == 0
    again, messages = printed(capsys)
    assert again == summary
    assert "comparing: 8 of 8" in messages
    assert {file: file.stat().st_mtime_ns for file in Path("studies/cells").glob("*.json")} == stored


def test_flags_override_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(TOML.split("[compare.tune]")[0])
    flags = ["--algorithm", "fedavg", "--algorithm", "fedspray", "--backbone", "mlp", "--seeds", "1"]
    flags += ["--reference", "fedavg", "--set", "fedspray:distill_weight=9", "--set", "lr=0.5", "--jobs", "1"]
    flags += ["--local-epochs", "2", "--dtype", "float64", "--keep-split"]
    assert run_command(["compare", "study.toml", *flags, "--json"]) == 0
    summary, _ = printed(capsys)
    assert [r["method"] for r in summary["rows"]] == ["fedavg", "fedspray"]
    assert (summary["reference"], summary["seeds"]) == ("fedavg", [0])
    assert summary["rows"][1]["settings"]["distill_weight"] == 9.0
    assert (summary["rows"][0]["settings"]["lr"], summary["rows"][0]["settings"]["local_epochs"]) == (0.5, 2)
    cells = [json.loads(file.read_text()) for file in Path("studies/cells").glob("*.json")]
    assert {cell["dtype"] for cell in cells} == {"float64"}
    table = csv.DictReader(Path("studies/study/comparison.csv").read_text().splitlines())
    again = "study.toml --keep-split --dtype float64 --local-epochs 2 --seeds 1 --set fedspray:distill_weight=9"
    again += " --set lr=0.5"  # the rest names rows of the file
    assert {line["settings"] for line in table} == {again}


def test_flags_choose_entries_of_the_file_with_all_that_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(
        """
        rounds = 1
        [compare]
        datasets = [{ name = "small", dataset = "banks", clients = 3, nodes = 240 }, "banks"]
        algorithms = ["local", { algorithm = "fedspray", set = { distill_weight = 0 } },
                      { name = "x", algorithm = "fedspray", set = { distill_weight = 3 } }]
        [compare.set.gcn]
        rounds = 3
        """
    )
    flags = ["--dataset", "small", "--algorithm", "x", "--algorithm", "fedspray", "--rounds", "2", "--jobs", "1"]
    assert run_command(["compare", "study.toml", *flags, "--json"]) == 0
    summary, _ = printed(capsys)
    rows = [
        (r["dataset"], r["method"], r["settings"]["distill_weight"], r["settings"]["rounds"]) for r in summary["rows"]
    ]
    assert rows == [("small", "x", 3.0, 2), ("small", "fedspray", 0.0, 2)]
    cell = json.loads((Path("studies/cells") / summary["rows"][0]["cells"][0]).read_text())
    assert len(cell["nodes"]["clients"]) == 3


def test_the_flag_of_rounds_is_stronger_than_settings_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text("nodes = 200\n[set]\nrounds = 5\n")
    assert run_command(["compare", "study.toml", "--rounds", "2", "--jobs", "1", "--json"]) == 0
    assert printed(capsys)[0]["rows"][0]["settings"]["rounds"] == 2


@pytest.mark.parametrize("command", [["tune"], ["compare"]])
def test_a_failed_trial_ends_with_code_3(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text("[compare.tune.shared]\nlr = [0.01, 1e30]\n")
    assert run_command([*command, "study.toml", *SMALL, "--json"]) == 3
    content, messages = printed(capsys)
    assert "command to retry" in messages
    (search,) = content.get("searches") or content["tuning"]
    assert search["chosen"] == {"lr": 0.01}


def test_a_search_by_flags_keeps_the_files_criterion_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text('[compare.tune]\ncriterion = "overall"\nseeds = 2\n')
    assert run_command(["tune", "study.toml", *SMALL, "--grid", "lr=0.01,0.02", "--json"]) == 0
    (search,) = printed(capsys)[0]["searches"]
    assert (search["criterion"], search["seeds"], search["num_trials"]) == ("overall", [1000, 1001], 2)


@pytest.mark.parametrize("command", [["compare"], ["sweep", "--vary", "lr=1,2"], ["tune", "--grid", "lr=1,2"]])
def test_a_target_that_cannot_be_written_is_refused_before_the_work(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert run_command([*command, *SMALL, "--out", "file"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert not Path("studies").exists()


def test_pages_of_an_earlier_comparison_do_not_stay(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", *SMALL, "--algorithm", "local", "--algorithm", "fedavg", "--out", "here"]
    assert run_command(arguments) == 0
    assert [page.name for page in Path("here").glob("*.html")] == ["report.html"]
    Path("here/report-final.html").write_text("somebody else's")
    assert run_command([*arguments, "--backbone", "gcn", "--backbone", "mlp"]) == 0
    pages = {"report-banks-gcn.html", "report-banks-mlp.html"}
    assert {page.name for page in Path("here").glob("*.html")} == {*pages, "report-final.html"}


def test_a_sweep_says_that_it_chooses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(TOML)
    flags = ["--backbone", "gcn", "--algorithm", "fedspray", "--seeds", "1", "--jobs", "1"]
    assert run_command(["sweep", "study.toml", "--vary", "local_epochs=1,2", *flags]) == 0
    assert "[compare.tune]" in capsys.readouterr().err


def test_a_failed_cell_ends_with_code_3_and_the_other_figures(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", *SMALL, "--algorithm", "local", "--algorithm", "fedavg", "--set", "fedavg:lr=1e30"]
    assert run_command([*arguments, "--json"]) == 3
    summary, messages = printed(capsys)
    assert "2 cells failed; run" in messages
    assert [r["overall"]["mean"] is None for r in summary["rows"]] == [False, True]
    assert summary["failures"][0]["method"] == "fedavg"
    text = Path("studies/compare/comparison.md").read_text()
    assert "stand in brackets" in text


def test_kept_runs_are_run_folders(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["compare", *SMALL, "--algorithm", "local", "--keep-runs", "--json"]) == 0
    summary, _ = printed(capsys)
    (folder,) = Path("studies/cells/runs").iterdir()
    assert run_command(["run", "--resume", str(folder), "--json"]) == 0
    result, _ = printed(capsys)
    assert result["overall"]["mean"] == summary["rows"][0]["overall"]["mean"]


def test_a_sweep_writes_table_and_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sweep", *SMALL, "--vary", "local_epochs=1,3", "--seeds", "2", "--json"]) == 0
    summary, _ = printed(capsys)
    assert [row["value"] for row in summary["rows"]] == [1, 3]
    folder = Path("studies/sweep-local_epochs")
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    rows = csv.DictReader((folder / "sweep.csv").read_text().splitlines())
    assert [row["value"] for row in rows if row["metric"] == "auprc"] == ["1", "3"]


def test_a_search_looks_at_no_test_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tune", *SMALL, "--grid", "distill_weight=1,2", "--tuning-seeds", "2", "--json"]) == 0
    content, _ = printed(capsys)
    (search,) = content["searches"]
    assert (search["seeds"], search["num_trials"]) == ([1000, 1001], 2)
    best = max(search["trials"], key=lambda trial: float(trial["score"]))
    assert search["chosen"] == best["values"]
    for file in Path("studies/cells").glob("*.json"):
        cell = json.loads(file.read_text())
        assert cell["validation_only"]
        assert "test" not in cell["curves"]
        assert "overall" not in cell["metrics"]


def test_a_file_can_say_what_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(TOML.replace("seeds = 2", "seeds = 1"))
    assert run_command(["tune", "study.toml", "--backbone", "gcn", "--jobs", "1", "--json"]) == 0
    content, _ = printed(capsys)
    shared, own = content["searches"]
    assert (shared["methods"], own["methods"]) == (["local", "fedspray"], ["fedspray"])
    assert (shared["seeds"], own["num_trials"]) == ([1000], 2)
    chosen = tomllib.loads(Path("studies/study/chosen.toml").read_text())["compare"]["set"]
    assert chosen == {"banks/gcn": shared["chosen"], "banks/gcn/fedspray": own["chosen"]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["tune", "--rounds", "2"],
            "nothing to choose",
        ),
        (["compare", "missing.toml"], "missing.toml is not a file"),
        (["compare", "--set", "lr"], "--set is 'lr'"),
        (["compare", "--algorithm", "x"], "x, gcn: unknown algorithm 'x'"),
        (["compare", "--backend", "slurm"], "unknown back end 'slurm'"),
        (["sweep", "--vary", "lr=1,2", "--set", "lr=3"], "lr is both set by a flag and varied: do only one"),
        (["sweep", "--vary", "nodes=200,300", "--nodes", "400"], "nodes is both set by a flag and varied"),
        (["sweep", "--vary", "rounds=2,3", "--rounds", "4"], "rounds is both set by a flag and varied"),
        (["sweep", "--vary", "lr"], "--vary is 'lr'"),
        (["tune", "--grid", "lr=1", "--grid", "lr=2"], "--grid names a setting twice"),
        (["tune", "--grid", "lr=0.1,0.2", "--criterion", "test"], "unknown criterion 'test'"),
        (["run", "study.toml"], "study.toml: [compare] is for `fedspray compare`; this command takes one"),
    ],
)
def test_bad_input_gets_one_sentence_and_writes_nothing(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "study.toml" in arguments:
        Path("study.toml").write_text(TOML)
    assert run_command(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")
    assert not Path("studies").exists()


def test_durations_are_for_people() -> None:
    assert [duration(s) for s in (8.4, 89, 720, 12_000)] == ["8 s", "89 s", "12 min", "3 h 20 min"]
