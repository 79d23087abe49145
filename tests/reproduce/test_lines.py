from __future__ import annotations

import csv

from reproduction.lines import MISSING, Line, Missing, PartResult, Standing, published_csv, signed


def line(**values: float | str | None) -> Line:
    return Line(**{"dataset": "pubmed", "labels": {"algorithm": "fedspray"}, "quantity": "overall", **values})  # type: ignore[arg-type]


def test_difference_is_ours_minus_published() -> None:
    known = line(published=87.71, published_std=0.65, ours=88.25, ours_std=0.27)
    assert known.difference is not None
    assert abs(known.difference - 0.54) < 1e-9
    assert known.deviations is not None
    assert abs(known.deviations - 0.54 / 0.65) < 1e-9
    assert known.texts() == ("87.71 ± 0.65", "88.25 ± 0.27", "+0.54")


def test_without_a_published_deviation_there_is_nothing_to_count_in() -> None:
    assert line(published=77.11, ours=88.01).deviations is None
    assert line(published=77.11, published_std=0.0, ours=88.01).deviations is None


def test_what_is_not_known_is_said_and_not_made_up() -> None:
    missing = line(published=81.43, status=MISSING)
    assert missing.difference is None
    assert missing.agrees is None
    assert missing.texts() == ("81.43", "no data", "")
    assert missing.to_json()["ours"] is None


def test_agreement_is_that_of_printed_digits() -> None:
    assert line(published=0.91, ours=0.9078, digits=2).agrees
    assert not line(published=0.91, ours=0.9161, digits=2).agrees
    assert line(published=3600.0, ours=3600.43, digits=0).agrees


def test_a_figure_is_poorer_with_fewer_seeds_or_other_clients() -> None:
    full = Standing("done", 5, "authors'")
    assert Standing("partly", 4, "authors'").is_poorer_than(full)
    assert Standing("done", 5, "Louvain's").is_poorer_than(full)
    assert not full.is_poorer_than(full)
    assert not full.is_poorer_than(Standing("done", 5, "Louvain's"))


def test_signs() -> None:
    assert [signed(v, 2) for v in (0.5, -0.5, 0.001, None)] == ["+0.50", "−0.50", "0", ""]


def test_csv_has_one_line_for_each_figure() -> None:
    rows = list(csv.DictReader(published_csv([line(published=1.0, ours=1.5), line(quantity="x")]).splitlines()))
    assert [row["difference"] for row in rows] == ["0.5", ""]
    assert rows[0]["algorithm"] == "fedspray"
    assert "exact" not in rows[0]


def test_the_page_of_a_part_says_what_could_not_be_had() -> None:
    lost = Missing("wikics", "No file.", "fedspray reproduce table2 --dataset wikics")
    part = PartResult(name="x", title="X", source="the paper", lines=[line()], sheets=[], missing=[lost])
    assert "- **wikics**: No file. Then: `fedspray reproduce table2 --dataset wikics`." in part.to_markdown()
    assert sorted(part.files()) == ["x-published.csv", "x.md"]
