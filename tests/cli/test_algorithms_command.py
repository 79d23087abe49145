from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedspray.cli.main import run_command


def test_algorithms_are_listed_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["algorithms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"fedspray", "fedspray-plus", "fedspray-no-proxies", "fedavg", "local"} <= {row["name"] for row in rows}
    for row in rows:
        assert row["summary"]
        assert row["citation"]
        assert all(setting["description"] for setting in row["settings"])
    assert run_command(["algorithms", "fedspray"]) == 0
    assert "distill_weight" in capsys.readouterr().out


def test_brackets_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bracketed.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedspray.algorithms.fedavg import FedAvg\n"
        "from fedspray.backbones.base import setting\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Bracketed(FedAvg):\n"
        "    summary = 'weights [K, in, out]'\n"
        "    citation = '[1] somebody'\n"
        "    presets = {'[old]': {'kind': '[dim]'}}\n"
        "    kind: str = setting('[red]', 'one of [red] and [/red], in [0, 1]')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    assert run_command(["algorithms", "bracketed:Bracketed"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for shown in (
        "bracketed:Bracketed: weights [K, in, out] ([1] somebody)",
        "kind [red] one of [red] and [/red], in [0, 1]",
        "preset [old]: kind=[dim]",
    ):
        assert shown in printed
