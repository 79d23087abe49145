from __future__ import annotations

import csv
import io
from typing import Any

from rich.console import Console

from fedspray.report.comparisons import (
    comparison_csv,
    comparison_sheets,
    page_names,
    search_sheet,
    sweep_csv,
    sweep_sheet,
)
from fedspray.report.figures import to_png
from fedspray.report.sheets import Sheet
from fedspray.report.sweeps import sweep_figure


def row(method: str, overall: float | None, minority: float, **more: Any) -> dict[str, Any]:
    return {
        "dataset": "pub_med",
        "backbone": "gcn",
        "method": method,
        "seeds": [0, 1, 2, 3, 4],
        "overall": {"mean": overall, "std": 0.01},
        "minority": {"mean": minority, "std": 0.02},
        "bytes_up": 1_500_000,
        "bytes_down": 2_000_000,
        "cpu_seconds": 12.34,
        "client_failures": 0,
        **more,
    }


def test_row(method: str, metric: str, **more: Any) -> dict[str, Any]:
    shared = {"dataset": "pub_med", "backbone": "gcn", "method": method, "metric": metric, "pairs": 5}
    figures = {"difference": -0.05, "low": -0.08, "high": -0.02, "t_p": 0.0001, "t_p_holm": 0.0002}
    return {**shared, **figures, "wilcoxon_p": None, "wilcoxon_p_holm": None, **more}


test_row.__test__ = False  # type: ignore[attr-defined]

SUMMARY: dict[str, Any] = {
    "reference": "fedspray",
    "bootstrap_draws": 2000,
    "rows": [row("local", 0.875, 0.5), row("fedspray", 0.8750001, 0.61234)],
    "tests": [test_row("local", "overall", t_p_holm=0.25), test_row("local", "minority")],
    "win_tie_loss": [
        {"method": "local", "metric": metric, "clients": {"win": 1, "tie": 2, "loss": 4}, "tables": tally}
        for metric in ("overall", "minority")
        for tally in [{"win": 0, "tie": 0, "loss": 1}]
    ],
    "tuning": [],
}


def test_markdown() -> None:
    accuracy, differences, wins = (sheet.to_markdown() for sheet in comparison_sheets(SUMMARY))
    assert "| gcn | local | **87.50 ± 1.00** | 50.00 ± 2.00 | 1.5 | 2.0 | 12.3 |" in accuracy
    assert "| gcn | fedspray | **87.50 ± 1.00** | **61.23 ± 2.00** | 1.5 | 2.0 | 12.3 |" in accuracy
    assert "| gcn | overall | local | −5.00 | −8.00 … −2.00 | 0.250 |" in differences
    assert "| gcn | minority | local | −5.00 | −8.00 … −2.00 | <0.001 |" in differences
    assert "| local | 1 / 2 / 4 | 1 / 2 / 4 | 0 / 0 / 1 | 0 / 0 / 1 |" in wins


def test_latex() -> None:
    text = comparison_sheets(SUMMARY)[0].to_latex()
    assert r"\caption{pub\_med: test accuracy in \%. Mean $\pm$ standard deviation over 5 seeds." in text
    assert r"gcn & fedspray & \textbf{87.50 $\pm$ 1.00} & \textbf{61.23 $\pm$ 2.00} & 1.5 & 2.0 & 12.3 \\" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1


def test_csv_begins_with_the_columns_of_the_committed_tables() -> None:
    rows = list(csv.DictReader(io.StringIO(comparison_csv(SUMMARY, "pubmed.toml"))))
    columns = ["dataset", "algorithm", "backbone", "metric", "mean", "std", "seeds", "settings"]
    assert list(rows[0])[:8] == columns
    assert [rows[3][name] for name in columns] == [
        *("pub_med", "fedspray", "gcn", "minority"),
        *("61.2340", "2.0000", "5", "pubmed.toml"),
    ]
    assert (rows[1]["difference"], rows[1]["t_p_holm"], rows[3]["difference"]) == ("-5.0000", "0.0002", "")


def test_too_few_seeds_say_so() -> None:
    none = {"t_p": None, "t_p_holm": None, "pairs": 3}
    tests = [test_row("local", metric, **none) for metric in ("overall", "minority")]
    sheet = comparison_sheets({**SUMMARY, "tests": tests})[1]
    assert "p (t)" not in sheet.columns
    assert "3 seeds are too few for a paired test: t needs 5, Wilcoxon 10." in sheet.note


def test_notes_name_the_tests_that_are_shown() -> None:
    def note(*tests: dict[str, Any]) -> str:
        return comparison_sheets({**SUMMARY, "tests": [test_row("local", "overall", **t) for t in tests]})[1].note

    none: dict[str, Any] = {"t_p": None, "t_p_holm": None}
    assert "No paired test: differences are the same under all seeds." in note(none)
    signed_rank = {**none, "wilcoxon_p": 0.002, "wilcoxon_p_holm": 0.002, "pairs": 10}
    assert "p: Wilcoxon's test (W) over 10 seeds, Holm" in note(signed_rank)
    uneven: list[dict[str, Any]] = [{"wilcoxon_p_holm": 0.002, "pairs": 10}, {"pairs": 6}]
    assert "p: paired t-test (t) and Wilcoxon's test (W) over 6 to 10 seeds, Holm" in note(*uneven)


def accuracy(*rows: dict[str, Any]) -> Sheet:
    return comparison_sheets({**SUMMARY, "rows": rows, "tests": [], "win_tie_loss": []})[0]


def test_missing_figures_are_not_numbers_and_not_best() -> None:
    sheet = accuracy(row("a", None, 0.1), row("b", 0.2, 0.3), row("c", 0.1, 0.2))
    assert sheet.rows[0][2].startswith("n/a")
    assert sheet.bold == {(1, 2), (1, 3)}
    assert accuracy(row("a", None, 0.1), row("b", 0.2, 0.3)).bold == {(1, 3)}  # one alone is not the best


def test_means_over_fewer_seeds_are_named_and_never_best() -> None:
    sheet = accuracy(row("a", 0.9, 0.9, seeds=[1]), row("b", 0.2, 0.3), row("c", 0.1, 0.2))
    assert sheet.bold == {(1, 2), (1, 3)}
    assert "over 5 seeds. FEWER SEEDS WERE FINISHED, as many as stand in brackets, of gcn a (1): never" in sheet.note
    assert accuracy(row("a", None, 0.0, seeds=[])).note.startswith("No cell was finished. ")
    values = [{"value": v, **row("fedspray", 0.1 * v, 0.1 * v, seeds=s)} for v, s in ((1, [0, 1]), (2, [0]))]
    sweep = sweep_sheet({"setting": "lr", "rows": values})
    assert sweep.note.endswith("of 2 (1): never the best in bold.")
    assert sweep.bold == frozenset()


def test_the_terminal_shows_what_brackets_hold() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(Sheet("t", ["a"], [["[red]"]]).to_rich())
    assert "[red]" in console.export_text()


def sweep_summary(values: list[Any]) -> dict[str, Any]:
    rows = [row("fedspray", 0.8 + 0.01 * i, 0.5, value=value) for i, value in enumerate(values)]
    return {"setting": "distill_weight", "metrics": ["overall", "minority"], "rows": rows}


def test_a_sweep_is_drawn_with_its_band() -> None:
    figure: Any = sweep_figure(sweep_summary([0.5, 1.0, 1.5]))
    overall, _ = figure.axes
    (line,) = overall.get_lines()
    assert list(line.get_xdata()) == [0.5, 1.0, 1.5]  # evenly spread: by size
    assert [round(float(y), 6) for y in line.get_ydata()] == [80, 81, 82]
    band = overall.collections[0].get_paths()[0].vertices
    assert (round(float(band[:, 1].min()), 6), round(float(band[:, 1].max()), 6)) == (79, 83)
    wide: Any = sweep_figure(sweep_summary([10.0, 0.0, 1.0])).axes[0].get_lines()[0]
    assert list(wide.get_xdata()) == [0, 1, 2]  # unevenly spread: one after another, in order
    assert [round(float(y), 6) for y in wide.get_ydata()] == [81, 82, 80]
    assert to_png(sweep_figure(sweep_summary(["mean", "sum"]))).startswith(b"\x89PNG")


def test_published_figures_of_a_sweep_are_stars_at_their_values() -> None:
    summary = sweep_summary([0.5, 1.0, 1.5])
    summary["rows"][1]["published"] = {"overall": 87.02, "minority": None}
    figure: Any = sweep_figure(summary)
    overall, minority = figure.axes
    _, stars = overall.collections  # the band, and these
    assert stars.get_offsets().tolist() == [[1.0, 87.02]]
    assert len(minority.collections) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1].endswith(", published")


def test_a_sweep_as_table_and_csv() -> None:
    summary = sweep_summary([0.5, 1.0])
    sheet = sweep_sheet(summary)
    assert sheet.title == "pub_med, gcn, fedspray, distill_weight: test accuracy in %"
    assert list(sheet.columns) == ["distill_weight", "overall", "minority", "MB up", "CPU s"]
    assert (1, 1) in sheet.bold
    assert sweep_csv(summary).splitlines()[1] == "pub_med,fedspray,gcn,distill_weight,0.5,overall,80.0000,1.0000,5"


def test_a_search_shows_its_trials_and_the_chosen_one() -> None:
    def trial(weight: float, score: float | None) -> dict[str, Any]:
        figures = {} if score is None else {"overall": 0.8, "minority": 0.6}
        return {"values": {"distill_weight": weight}, "score": score, "runs": [{"seed": 1000, **figures}]}

    record = {
        "dataset": "banks",
        "backbone": "gcn",
        "methods": ["fedspray"],
        "criterion": "mean",
        "seeds": [1000],
        "chosen": {"distill_weight": 2.0},
        "trials": [trial(1.0, None), trial(2.0, 0.7)],
    }
    sheet = search_sheet(record)
    assert sheet.rows == [["1.0", "n/a", "n/a", "failed"], ["2.0", "80.00", "60.00", "0.7000"]]
    assert {index for index, _ in sheet.bold} == {1}


def test_failed_clients_are_said() -> None:
    summary = {**SUMMARY, "rows": [row("local", 0.8, 0.5), row("fedavg", 0.9, 0.6, client_failures=12)]}
    note = comparison_sheets(summary)[0].note
    assert "CLIENTS FAILED, as often as stands in brackets, in gcn fedavg (12): figures may lack their nodes" in note
    assert "FAILED" not in comparison_sheets(SUMMARY)[0].note


def test_names_are_no_markup() -> None:
    """A method called [/old] must not end a comparison after hours of work."""
    sheet = Sheet("difference to [/old]", ["method"], [["x [bold]" + 30 * "."]], note="against [paper]")
    console = Console(file=io.StringIO(), width=80)
    console.print(sheet.to_rich())
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert all(word in text for word in ("difference to [/old]", "x [bold]", "against [paper]"))


def test_every_page_has_a_name_of_its_own() -> None:
    assert page_names([("pubmed", "gcn")]) == ["report.html"]
    assert page_names([("skew α", "gcn"), ("skew β", "gcn"), ("cora", "gcn")]) == [
        "report-skew_-gcn.html",
        "report-skew_-gcn_2.html",
        "report-cora-gcn.html",
    ]
    assert page_names([("a", "m:Net_2"), ("a", "m:Net"), ("a", "m_Net")]) == [
        "report-a-m_Net_2.html",
        "report-a-m_Net.html",
        "report-a-m_Net_3.html",
    ]


def test_ordinary_names_do_not_break_latex_and_markdown() -> None:
    sheet = Sheet("σ × 2", ["a|b", "x"], [["[ours]", r"a\|b"], ["w/o > λ", "<b>*"]], frozenset({(0, 1)}))
    latex, markdown = sheet.to_latex().splitlines(), sheet.to_markdown().splitlines()
    assert r"{}[ours] & \textbf{a\textbackslash{}\textbar{}b} \\" in latex  # else \midrule takes it for a length
    assert r"w/o $>$ $\lambda$ & $<$b$>$* \\" in latex
    assert r"\caption{$\sigma$ $\times$ 2.}" in latex
    assert markdown[2:] == [r"| a\|b | x |", "| :-- | --: |", r"| [ours] | **a\\\|b** |", r"| w/o > λ | \<b>* |"]
