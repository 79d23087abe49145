"""Faults that come and go, full disks and odd answers: the run ends with the same bits, or goes on without a site."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from federations import spoilt, stable
from sites import Sites

from fedspray import build_federation
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.operations import processes
from fedspray.deploy.operations.driver import Driver
from fedspray.deploy.operations.local import RUN, LocalFederation
from fedspray.deploy.server.progress import read_progress
from fedspray.errors import RunStopped
from fedspray.experiment import RunSettings

pytestmark = pytest.mark.slow

ROUNDS = 16
VICTIM = "bank_01"
SETTINGS = RunSettings(algorithm="fedspray", values={"rounds": ROUNDS, "min_clients": 3})
DATA = build_federation("banks", clients=3, nodes=300)


class Federation(LocalFederation):
    """A server and three sites."""

    def __init__(self, folder: Path, min_clients: int = 3) -> None:
        settings = replace(SETTINGS, values={**SETTINGS.values, "min_clients": min_clients})
        super().__init__(folder, DATA, settings, grace=5.0)
        self.run_folder = self.project.run_folder(RUN)

    @contextmanager
    def started(self, spoilt_site: str = "", path: str = "") -> Iterator[None]:
        """All processes; one of them may find other code first."""
        try:
            for kit in self._kits:
                with pytest.MonkeyPatch.context() as patch:
                    if kit.name == spoilt_site:
                        patch.setenv("PYTHONPATH", path)
                    self._start(kit)
            yield
        finally:
            processes.stop(self._kits, seconds=1.0)

    def drive(self, tend: Callable[[], None] = lambda: None) -> dict[str, Any]:
        return Driver(self.project, RUN, tell=print, tend=tend).drive()

    def at_round(self, round_index: int, act: Callable[[], None]) -> Callable[[], None]:
        """Acts once, as soon as a round is reached."""
        done: list[bool] = []

        def tend() -> None:
            if not done and read_progress(self.run_folder).get("round", 0) >= round_index:
                act()
                done.append(True)

        return tend

    def failures(self) -> dict[int, dict[str, str]]:
        """By round: the sites that failed, and why."""
        lines = (self.run_folder / "seed-0" / "rounds.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return {record["round"]: record["failed"] for record in records if record["failed"]}


def undisturbed(folder: Path, federation: Federation, missing: Callable[[int], bool] = lambda _: False) -> Any:
    """The same run in one process; ``missing`` says in which exchanges the victim is away."""
    agreement: Agreement = federation.project.agreement()
    sites = Sites(folder, DATA, agreement)
    sites.trouble = lambda name, ask: "away" if name == VICTIM and missing(ask.request.round_index) else None
    return stable(sites.run())


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Puts a folder on a disk of its own; what it held is there too."""
    aside = folder.with_name(f"{folder.name}-aside")
    folder.rename(aside) if folder.exists() else aside.mkdir()
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(folder)], check=True)
        yield folder / "filler"
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(filler: Path) -> None:
    """Leaves no byte free."""
    with filler.open("ab", buffering=0) as stream:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    stream.write(bytes(size))
            except OSError:
                continue


@pytest.mark.nightly
def test_a_full_disk_at_a_site_that_is_needed(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "federation")
    kit = federation.project.site(VICTIM)
    with small_disk(kit / "state", 4) as filler, federation.started():
        with pytest.raises(RunStopped, match=rf"{VICTIM}: DiskFull: the site's disk is full"):
            federation.drive(federation.at_round(4, lambda: fill(filler)))
        for _ in range(2):  # it is no use as long as it is full
            with pytest.raises(RunStopped, match=rf"{VICTIM}: DiskFull: the site's disk is full"):
                federation.drive()
        filler.unlink()
        result = federation.drive()
    assert stable(result) == undisturbed(tmp_path / "calm", federation)
    assert "state/run" in (kit / processes.LOG_FILE).read_text(), "the site's own log names the file"


def test_a_full_disk_at_a_site_that_is_not_needed(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "federation", min_clients=2)
    with small_disk(federation.project.site(VICTIM) / "state", 4) as filler, federation.started():
        result = federation.drive(federation.at_round(2, lambda: fill(filler)))
    failures = federation.failures()
    first = min(failures)
    assert list(failures) == list(range(first, ROUNDS + 1))
    assert all(list(failed) == [VICTIM] for failed in failures.values())
    expected = undisturbed(tmp_path / "calm", federation, lambda round_index: round_index >= first)
    assert stable(result) == expected
    assert VICTIM not in result["models"]


@pytest.mark.nightly
def test_a_full_disk_at_the_server(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "federation")
    with small_disk(federation.run_folder.parent, 4) as filler, federation.started():
        for tend in (federation.at_round(4, lambda: fill(filler)), lambda: None):
            with pytest.raises(
                RunStopped, match=rf"the disk is full: {re.escape(str(federation.run_folder))}.*--attach"
            ):
                federation.drive(tend)
        filler.unlink()
        result = federation.drive()
        assert stable(result) == undisturbed(tmp_path / "calm", federation)


# ---- odd answers --------------------------------------------------------------------------------


NAN_ONCE = """
from pathlib import Path
from safetensors.numpy import load, save
if round_index == 5 and Path(MARKER).exists():
    arrays = load(result["arrays"])
    name = next(name for name in arrays if name.endswith("weight"))
    arrays[name].flat[0] = float("nan")
    result["arrays"] = save(arrays)
"""


@pytest.mark.nightly
def test_one_nan_from_one_site(tmp_path: Path) -> None:
    federation, marker = Federation(tmp_path / "federation"), tmp_path / "marker"
    marker.touch()
    code = NAN_ONCE.replace("MARKER", repr(str(marker)))
    with federation.started(VICTIM, spoilt(tmp_path / "spoilt", code)):
        with pytest.raises(RunStopped, match=rf"round 5: .*{VICTIM}: \S+ is not finite"):
            federation.drive()
        marker.unlink()
        result = federation.drive()
    assert stable(result) == undisturbed(tmp_path / "calm", federation)


ODD_ANSWERS = """
if round_index == 3:
    result["head"]["more"] = Unlisted()
if round_index == 5:
    result["arrays"] = bytes(500_000)
if round_index == 7:
    result.set_return_code("UNSAFE_JOB")
if round_index == 9:
    result["head"] = {**result["head"], "error": "\\x1b[2J" + "x" * 10_000}
if round_index == 11:
    import safetensors.numpy as s
    arrays = s.load(result["arrays"])
    arrays["uplink.num_train"][:] = 9e11
    result["arrays"] = s.save(arrays)
"""


def test_a_site_that_answers_anything_fails_alone(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "federation", min_clients=2)
    with federation.started(VICTIM, spoilt(tmp_path / "spoilt", ODD_ANSWERS)):
        result = federation.drive()
    assert len(json.loads((federation.run_folder / "jobs.json").read_text())["jobs"]) == 1, "no job ended"
    failures = federation.failures()
    assert {index: list(failed) for index, failed in failures.items()} == {n: [VICTIM] for n in (3, 5, 7, 9, 11)}
    reasons = [failures[n][VICTIM] for n in (3, 5, 7, 9, 11)]
    for reason, part in zip(reasons, ("names the class", "bytes came", "UNSAFE_JOB", "[2Jxxx", "9e+11"), strict=True):
        assert part in reason
        assert reason.isprintable()
        assert len(reason) < 400
    assert stable(result) == undisturbed(tmp_path / "calm", federation, lambda n: n in (3, 5, 7, 9, 11))
