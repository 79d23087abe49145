"""The paper's PubMed federation as seven site processes: the same curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from federations import fedspray, result

from fedspray import build_federation, run
from fedspray.engine.local import single_blocks

ROUNDS = 20


@pytest.mark.nightly
@pytest.mark.data
def test_seven_sites_twenty_rounds(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    lists = real_data / "partitions" / "PubMed"
    flags = ["--dataset", "pubmed", "--partitioner", "files", "--partition-dir", str(lists), "--rounds", str(ROUNDS)]
    there = result(fedspray("deploy", "local", *flags, "--out", tmp_path / "there", "--json"))
    assert len(there["engine"]["site_pids"]) == 7

    # Sites train alone; here the clients do too, since stacked ones differ in their last bits.
    monkeypatch.setattr("fedspray.engine.local.choose_blocks", lambda federation, _, **more: single_blocks(federation))
    here = run(build_federation("pubmed", partitioner="files", partition_dir=lists), rounds=ROUNDS)
    assert there["models"] == here.summary()["models"]
    assert curve(records(tmp_path / "there" / "runs" / "run")) == curve(here.seeds[0].records)
    assert there["engine"]["overhead_per_round"] > 0


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "seed-0" / "rounds.jsonl").read_text().splitlines()]


def curve(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["round"], row["train"], row["val"], row["test"]) for row in rows]
