"""Predictions of rows of tables: what could not be used is said, and everything else can be put beside its row."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from malformed import SCHEMA, sound

import fedspray as fs
from fedspray import PersonalModel
from fedspray.cli.main import run_command
from fedspray.errors import InputError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PersonalModel:
    """Of bank b0."""
    folder = tmp_path_factory.mktemp("tables")
    files = {name: folder / f"{name}.csv" for name in sound()}
    for name, text in sound().items():
        files[name].write_bytes(text)
    read = fs.import_tables(fs.Schema.from_toml(SCHEMA), nodes=[str(files["nodes"])], edges=[str(files["edges"])])
    return fs.run(read.federation("banks"), "fedavg", rounds=1, hidden=4, progress=False).models["b0"]


@pytest.fixture
def customers() -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(sound()["nodes"]))


def test_skipped_rows_are_said_and_the_others_have_their_place(model: PersonalModel, customers: pd.DataFrame) -> None:
    expected = model.predict(customers)
    customers.loc[1, "since"] = "yesterday"
    customers.loc[4, "id"] = "c0"
    with pytest.warns(UserWarning, match="1 row skipped: repeated id; 1 row skipped: bad value") as warned:
        found = model.predictions([customers[:3], customers[3:]])
    assert warned[0].filename == __file__
    assert found.rows is not None
    assert found.rows.tolist() == [0, 2, 3, 5, 6, 7, 8]
    assert found.skipped == {"repeated id": 1, "bad value": 1}
    assert repr(found) == "Predictions(7 nodes, 2 rows skipped)"
    np.testing.assert_array_equal(found.probabilities, expected[found.rows])
    with pytest.warns(UserWarning, match="skipped") as warned:
        assert model.predict(customers).shape == (7, 2)
    assert warned[0].filename == __file__


def test_known_nodes_and_whole_graphs(model: PersonalModel, customers: pd.DataFrame) -> None:
    found = model.predictions(customers[6:], known=customers[:6])
    assert (found.rows is not None and found.rows.tolist(), found.skipped) == ([0, 1, 2], {})
    assert model.predictions(found.graph).rows is None


def test_a_data_frame_in_any_order(model: PersonalModel, customers: pd.DataFrame) -> None:
    expected = model.predict(customers)
    for given in (customers[::-1], customers[::-1].reset_index(drop=True)):
        np.testing.assert_array_equal(model.predict(given), expected[::-1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: pd.DataFrame(), "the data frame has no columns"),
        (lambda frame: frame[:0], "the data frame has no rows"),
        (lambda frame: frame.drop(columns="id"), "the data frame: unknown column"),
        (lambda frame: frame.assign(income=1j), "the data frame cannot be read"),
    ],
)
def test_a_data_frame_that_is_refused(model: PersonalModel, customers: pd.DataFrame, change, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=f"^{said}"):
        model.predict(change(customers))


def test_the_command_counts_what_it_skips(
    model: PersonalModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "model")
    (tmp_path / "new.csv").write_bytes(sound()["nodes"].replace(b"1014,", b"much,").replace(b"1021,", b"?,"))
    command = ["predict", "--model", str(tmp_path / "model"), "--nodes", str(tmp_path / "new.csv")]
    assert run_command([*command, "--out", str(tmp_path / "out.csv"), "--json"]) == 0
    told = capsys.readouterr()
    assert "2 rows skipped: bad value" in told.err
    summary = json.loads(told.out)
    assert (summary["nodes"], summary["problems"]) == (7, {"bad value": 2})
