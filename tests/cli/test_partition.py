from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedspray.cli.main import run_command
from fedspray.data.federation import Federation

BANKS = ["partition", "--dataset", "banks", "--clients", "3", "--nodes", "600"]


def test_a_federation_is_saved_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "banks"
    assert run_command([*BANKS, "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    federation = Federation.load(out)
    assert (summary["num_clients"], summary["total_nodes"]) == (3, 600)
    assert summary["total_edges"] == sum(client.graph.num_edges for client in federation.clients)
    assert (summary["smallest_client"], summary["largest_client"]) == (200, 200)
    assert summary["out"] == str(out)
    assert summary["bytes"] == sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    assert summary["settings"] == dict(federation.settings)
    assert list(summary) == [
        "out",
        "name",
        "num_clients",
        "num_features",
        "num_classes",
        "total_nodes",
        "total_edges",
        "smallest_client",
        "largest_client",
        "bytes",
        "seconds",
        "settings",
    ]


def test_the_summary_for_people_names_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "banks"
    assert run_command([*BANKS, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "3 clients, 600 nodes" in " ".join(captured.out.split())
    assert f"fedspray inspect --dataset {out}" in captured.err
    assert run_command(["inspect", "--dataset", str(out)]) == 0


def test_the_same_seed_gives_the_same_folder(tmp_path: Path) -> None:
    for name, seeds in (("a", []), ("b", []), ("c", ["--partition-seed", "1"]), ("d", ["--seed", "1"])):
        assert run_command([*BANKS, *seeds, "--out", str(tmp_path / name)]) == 0
    a, b, c, d = (json.loads((tmp_path / name / "manifest.json").read_text())["files"] for name in "abcd")
    assert a == b
    graph = next(file for file in a if file.endswith("graph.npz"))
    assert a[graph] != c[graph]
    assert a[graph] == d[graph]
    assert a[graph.replace("graph.npz", "split.npz")] != d[graph.replace("graph.npz", "split.npz")]


def test_a_folder_with_content_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert run_command([*BANKS, "--out", str(tmp_path)]) == 2
    assert "not empty: choose" in capsys.readouterr().err


def test_a_folder_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run_command([*BANKS, "--out", str(tmp_path / "file" / "banks")]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_million_nodes_in_under_a_minute_and_4_gb(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from fedspray.cli.main import run_command; "
        "code = run_command(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    arguments = ["partition", "--dataset", "banks", "--clients", "100", "--nodes", "1000000", "--json"]
    started = time.perf_counter()
    outcome = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--out", str(tmp_path / "banks")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert time.perf_counter() - started < 60
    assert int(outcome.stderr.split()[-1]) * 1024 < 4e9
    summary = json.loads(outcome.stdout)
    assert (summary["num_clients"], summary["total_nodes"]) == (100, 1_000_000)
