"""What each kind of feature makes of a column, by hand."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedspray.errors import InputError
from fedspray.tables.importing import Imported, import_tables
from fedspray.tables.schema import Schema


def column(folder: Path, values: list[str], keys: str) -> Imported:
    (folder / "n.csv").write_text("id,v\n" + "".join(f'{i},"{v}"\n' if v else f"{i},\n" for i, v in enumerate(values)))
    schema = Schema.from_toml(f'format = 1\n[nodes]\nid = "id"\n[[features]]\ncolumns = "v"\n{keys}')
    return import_tables(schema, nodes=[str(folder / "n.csv")], strict=True)


def values_of(made: Imported) -> list[list[float]]:
    return [[round(float(value), 5) for value in row] for row in made.graph.dense_features()]


def test_standard_log_and_range(tmp_path: Path) -> None:
    standard = column(tmp_path, ["1", "", "5"], 'kind = "numeric"\nscale = "standard"\nflag = true')
    assert values_of(standard) == [[-1, 0], [0, 1], [1, 0]]  # mean 3, standard deviation 2
    assert standard.graph.feature_names == ("v", "v is missing")
    log = column(tmp_path, ["0", f"{math.e - 1!r}"], 'kind = "numeric"\nscale = "log"')
    assert values_of(log) == [[-1], [1]]
    assert log.schema.features[0].mean == pytest.approx(0.5)
    assert log.schema.features[0].sd == pytest.approx(0.5)
    given = column(tmp_path, ["0", "5", "20"], 'kind = "numeric"\nscale = "range"\nlow = 0\nhigh = 10')
    assert values_of(given) == [[0], [0.5], [2]]
    fixed = column(tmp_path, ["7", ""], 'kind = "numeric"\nscale = "standard"\nmean = 5\nsd = 2\nmissing = 9')
    assert values_of(fixed) == [[1], [2]]
    with pytest.raises(InputError, match="line 3: column 'v'"):
        column(tmp_path, ["1", "", "2"], 'kind = "numeric"\nmissing = "refuse"')


def test_dates_are_years_and_places_on_a_circle(tmp_path: Path) -> None:
    made = column(tmp_path, ["2001-01-01", "", "2000-07-01"], 'kind = "date"\nparts = ["years", "month"]\nmissing = 0')
    years = np.array([366, -730485.75, 182]) / 365.25  # 2000 was a leap year; missing: year 0
    assert [row[0] for row in values_of(made)][::2] == pytest.approx(years[::2].tolist(), abs=1e-5)
    assert [row[1:] for row in values_of(made)] == [[0, 1], [0, 0], [0, -1]]
    stamps = column(tmp_path, ["946684800", "978307200"], 'kind = "date"\ntime_format = "unix"')
    assert [row[0] for row in values_of(stamps)] == pytest.approx([0, 366 / 365.25], abs=1e-5)
    written = column(tmp_path, ["20000101", "20010101"], 'kind = "date"\ntime_format = "%Y%m%d"')
    assert values_of(written) == values_of(stamps)
    hours = column(tmp_path, ["2024-01-01 06:00:00"], 'kind = "date"\nparts = ["hour", "weekday"]')
    assert values_of(hours) == [[1, 0, 0, 1]]  # a quarter of the day; a Monday


def test_categories_know_other_and_missing_values(tmp_path: Path) -> None:
    made = column(tmp_path, ["b", "a", "b", "", "c"], 'kind = "category"\nat_least = 2\nflag = true')
    assert made.graph.feature_names == ("v=b", "v is another", "v is missing")
    assert values_of(made) == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    bare = column(tmp_path, ["b", ""], 'kind = "category"\nvocabulary = ["a", "b"]\nother = false')
    assert values_of(bare) == [[0, 1], [0, 0]]


def test_sets_are_lists_or_texts_with_a_separator(tmp_path: Path) -> None:
    lists = column(tmp_path, ["[1, 2, 2]", "", "[9]"], 'kind = "set"\nvocabulary = "0..3"')
    assert values_of(lists) == [[0, 1, 1, 0, 0], [0] * 5, [0, 0, 0, 0, 1]]
    split = column(tmp_path, ["x;y", "y"], 'kind = "set"\nseparator = ";"\nother = false')
    assert values_of(split) == [[1, 1], [0, 1]]
    with pytest.raises(InputError, match=r"line 3: column 'v' holds 'oops'"):
        column(tmp_path, ["[1]", "oops", "[2]"], 'kind = "set"')


def test_text_is_hashed_with_signs_and_has_length_one(tmp_path: Path) -> None:
    made = column(tmp_path, ["Late, late payer", ""], 'kind = "text"\nwidth = 16')
    expected = np.zeros(16)
    for word, times in (("late", 2), ("payer", 1)):
        code = zlib.crc32(word.encode())
        expected[code % 16] += times * (1 if code >> 31 else -1)
    np.testing.assert_allclose(made.graph.dense_features()[0], expected / np.sqrt(5), rtol=1e-6)
    assert not made.graph.dense_features()[1].any()


def test_wide_and_empty_features_are_stored_sparse_and_stay_so(tmp_path: Path) -> None:
    keys = 'kind = "set"\nvocabulary = "0..99"'
    assert column(tmp_path, ["[1]", "[2]"], keys).graph.is_sparse
    assert not column(tmp_path, ["[1]"], 'kind = "set"\nvocabulary = "0..9"').graph.is_sparse
    made = column(tmp_path, ["[1]", "[2]"], keys)
    full = column(tmp_path, [str(list(range(100)))], keys)
    assert not full.graph.is_sparse
    again = import_tables(Schema.from_toml(str(made.graph.schema)), nodes=[str(tmp_path / "n.csv")])
    assert again.graph.is_sparse  # as where the schema was made
