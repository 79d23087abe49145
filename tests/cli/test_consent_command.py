"""``fedspray site runs``, ``accept``, ``refuse`` and ``ledger --verify`` as an engineer types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from fedspray.cli.main import run_command
from fedspray.deploy import ledger
from fedspray.deploy.site import consent, policy
from fedspray.deploy.site.policy import Offer


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "site.json").write_text('{"name": "north", "data": null, "threads": 1}')
    consent.ask(tmp_path, Offer("first", "f" * 64, "fedavg", 10, 1000, 2.0))
    return tmp_path


def shown(kit: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert run_command(["site", "runs", str(kit), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_is_accepted_and_refused(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = shown(kit, capsys)["runs"]
    assert (row["answer"], row["offer"]["rounds"], row["offer"]["epsilon"]) == (None, 10, 2.0)
    assert run_command(["site", "accept", str(kit), "first"]) == 0
    (row,) = shown(kit, capsys)["runs"]
    assert (row["answer"], row["by"]) == ("yes", "engineer")
    assert run_command(["site", "refuse", str(kit), "first", "--reason", "an audit"]) == 0
    (row,) = shown(kit, capsys)["runs"]
    assert (row["answer"], row["reason"]) == ("no", "an audit")
    assert run_command(["site", "accept", str(kit), "second"]) == 2
    assert "no run 'second' has been asked for here, but one of these: first" in capsys.readouterr().err
    assert run_command(["site", "refuse", str(kit), "first"]) == 2, "a reason is needed"


def test_the_budget_that_is_left(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(kit, capsys)["epsilon_left"] is None
    (kit / "state" / policy.FILE).write_text("unasked = true\nepsilon = 3.0\n")
    ledger.write_answer(kit, {"run": "old", "seed": 0, "round": 1, "privacy": {"epsilon": 1.25}})
    assert shown(kit, capsys)["epsilon_left"] == 1.75


def test_a_ledger_is_verified(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["site", "ledger", str(kit), "--verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lines"] == 1
    assert run_command(["site", "ledger", str(kit), "--verify", "--head", found["head"]]) == 0
    assert run_command(["site", "ledger", str(kit), "--verify", "--head", "0" * 64]) == 2
    text = (kit / ledger.LEDGER).read_text()
    (kit / ledger.LEDGER).write_text(text.replace("fedavg", "fedprox"))
    assert run_command(["site", "ledger", str(kit), "--verify"]) == 2
    assert "line 1, is wrong" in " ".join(capsys.readouterr().err.split())
