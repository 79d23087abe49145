"""A privacy budget over NVFlare: ε in records, result, ledgers and report is that of the run in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("dp_accounting")

from federations import fedspray, result

from fedspray import files
from fedspray.deploy.ledger import read_answers, what_left
from fedspray.report.findings import privacy
from fedspray.report.html import write_report

ROUNDS = 3
RUN = ["--dataset", "banks", "--clients", "3", "--nodes", "120", "--rounds", str(ROUNDS), "--algorithm", "fedavg"]


@pytest.mark.slow
def test_epsilon_is_the_same_everywhere(tmp_path: Path) -> None:
    run = [*RUN, "--link", "dp epsilon=4", "--seed", "0", "--json"]
    here = result(fedspray("run", *run, "--out", tmp_path / "here"))
    there = result(fedspray("deploy", "local", *run, "--out", tmp_path / "there"))
    (mine,), (theirs,) = here["seeds"], there["seeds"]
    assert mine["privacy"] == theirs["privacy"]
    assert theirs["privacy"]["epsilon"] == pytest.approx(4, abs=1e-3)
    folder = tmp_path / "there" / "runs" / "run"
    spent = [line["privacy"] for line in files.read_lines(folder / "seed-0" / "rounds.jsonl")]
    assert spent == [line["privacy"] for line in files.read_lines(tmp_path / "here" / "seed-0" / "rounds.jsonl")]
    assert [each["epsilon"] for each in spent] == sorted(each["epsilon"] for each in spent)
    for site in ("bank_00", "bank_01", "bank_02"):
        kit = tmp_path / "there" / "kits" / site
        updates = [line for line in read_answers(kit) if "privacy" in line and line["round"] <= ROUNDS]
        assert [line["privacy"] for line in updates] == spent
        fields = what_left(kit)["run"]["fields"]
        assert "Gaussian noise" in fields["uplink.gnn.conv1.weight"]["protection"]
        assert fields["uplink.num_train"]["protection"] == "not sent: every client sends 1"
        assert (kit / "models" / "run" / "seed-0.figures.json").is_file()  # nobody else has them
    assert {row["overall"] for row in theirs["clients"].values()} == {None}
    for name, where in (("here", tmp_path / "here"), ("there", folder)):
        write_report([where], tmp_path / f"{name}.html")
        assert privacy(mine["privacy"]) in (tmp_path / f"{name}.html").read_text()
