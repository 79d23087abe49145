"""Schemas: what is read, written and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspray.errors import InputError
from fedspray.tables.feature import Feature, natural
from fedspray.tables.schema import Nodes, Schema

WHOLE = """format = 1
name = "ours"

[nodes]
files = { people = "{client}/a.csv", more = "{client}/b.parquet" }
query = "SELECT * FROM people JOIN more USING (id)"
missing = ["", "NA"]
id = "id"
label = "y"
classes = ["no", "yes"]
class_names = ["paid", "failed"]

[edges]
files = ["{client}/edges.csv"]
delimiter = ";"
source = "a"
target = "b"
time = "t"
until = "2024-12-31"
direction = "mutual"

[split]
kind = "time"
parts = "60/20/20"
column = "since"

[[features]]
columns = ["income", "debt"]
kind = "numeric"
scale = "log"
mean = 1.5
sd = 0.25
missing = 0.0
flag = true

[[features]]
columns = "w*"
kind = "numeric"

[[features]]
columns = ["tags"]
kind = "set"
vocabulary = "0..99"
other = false
"""


def test_what_is_written_is_what_was_read() -> None:
    assert Schema.from_toml(WHOLE).to_toml() == WHOLE


words = st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=1, max_size=8)


@given(
    st.lists(words, min_size=1, max_size=5, unique=True),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(words, unique=True, max_size=6),
)
@settings(max_examples=25)
def test_any_text_and_number_survives(columns: list[str], mean: float, vocabulary: list[str]) -> None:
    schema = Schema(
        nodes=Nodes(id=columns[0], missing=tuple(vocabulary)),
        features=(
            Feature(tuple(columns), "numeric", mean=mean, scale="standard"),
            Feature(("a*",), "category", vocabulary=tuple(vocabulary)),
        ),
    )
    assert Schema.from_toml(schema.to_toml()) == schema


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 9", "format is 9"),
        ("format = 1", "format = 1\nnods = 2", "you mean 'nodes'"),
        ('id = "id"', "id = 7", "[nodes]: id is 7"),
        ('id = "id"', "idd = 7", "[nodes]: unknown key 'idd'"),
        ('classes = ["no", "yes"]', 'classes = ["no", "no"]', "twice"),
        ('class_names = ["paid", "failed"]', 'class_names = ["paid"]', "name for each"),
        ('delimiter = ";"', 'delimiter = ";;"', "one character"),
        ('direction = "mutual"', 'direction = "up"', "unknown direction 'up'"),
        ('parts = "60/20/20"', 'parts = "60/20"', "three percentages"),
        ('kind = "time"', 'kind = "luck"', "split 'luck'"),
        ('column = "since"\n', "", "needs one"),
        ('scale = "log"', 'scale = "logs"', "number 1: unknown scale 'logs'"),
        ('until = "2024-12-31"', 'until = "soon"', "until is 'soon'"),
        ("sd = 0.25", "sd = 0", "sd is 0.0"),
        ("missing = 0.0", 'missing = "guess"', "missing is 'guess'"),
        ("flag = true", "width = 3", "'numeric' takes only"),
        ("flag = true", 'flag = "yes"', "true or false"),
        ('kind = "set"', 'kind = "sett"', "number 3: unknown kind"),
        ('"0..99"', '"9..0"', "range"),
        ('columns = ["tags"]', 'columns = ["income"]', "column 'income'"),
        ('query = "SELECT * FROM people JOIN more USING (id)"\n', "", "query must say"),
        ("[[features]]", "[features", "is not TOML"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "schema.toml"
    file.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        Schema.load(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_numbers_in_names_sort_by_size() -> None:
    assert sorted(["w10", "w2", "b", "w1"], key=natural) == ["b", "w1", "w2", "w10"]
