from __future__ import annotations

import pytest

from fedspray import federate
from fedspray.cli.main import run_command
from fedspray.errors import MissingDataError


def test_the_demo_without_data_and_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = federate.build_federation

    def offline(dataset: str) -> object:
        if dataset == "pubmed":
            raise MissingDataError("no network")
        return real(dataset, nodes=400)

    monkeypatch.setattr("fedspray.build_federation", offline)
    assert run_command(["demo", "--rounds", "2"]) == 0
    captured = capsys.readouterr()
    assert "no network" in captured.err
    for name in ("fedavg", "fedspray", "fedspray2"):
        assert f"{name}: 2 rounds …" in captured.err.splitlines()
        assert f" {name} " in captured.out
