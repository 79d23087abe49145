"""Scales and vocabularies of all sites together, without a row leaving one of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspray.cli.main import run_command
from fedspray.deploy.ledger import read_events
from fedspray.errors import InputError
from fedspray.tables.contribute import contribute
from fedspray.tables.importing import import_tables
from fedspray.tables.schema import Schema
from fedspray.tables.statistics import Contribution, Moments, merge

SCHEMA = """
format = 1
[nodes]
id = "id"
label = "y"
[edges]
source = "a"
target = "b"
[[features]]
columns = "income"
kind = "numeric"
scale = "standard"
[[features]]
columns = "debt"
kind = "numeric"
scale = "log"
[[features]]
columns = "since"
kind = "date"
scale = "standard"
[[features]]
columns = "region"
kind = "category"
[[features]]
columns = "tags"
kind = "set"
"""


def write_site(folder: Path, name: str, seed: int, rows: int) -> list[str]:
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(rows):
        income = "" if rng.random() < 0.1 else repr(float(rng.normal(1e6 * (seed + 1), 3.0)))
        region = "monaco" if i < 3 else str(rng.choice(["north", "south", f"only-{name}"]))
        day = f"20{rng.integers(10, 25)}-0{rng.integers(1, 10)}-11"
        label = "yes" if i % 4 else "no"
        lines.append(f'{name}{i},{income},{rng.lognormal(3, 2)!r},{day},{region},"[{i % 5}, 7]",{label}')
    header = "id,income,debt,since,region,tags,y"
    (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return lines


def test_merged_statistics_are_those_of_the_pooled_table(tmp_path: Path) -> None:
    schema = Schema.from_toml(SCHEMA)
    sites = {"north": 60, "south": 90, "west": 45}
    rows = [line for k, (name, n) in enumerate(sites.items()) for line in write_site(tmp_path, name, k, n)]
    (tmp_path / "pooled.csv").write_text("\n".join(["id,income,debt,since,region,tags,y", *rows]) + "\n")
    parts = [contribute(schema, [str(tmp_path / f"{name}.csv")], name, minimum=10) for name in sites]
    agreed = {feature.title: feature for feature in merge(schema, parts).features}
    pooled = import_tables(schema, nodes=[str(tmp_path / "pooled.csv")])
    for feature in pooled.schema.features[:3]:
        assert feature.mean is not None
        assert feature.sd is not None
        assert math.isclose(agreed[feature.title].mean or 0, feature.mean, rel_tol=1e-9)
        assert math.isclose(agreed[feature.title].sd or 0, feature.sd, rel_tol=1e-9)
    assert agreed["tags"].vocabulary == ("0", "1", "2", "3", "4", "7")
    assert merge(schema, parts).nodes.classes == ("no", "yes")


def test_a_category_with_too_few_holders_never_leaves(tmp_path: Path) -> None:
    write_site(tmp_path, "north", 0, 60)
    part = contribute(Schema.from_toml(SCHEMA), [str(tmp_path / "north.csv")], "north", minimum=10)
    text = part.to_json()
    assert "monaco" not in text  # three holders
    assert "only-north" in text
    assert part.withheld["region"] == 1
    file = tmp_path / "part.json"
    file.write_text(text)
    assert Contribution.load(file) == part
    # a column with too few numbers stays, too: the sum of one value is the value
    few = Contribution.made("a", 10, {"income": Moments.of(np.arange(9.0))}, {}, {"yes": 9, "no": 10})
    assert (dict(few.numbers), dict(few.classes)) == ({}, {"no": 10})
    assert "0.0" not in few.to_json()


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), min_size=1, max_size=4), st.floats(-1e9, 1e9))
@settings(max_examples=100)
def test_moments_add_up_whatever_the_mean(parts: list[list[float]], shift: float) -> None:
    arrays = [np.array(part) + shift for part in parts]
    added = sum((Moments.of(array) for array in arrays), Moments())
    whole = Moments.of(np.concatenate(arrays))
    scale = 1 + abs(shift) + 1e6
    assert added.count == whole.count
    assert math.isclose(added.mean, whole.mean, rel_tol=1e-12, abs_tol=1e-12 * scale)
    assert math.isclose(added.squares, whole.squares, rel_tol=1e-9, abs_tol=(1e-12 * scale) ** 2 * added.count)


def test_moments_by_hand() -> None:
    assert Moments.of(np.array([1.0, 2.0, 6.0])) == Moments(3, 9.0, 14.0)  # mean 3: 4 + 1 + 9
    assert Moments(3, 9.0, 14.0).sd == pytest.approx(math.sqrt(14 / 3))


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"numbers": {"income": {"count": -1, "sum": 0, "squares": 0}}}, {"words": {"r": {"a": "many"}}},
     {"numbers": {"income": {"count": 5, "sum": 1e999, "squares": 0}}}, {"surprise": 1}, {"words": []}],
)  # fmt: skip
def test_a_file_that_is_no_contribution_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    content = json.loads(Contribution.made("a", 10, {}, {}, {}).to_json())
    (tmp_path / "a.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(InputError, match="site's statistics"):
        Contribution.load(tmp_path / "a.json")


def test_a_site_counts_once_and_a_minimum_of_one_is_none() -> None:
    part = Contribution.made("a", 10, {}, {}, {})
    with pytest.raises(InputError, match="contributes twice"):
        merge(Schema.from_toml(SCHEMA), [part, part])
    with pytest.raises(InputError, match="minimum is 1"):
        Contribution.made("a", 1, {}, {}, {})


def test_what_may_leave_is_entered_in_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(
        'format = 1\n[nodes]\nid = "id"\n[[features]]\ncolumns = "income"\nkind = "numeric"\nscale = "standard"\n'
    )
    (tmp_path / "nodes.csv").write_text("id,income\n" + "".join(f"c{i},{i}\n" for i in range(20)))
    (tmp_path / "kit" / "local").mkdir(parents=True)
    words = [
        "schema",
        "count",
        str(tmp_path / "schema.toml"),
        "--nodes",
        str(tmp_path / "nodes.csv"),
        "--site",
        "north",
    ]
    for kit, code in (("kit", 0), ("elsewhere", 2)):
        out = tmp_path / f"{kit}.json"
        assert run_command([*words, "--kit", str(tmp_path / kit), "--out", str(out)]) == code
        assert out.exists() == (code == 0)
    (line,) = map(json.loads, (tmp_path / "kit" / "ledger.jsonl").read_text().splitlines())
    assert line["statistics"] == json.loads((tmp_path / "kit.json").read_text())
    (event,) = read_events(tmp_path / "kit")
    assert (event["event"], event["sender"]) == ("statistics", "north")
