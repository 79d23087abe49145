"""New rows and schemas, a thousand wrong inputs each: one sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed import CHANGES, SCHEMA, sound, which

import fedspray as fs
from fedspray.cli.main import run_command
from fedspray.data.federation import Federation
from fedspray.errors import InputError
from fedspray.tables import asking
from fedspray.tables.schema import Schema

quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
thousand = settings(quick, max_examples=1_000)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of bank b0."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "schema.toml").write_text(SCHEMA)
    for name, text in sound().items():
        (folder / f"{name}.csv").write_bytes(text)
    made = asking.make(asking.Files(folder / "schema.toml"), folder / "out", None, strict=True).made
    assert isinstance(made, Federation)
    fs.run(made, "fedspray2", rounds=1, hidden=4, progress=False).models["b0"].save(folder / "b0")
    return folder / "b0"


def predict(model: Path, data: st.DataObject) -> None:
    """New rows and edges with something wrong: what cannot be used is left out and said, or all is refused."""
    content = sound()
    if data.draw(st.booleans(), "at random"):
        raw = bytearray(content[name := which(data)])
        for _ in range(data.draw(st.integers(1, 5))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        content[name] = bytes(raw)
    else:
        data.draw(st.sampled_from(CHANGES))(data, content)
    folder = Path(tempfile.mkdtemp())
    try:
        for name, text in content.items():
            (folder / f"{name}.csv").write_bytes(text)
        out = folder / data.draw(st.sampled_from(["p.csv", "p.parquet"]))
        words = ["--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv")]
        code = run_command(["predict", "--model", str(model), *words, "--out", str(out), "--json"])
        assert code in (0, 2)
        assert out.exists() == (code == 0)
        assert {file.name for file in folder.iterdir()} <= {"nodes.csv", "edges.csv", out.name}
    finally:
        shutil.rmtree(folder)


@quick
@given(data=st.data())
def test_some_malformed_rows_to_predict(model: Path, data: st.DataObject) -> None:
    predict(model, data)


@pytest.mark.nightly
@thousand
@given(data=st.data())
def test_a_thousand_malformed_rows_to_predict(model: Path, data: st.DataObject) -> None:
    predict(model, data)


def read_schema(data: st.DataObject) -> None:
    """A schema with lines that are changed, repeated, moved or lost: it is read, or refused in one sentence."""
    lines = SCHEMA.splitlines()
    values = st.sampled_from(
        ["true", "1.5", "-3", '""', '"no"', "[]", '["a", "a"]', "{}", "nan", "[1, 2]", '"*"', "'''", "", "1979-05-27"]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["value", "twice", "lost", "key", "bytes"]))
        key, _, _ = lines[place].partition(" = ")
        if kind == "value":
            lines[place] = f"{key} = {data.draw(values)}"
        elif kind == "twice":
            lines.insert(data.draw(st.integers(0, len(lines))), lines[place])
        elif kind == "lost" and len(lines) > 1:
            del lines[place]
        elif kind == "key":
            lines[place] = lines[place].replace(key, data.draw(st.sampled_from(["kind", "files", "scale", "x", "[a]"])))
        else:
            lines[place] += data.draw(st.text(max_size=3))
    said = ""
    try:
        Schema.from_toml("\n".join(lines))
    except InputError as error:
        said = str(error)
    assert "\n" not in said


@settings(quick, max_examples=200)
@given(data=st.data())
def test_malformed_schemas(data: st.DataObject) -> None:
    read_schema(data)


@pytest.mark.nightly
@settings(thousand, max_examples=5_000)
@given(data=st.data())
def test_thousands_of_malformed_schemas(data: st.DataObject) -> None:
    read_schema(data)
