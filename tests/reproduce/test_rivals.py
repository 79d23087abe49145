"""The page that compares all methods says what the committed results say."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fedspray import algorithms
from fedspray.reproduce.published import results

ROOT = Path(__file__).parents[2]
ROWS = list(csv.DictReader((ROOT / "results" / "rivals-gcn.csv").read_text().splitlines()))
TABLE = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", (ROOT / "docs/algorithms/comparison.md").read_text(), re.MULTILINE)


COLUMNS = [(dataset, metric) for dataset in ("pubmed", "physics") for metric in ("overall", "minority")]


def test_every_method_is_there_with_five_seeds_on_both_data_sets() -> None:
    names = [name for name, _ in TABLE]
    assert set(names) == set(algorithms.names())
    rows = [(row["dataset"], row["algorithm"], row["metric"]) for row in ROWS]
    assert sorted(rows) == sorted((dataset, name, metric) for name in names for dataset, metric in COLUMNS)
    assert {row["seeds"] for row in ROWS} == {"5"}
    assert all((ROOT / "experiments" / row["settings"]).is_file() for row in ROWS)


def test_the_table_is_the_results_beside_the_papers() -> None:
    ours = {(r["dataset"], r["algorithm"], r["metric"]): (float(r["mean"]), float(r["std"])) for r in ROWS}
    paper = {(r.dataset, r.algorithm, r.metric): r for r in results("table2") if r.backbone == "gcn"}
    best = {place: max(ours[place[0], name, place[1]][0] for name, _ in TABLE) for place in COLUMNS}
    for name, line in TABLE:
        expected = []
        for dataset, metric in COLUMNS:
            mean, std = ours[dataset, name, metric]
            text = f"{mean:.2f} ± {std:.2f}"
            expected.append(f"**{text}**" if mean == best[dataset, metric] else text)
            known = paper.get((dataset, name, metric))
            expected.append("" if known is None else f"{known.mean:.2f} ± {known.std:.2f}")
        assert [cell.strip() for cell in line.split("|")] == expected, name


def test_local_and_fedavg_are_near_the_papers_overall_accuracy() -> None:
    paper = {
        (r.dataset, r.algorithm): r.mean for r in results("table2") if (r.backbone, r.metric) == ("gcn", "overall")
    }
    for row in ROWS:
        if row["metric"] == "overall" and row["algorithm"] in ("local", "fedavg"):
            assert abs(float(row["mean"]) - paper[row["dataset"], row["algorithm"]]) < 1.5
