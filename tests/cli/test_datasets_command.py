from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedspray.cli.main import run_command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def test_the_catalogue_says_what_is_at_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "PubMed" / "raw").mkdir(parents=True)
    (folder / "PubMed" / "raw" / "ind.pubmed.x").write_text("")
    (folder / "Physics" / "raw").mkdir(parents=True)  # empty: not at hand
    assert run_command(["datasets", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in content["datasets"]}
    assert {"pubmed", "cora", "citeseer", "physics", "cs", "wikics", "flickr", "arxiv", "banks"} <= set(rows)
    assert [name for name, row in rows.items() if row["at_hand"]] == ["banks", "pubmed"]
    assert rows["pubmed"]["num_nodes"] == 19717
    assert rows["pubmed"]["default_clients"] == 7
    assert content["folders"][0] == str(folder)
    assert list(rows["pubmed"]) == list(rows["banks"])


@pytest.mark.usefixtures("folder")
def test_the_table_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["datasets"]) == 0
    captured = capsys.readouterr()
    assert "19,717" in captured.out
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "looked up" in captured.err
