"""`compare` names everything that gives the same row another feature or class, and nothing else."""

from __future__ import annotations

from fedspray.tables.diff import compare
from fedspray.tables.schema import Schema

FIRST = """
format = 1
[nodes]
files = "customers.csv"
id = "id"
label = "y"
classes = ["no", "yes"]
[[features]]
columns = "income"
kind = "numeric"
scale = "standard"
mean = 10.0
sd = 2.0
[[features]]
columns = "debt"
kind = "numeric"
scale = "log"
[[features]]
columns = "region"
kind = "category"
vocabulary = ["north", "south"]
[[features]]
columns = "sector"
kind = "category"
vocabulary = ["a", "b"]
[[features]]
columns = "since"
kind = "date"
reference = "2000-01-01"
[[features]]
columns = "note"
kind = "text"
width = 64
[[features]]
columns = "age"
kind = "numeric"
missing = 0
"""
SECOND = (
    FIRST.replace('["no", "yes"]', '["yes", "no"]')
    .replace("mean = 10.0", "mean = 11.0")
    .replace('scale = "log"', 'scale = "standard"')
    .replace('["north", "south"]', '["north", "south", "east"]')
    .replace('["a", "b"]', '["b", "a"]')
    .replace('"2000-01-01"', '"1970-01-01"')
    .replace("width = 64", "width = 32")
    .replace("missing = 0", 'missing = "mean"')
)


def found(first: str, second: str) -> set[tuple[str, str]]:
    return {(d.where, d.what) for d in compare(Schema.from_toml(first), Schema.from_toml(second))}


def test_eight_differences_are_named_each() -> None:
    assert found(FIRST, SECOND) == {
        ("classes", "order"),
        ("feature 'income'", "mean"),
        ("feature 'debt'", "scale"),
        ("the vocabulary of feature 'region'", "only second"),
        ("the vocabulary of feature 'sector'", "order"),
        ("feature 'since'", "reference"),
        ("feature 'note'", "width"),
        ("feature 'age'", "missing"),
    }


def test_kinds_features_and_their_order_count() -> None:
    assert found(FIRST, FIRST.replace('"debt"', '"owed"')) == {("features", "only first"), ("features", "only second")}
    moved = FIRST.replace('"age"', '"x"').replace('"income"', '"age"').replace('"x"', '"income"')
    assert ("features", "order") in found(FIRST, moved)
    drop = 'columns = "note"\nkind = "drop"'
    assert found(FIRST, FIRST.replace('columns = "note"\nkind = "text"\nwidth = 64', drop)) == {
        ("features", "only first")
    }
    kind = FIRST.replace('columns = "note"\nkind = "text"\nwidth = 64', 'columns = "note"\nkind = "category"')
    assert found(FIRST, kind) == {("feature 'note'", "kind")}


def test_what_files_and_columns_are_called_does_not() -> None:
    own = FIRST.replace("customers.csv", "kunden.csv").replace(
        'label = "y"', 'label = "ausfall"\nmissing = ["", "k.A."]'
    )
    own = own.replace('columns = "income"', 'columns = "einkommen"\nname = "income"')
    assert found(FIRST, own) == set()
