from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from toys import ragged_federation

import fedspray
from fedspray import files
from fedspray.cli.main import run_command
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.files import read_json, write_sealed
from fedspray.report.contents import majority_accuracy, make_cards, page_data
from fedspray.report.html import commands_of, headline_rows, settings_rows, write_report
from fedspray.report.methods import Comparison, read_comparison

Folders = dict[str, Path]


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture
def comparison(run_folders: Folders) -> Comparison:
    return read_comparison([run_folders[name] for name in ("local", "fedavg", "fedspray")])


def test_the_headline_table_is_the_results(comparison: Comparison, run_folders: Folders) -> None:
    rows = headline_rows(comparison, make_cards(comparison))
    for name, row in zip(("local", "fedavg", "fedspray"), rows, strict=True):
        summary = files.read_json(run_folders[name] / "result.json")
        for metric, cell in zip(("overall", "minority"), row["cells"], strict=False):
            mean, std = summary[metric]["mean"], summary[metric]["std"]
            assert (cell["mean"], cell["spread"]) == (f"{100 * mean:.2f}", f"{100 * std:.2f}")
    means = [files.read_json(run_folders[name] / "result.json")["minority"]["mean"] for name in run_folders]
    best = [row["label"] for row in rows if row["cells"][1]["best"]]
    assert best == [r["label"] for r in rows if comparison_mean(comparison, r["label"]) == max(means)]
    assert rows[0]["gain"] is None


def test_a_page_says_what_stayed_at_the_clients(run_folders: Folders, tmp_path: Path) -> None:
    """Sums are shown, and charts of what nobody knows are not; nothing is called absent that was kept back."""
    links = {"sums": "secure-sum", "dp": "dp epsilon=8"}
    for name, link in links.items():
        fedspray.run(ragged_federation(), algorithm="fedavg", rounds=3, hidden=8, link=[link], out=tmp_path / name)
    sections = {"sums": {"curves": True, "clients": False}, "dp": {"curves": False, "clients": False}}
    for name, there in sections.items():
        found, page = write_report([tmp_path / name], tmp_path / "page.html"), (tmp_path / "page.html").read_text()
        assert {part: f'<section id="{part}">' in page for part in there} == there
        assert data_of(page)["cards"] == []
        assert "no minority test node" not in page
        minority = read_json(tmp_path / name / "result.json")["minority"]["mean"]
        assert (minority is None) == (name == "dp")
        said = "No accuracy left the clients" if minority is None else f"{100 * minority:.1f}% of minority nodes"
        assert said in found["finding"]
        assert ("Caution" in found["finding"]) == (name == "sums")
    found = write_report([run_folders["local"], tmp_path / "sums"], tmp_path / "page.html")
    assert "stayed at the clients" in found["finding"]


def test_a_project_is_named_with_its_runs(run_folders: Folders, tmp_path: Path) -> None:
    shutil.copytree(run_folders["local"], tmp_path / "project" / "runs" / "first")
    with pytest.raises(InputError, match=r"is a project.*project/runs/first"):
        write_report([tmp_path / "project"], tmp_path / "page.html")


def test_time_is_that_of_the_cpu_unless_others_did_the_work(run_folders: Folders, tmp_path: Path) -> None:
    shutil.copytree(run_folders["local"], tmp_path / "local")
    cost = {"seconds": 1.25, "cpu_seconds": 0.75}
    for file in (tmp_path / "local").glob("seed-*/result.json"):
        content = read_json(file)
        content.update({name: value * content["rounds"] for name, value in cost.items()})
        write_sealed(file, content)
    for column, shown, other in (("CPU s / round", "0.750", "1.250"), ("s / round", "1.250", "0.750")):
        write_report([tmp_path / "local"], tmp_path / "report.html")
        table = (tmp_path / "report.html").read_text().split('id="headline"')[1].split("</table>")[0]
        assert f">{column}</th>" in table
        assert f"<td>{shown}</td>" in table
        assert other not in table
        for file in (tmp_path / "local").glob("seed-*/nodes.json"):  # as between organisations
            file.unlink()


def comparison_mean(comparison: Comparison, label: str) -> float:
    method = next(m for m in comparison.methods if m.label == label)
    return float(method.spread("minority")["mean"])


def test_charts_show_the_records(comparison: Comparison) -> None:
    data = page_data(comparison, make_cards(comparison))
    seeds = comparison.methods[1].seeds
    curve = data["curves"][1]
    assert curve["rounds"] == [1, 2, 3, 4, 5]
    assert curve["best"] == [seed.metrics["best_round"] for seed in seeds]
    values = [seed.records[2]["test"]["minority"] for seed in seeds]
    band = curve["test"]["minority"]
    assert band["mean"][2] == pytest.approx(sum(values) / 2, abs=1e-5)
    assert (band["low"][2], band["high"][2]) == pytest.approx((min(values), max(values)), abs=1e-5)
    overall = [seed.metrics["clients"]["client_01"]["overall"] for seed in seeds]
    assert data["perClient"]["overall"][1][1]["mean"] == pytest.approx(sum(overall) / 2, abs=1e-5)
    up = sum(record["bytes_up"] for seed in seeds for record in seed.records)
    assert data["cost"][1]["up"] == pytest.approx(up / (2 * 5 * 3))
    assert data["cost"][0]["up"] == 0
    assert data["federation"]["clients"][1]["num_nodes"] == 14
    assert [(entry["method"], entry["seed"]) for entry in data["proxies"]] == [(2, 0), (2, 1)]


def test_cards_in_the_page_are_the_accuracies_of_the_runs(comparison: Comparison) -> None:
    data = page_data(comparison, make_cards(comparison))
    assert [card["method"] for card in data["cards"]] == [1, 2]
    for card in data["cards"]:
        method = comparison.methods[card["method"]]
        for k, client in enumerate(comparison.clients):
            rows = [seed.metrics["clients"][client] for seed in method.seeds]
            right = sum(row["overall"] * row["nodes"] for row in rows)
            cell = card["clients"]["all"][k]
            assert cell["tests"] == sum(row["nodes"] for row in rows)
            assert cell["accuracy"] == pytest.approx(100 * right / cell["tests"], abs=1e-3)
            assert cell["value"] == pytest.approx(cell["accuracy"] - cell["reference"], abs=1e-3)
        assert sum(row["all"]["tests"] for row in card["rows"]) == card["total"]["all"]["tests"]
        for row in card["rows"]:
            assert sum(cell["tests"] for cell in row["cells"] if cell) == row["all"]["tests"]


def test_majority_accuracy_by_hand() -> None:
    row = {"overall": 0.8, "nodes": 10, "minority": 0.5, "minority_nodes": 4}
    assert majority_accuracy(row) == pytest.approx(1.0)  # 8 right, 2 of them in the minority: 6 of 6
    assert majority_accuracy({**row, "minority": None, "minority_nodes": 0}) == pytest.approx(0.8)
    assert majority_accuracy({**row, "minority_nodes": 10}) is None


def test_the_page_stands_alone(run_folders: Folders, tmp_path: Path) -> None:
    page = tmp_path / "new" / "report.html"
    summary = write_report([run_folders["local"], run_folders["fedspray"]], page)
    text = page.read_text()
    assert summary["bytes"] == page.stat().st_size < 3_000_000
    assert summary["methods"] == ["local", "fedspray"]
    assert html.escape(summary["finding"].partition(" Caution: ")[0]) in text
    outside = re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", text, flags=re.S)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", outside)
    assert "http" not in outside.replace("http-equiv", "")
    assert "@import" not in outside
    assert "Begun from Python" in text


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    graph = ragged_federation().clients[1].graph
    names = ("</script><b>one", "two & <b>one", '<b>one\' onload="x()"')
    named = Graph.from_arrays(graph.features, graph.edges, graph.labels, class_names=names)
    federation = fedspray.Federation.from_graphs({"a": named, "b": named}, name=names[0])
    fedspray.run(federation, algorithm="local", rounds=2, out=tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<b>one" not in text
    assert data_of(text)["federation"]["name"] == names[0]
    assert data_of(text)["classes"] == list(names)
    assert '<th scope="col">two &amp; &lt;b&gt;one</th>' in text


def test_old_run_folders_still_have_a_report(run_folders: Folders, tmp_path: Path) -> None:
    for name in ("local", "fedspray"):
        shutil.copytree(run_folders[name], tmp_path / name)
        (tmp_path / name / "federation.json").unlink()
        for file in [*(tmp_path / name).glob("seed-*/nodes.json"), *(tmp_path / name).glob("seed-*/proxies.*")]:
            file.unlink()
    summary = write_report([tmp_path / "local", tmp_path / "fedspray"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    data = data_of(page)
    runs = {
        name: [read_json(f) for f in (tmp_path / name).glob("seed-*/result.json")] for name in ("local", "fedspray")
    }
    for card, name in zip(data["cards"], ("local", "fedspray"), strict=True):
        for k, client in enumerate(data["clients"]):
            rows = [run["clients"][client] for run in runs[name]]
            cell = card["clients"]["minority"][k]
            assert cell["tests"] == sum(row["minority_nodes"] for row in rows)
            right = sum(row["minority"] * row["minority_nodes"] for row in rows)
            assert cell["value"] == pytest.approx(100 * right / cell["tests"], abs=1e-4)
    best = max(data["cards"], key=lambda card: card["total"]["minority"]["value"])
    assert summary["finding"].startswith(f"{data['methods'][best['method']]['label']} is right about ")
    assert 'id="overview"' in page
    assert 'id="detail"' not in page  # classes and neighbourhoods are not known
    assert data["proxies"] == []
    assert data["clients"] == ["client_00", "client_01", "client_02"]


def test_runs_under_other_seeds_are_not_called_references(run_folders: Folders, tmp_path: Path) -> None:
    fedspray.run(ragged_federation(), algorithm="fedavg", rounds=5, seeds=(7,), hidden=8, out=tmp_path / "fedavg")
    comparison = read_comparison([run_folders["local"], tmp_path / "fedavg"])
    rows = headline_rows(comparison, make_cards(comparison))
    assert [(row["is_reference"], row["gain"]) for row in rows] == [(True, None), (False, None)]
    summary = write_report([run_folders["local"], tmp_path / "fedavg"], tmp_path / "page.html")
    assert summary["finding"].startswith("No other method shares a test node with local")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<small>reference</small>") == 1
    assert 'id="overview"' not in page


def test_nothing_is_written_when_input_is_bad(run_folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_report([run_folders["local"], tmp_path], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_settings_that_differ_come_first(comparison: Comparison) -> None:
    rows = settings_rows(comparison.methods[:2])
    assert {"name": "hidden", "values": ["8", "8"], "differs": False} in rows
    rows = settings_rows(comparison.methods)
    spray = next(row for row in rows if row["name"] == "distill_weight")
    assert spray == {"name": "distill_weight", "values": [None, None, "1.0"], "differs": False}


def test_the_command_runs_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    monkeypatch.chdir(tmp_path)
    given = "--dataset banks --nodes 240 --clients 3 --algorithm fedspray --backbone mlp --preset paper"
    given += " --rounds 2 --selection balanced --set hidden=8 --backbone-of bank_01=gcn --seeds 2 --partition-seed 4"
    given += " --link used-rows --link compress"
    assert run_command(["run", *given.split(), "--out", "first"]) == 0
    (command,) = commands_of(files.read_json(Path("first") / "settings.json"))
    assert run_command([*shlex.split(command)[1:], "--out", "second"]) == 0
    first, second = (files.read_json(Path(name) / "result.json") for name in ("first", "second"))
    assert first["models"] == second["models"]
    assert first["settings"] == second["settings"]


def test_one_command_for_each_seed_where_they_are_not_in_a_row() -> None:
    run: dict[str, Any] = {
        "algorithm": "local",
        "backbone": "gcn",
        "preset": None,
        "values": {},
        "backbone_of": {},
        "keep_split": True,
    }
    content = {"source": {"dataset": "my data.npz", "partition_seed": 0}, "run": {**run, "seeds": [3, 5]}}
    start = "fedspray run --dataset 'my data.npz' --algorithm local --backbone gcn --keep-split --seed"
    assert commands_of(content) == [f"{start} 3", f"{start} 5"]
    assert commands_of({**content, "source": None}) == []
