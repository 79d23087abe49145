from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from fedspray.report.tables import best_of, comparison_table, kilobytes, kilobytes_up, run_table


def seed(number: int, *, bytes_up: int, overall: float = 0.5) -> dict[str, Any]:
    values = {"overall": overall, "minority": 0.25, "minority_client_mean": None}
    return {"seed": number, "best_round": 3, "rounds": 10, "bytes_up": bytes_up, "bytes_down": 0, **values}


def summary(*seeds: dict[str, Any], algorithm: str = "fedavg", dataset: str = "banks") -> dict[str, Any]:
    mean = sum(row["overall"] for row in seeds) / len(seeds)
    return {
        "dataset": dataset,
        "algorithm": algorithm,
        "backbone": "gcn",
        "federation": {"num_clients": 4},
        "seeds": list(seeds),
        "overall": {"mean": mean, "std": 0.1 if len(seeds) > 1 else None},
        "minority": {"mean": 0.25, "std": None},
        "minority_client_mean": {"mean": None, "std": None},
    }


def shown(table: Table) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_bytes_are_those_of_a_client_in_a_round() -> None:
    """80,000 bytes in 10 rounds from 4 clients are 2 kB each time; over two seeds 2 and 3 are 2.5."""
    rows = [seed(0, bytes_up=80_000), seed(1, bytes_up=120_000, overall=0.75)]
    assert kilobytes_up(summary(*rows)) == 2.5
    lines = shown(run_table(summary(*rows))).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert cells == [
        ["0", "3", "50.00", "25.00", "n/a", "2.0"],
        ["1", "3", "75.00", "25.00", "n/a", "3.0"],
        ["mean", "", "62.50 ± 10.00", "25.00", "n/a", "2.5"],
    ]


def test_runs_side_by_side() -> None:
    runs = [summary(seed(0, bytes_up=80_000)), summary(seed(0, bytes_up=0, overall=0.6), algorithm="local")]
    text = shown(comparison_table(runs))
    assert "banks, gcn: test" in text
    assert [line.split("│")[-2].strip() for line in text.splitlines() if "│" in line] == ["2.0", "0.0"]


def test_names_with_brackets_are_shown_as_they_are() -> None:
    odd = summary(seed(0, bytes_up=8), algorithm="mine[bold]:Mine", dataset="my [red]data[/red]")
    for table in (run_table(odd), comparison_table([odd])):
        assert "my [red]data[/red]" in shown(table)
        assert "mine[bold]:Mine" in shown(table)


def test_one_message_more_goes_down_than_up() -> None:
    assert kilobytes({"bytes_up": 80_000, "bytes_down": 66_000, "rounds": 10}, num_clients=4) == (2.0, 1.5)


def test_equal_as_shown_is_equal() -> None:
    assert best_of([0.875, 0.87501, None, 0.8]) == {0, 1}
    assert best_of([0.875]) == set()
    assert best_of([None, None]) == set()
