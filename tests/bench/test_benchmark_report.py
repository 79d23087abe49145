from __future__ import annotations

from typing import Any

import pytest
from scripted import scripted

from benchmarks import measure
from benchmarks.cases import Case
from benchmarks.report import benchmark_figure, benchmark_markdown, benchmark_sheets
from benchmarks.scaling import find_series
from fedspray.experiment import Data

SIZES = ((1000, 2), (2000, 2), (4000, 2), (4000, 8))


@pytest.fixture
def content(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> dict[str, Any]:
    """Four sizes of banks and one of PubMed, each with two models; the reference plays one round at 4,000 nodes."""
    monkeypatch.setattr(measure, "Player", scripted())
    sources = [Data.of(dataset="pubmed"), *(Data.of(dataset="banks", nodes=n, clients=k) for n, k in SIZES)]
    cases = [
        measure.measure(Case(source, backbone, "fedspray"), repetitions=3, threads=1, reference=tmp_path)
        for source in sources
        for backbone in ("gcn", "sage")
    ]
    return {
        "command": "fedspray bench",
        "date": "2026-01-01",
        "yardstick_milliseconds": [2.14, 2.26],
        "machine": {"processor": "Some CPU", "cores": 2, "memory_bytes": 8_000_000_000, "system": "Linux"},
        "versions": {"torch": "2", "torch-geometric": "2", "python": "3"},
        "threads": 1,
        "cases": cases,
        "scaling": find_series(cases),
    }


def test_one_table_for_each_data_set_then_memory_then_growth(content: dict[str, Any]) -> None:
    titles = [sheet.title for sheet in benchmark_sheets(content)]
    assert titles == [
        "pubmed: time of a round",
        "banks: time of a round",
        "Memory and start-up",
        "How the cost of a round on banks grows",
    ]
    assert benchmark_sheets({**content, "scaling": []})[-1].title == "Memory and start-up"


def test_a_reference_that_played_once_is_marked(content: dict[str, Any]) -> None:
    _, banks, memory, growth = benchmark_sheets(content)
    assert banks.rows[0] == ["1,000/2", "GCN FedSpray", "4", "8", "2.00", "12", "3.00"]
    # 4,000 nodes: ours 12, 16, 20 s; the first round of the reference takes 16 CPU s and 32 s, too long for another
    assert banks.rows[4] == ["4,000/2", "GCN FedSpray", "16", "32", "2.00", "16*", "1.33"]
    assert "without a warm-up" in banks.note
    assert "(relative) and 1e-02" in banks.note
    assert banks.sections == [2, 4, 6]
    assert memory.rows[0] == ["pubmed", "100/1", "GCN FedSpray", "5", "4", "2.1"]
    assert growth.rows[0] == ["nodes", "1,000", "4,000", "2 clients", "GCN FedSpray", "1.00", "4.00"]


def test_failures_are_named(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "Player", scripted(fails=("ours",)))
    case = measure.measure(
        Case(Data.of(dataset="banks", nodes=50, clients=2), "sgc", "fedavg"), repetitions=3, threads=1, reference=None
    )
    sheet = benchmark_sheets({**content, "cases": [case], "scaling": []})[0]
    assert sheet.rows == [["50/2", "SGC FedAvg", "–", "–", "–"]]
    assert "50/2, SGC FedAvg: ours" in sheet.note


def test_markdown_says_where_the_figures_come_from(content: dict[str, Any]) -> None:
    text = benchmark_markdown(content)
    assert text.startswith("`fedspray bench`\n\n2026-01-01; Some CPU, 2 cores, 8 GB; threads: 1; torch 2,")
    assert "| 2,000/2 | SAGE FedSpray | 8 | 16 | 2.00 | 8* | 1.33 |" in text
    assert "| 1,000/2 | SAGE FedSpray | 4 | 8 | 2.00 | 12 | 3.00 |" in text


def test_the_picture_has_a_panel_for_each_way_to_grow(content: dict[str, Any]) -> None:
    by_nodes, by_clients = benchmark_figure(content).axes
    assert [line.get_xdata().tolist() for line in by_nodes.lines] == [[1000, 2000, 4000]] * 2  # type: ignore[union-attr]
    labels = [text.get_text() for text in by_nodes.get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels == ["GCN FedSpray: exponent 1.00", "SAGE FedSpray: exponent 1.00"]
    assert (by_nodes.get_xscale(), by_nodes.get_yscale()) == ("log", "log")
    assert by_clients.get_xlabel() == "clients (4,000 nodes)"
    low, high = by_clients.get_ylim()
    assert high / low >= 10 - 1e-9
