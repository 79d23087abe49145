"""The README keeps its promises: its code runs, its commands and links exist."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedspray import build_federation

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DATASETS = (ROOT / "docs" / "datasets.md").read_text()
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}(?: title=[^\n]*)?\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_quick_start_prints_what_it_says(tmp_path: Path) -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert outcome.stderr == ""
    shown, expected = outcome.stdout, blocks("text")[-1]
    assert re.sub(r"\d+%", "%", shown) == re.sub(r"\d+%", "%", expected)
    printed, promised = ([int(n) for n in re.findall(r"(\d+)%", text)] for text in (shown, expected))
    assert printed == pytest.approx(promised, abs=3)  # other processors round differently


def results(name: str) -> list[dict[str, str]]:
    with (ROOT / "results" / name).open() as stream:
        return list(csv.DictReader(stream))


def measured() -> dict[tuple[str, str], float]:
    """By row and column of the README's table."""
    names = {"pubmed": "PubMed", "physics": "Physics", "twitch": "Twitch", "citation": "Citation"}
    titles = {"local": "alone (Local)", "fedavg": "FedAvg", "fedspray": "FedSpray, here", "fedspray2": "FedSpray 2"}
    found = {}
    for row in results("fresh.csv") + results("unseen.csv"):
        if row["dataset"] in names and row["method"] in titles and row["backbone"] == "gcn":
            found[f"{names[row['dataset']]}, {row['metric']}", titles[row["method"]]] = float(row["mean"])
            assert row["seeds"] == "5"
    for row in results("table2-published.csv"):
        if (row["algorithm"], row["backbone"]) == ("fedspray", "gcn") and row["dataset"] in ("pubmed", "physics"):
            found[f"{names[row['dataset']]}, {row['quantity']}", "FedSpray, paper"] = float(row["published"])
    for case in speed():
        title = f"CPU seconds per round, {names[case['dataset']]}"
        for column, player in (("FedSpray, paper", "reference"), ("FedSpray, here", "ours")):
            found[title, column] = case[player]["cpu_seconds"]
    return found


def speed() -> list[dict[str, Any]]:
    cases = json.loads((ROOT / "results/benchmarks/released-pubmed-physics.json").read_text())["cases"]
    return [case for case in cases if case["backbone"] == "gcn"]


def test_its_table_is_what_was_measured() -> None:
    columns = re.findall(r"^\| \| (alone.*) \|$", README, re.M)[0].split(" | ")
    shown: dict[tuple[str, str], float] = {}
    for line in re.findall(r"^\| ((?:PubMed|Physics|Twitch|Citation), .*|CPU seconds.*) \|$", README, re.M):
        title, *cells = (cell.strip() for cell in line.split("|"))
        shown |= {(title, column): float(cell) for column, cell in zip(columns, cells, strict=True) if cell}
    assert shown == pytest.approx(measured(), abs=0.0051)
    said = re.search(r"machine: (\S+) and (\S+) times as fast", README)
    assert said is not None
    assert [float(word) for word in said.groups()] == pytest.approx(
        [case["reference_to_ours"]["cpu"] for case in speed()], rel=0.01
    )
    assert {row["seeds"] for row in results("helped.csv")} == {"5"}  # as it says


def test_the_picture_is_drawn_from_what_is_stored() -> None:
    """`make picture` does, whenever there are new cells."""
    from reproduction import helped

    federations = [helped.outcomes(dataset) for dataset in helped.FEDERATIONS]
    assert helped.PICTURE.read_text() == helped.drawn(federations)
    rows = [row for found in federations for outcome in found for row in outcome.rows()]
    assert [list(row.values()) for row in results("helped.csv")] == [[str(value) for value in row] for row in rows]


def test_own_organisations_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = blocks("python", DATASETS)
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "'mean'" in printed.out
    assert (tmp_path / "ours" / "clients" / "north" / "graph.npz").is_file()


def test_clients_that_others_published_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch_geometric.data import Data

    _, code = blocks("python", DATASETS)
    (tmp_path / "theirs").mkdir()
    made = build_federation("banks", clients=2, nodes=100)
    for number, client in enumerate(made.clients):
        masks = {f"{part}_mask": torch.from_numpy(getattr(client.split, part)) for part in ("train", "val", "test")}
        data = Data(**client.graph.to_pyg().to_dict(), **masks)
        torch.save({"client_data": data, "client_id": number}, tmp_path / "theirs" / f"partition_{number}.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["-c", "theirs", "ours/2"])
    exec(code, {"__name__": "__main__"})
    read = build_federation(tmp_path / "ours" / "2")
    assert [client.name for client in read.clients] == ["client_00", "client_01"]
    for ours, theirs in zip(read.clients, made.clients, strict=True):
        assert (ours.graph.dense_features() == theirs.graph.dense_features()).all()
        assert (ours.split.train == theirs.split.train).all()


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    mentioned = set(re.findall(r"make ([a-z-]+)", "".join(re.findall(r"`[^`]+`|```.*?```", README, flags=re.DOTALL))))
    assert {"demo", "test"} <= mentioned <= targets


@pytest.mark.parametrize(
    "document", ["README.md", *(str(file.relative_to(ROOT)) for file in sorted((ROOT / "docs").rglob("*.md")))]
)
def test_links_to_files_lead_somewhere(document: str) -> None:
    file = ROOT / document
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text()):
        assert (file.parent / link).exists(), f"{document} links to {link}, which does not exist"


@pytest.mark.data
def test_the_table_is_what_inspect_prints(
    real_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedspray.cli.main import run_command

    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    monkeypatch.setenv("COLUMNS", "80")
    shown = blocks("text", CONCEPTS)[0].splitlines()
    arguments = shown[0].removeprefix("$ fedspray ").replace("partitions/", f"{real_data}/partitions/").split()
    assert run_command(arguments) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown[1:]
