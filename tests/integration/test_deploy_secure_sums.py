"""Secure sums over NVFlare, with a site that dies in the middle: every aggregate is the unmasked one.

Sites write down what they mean to send, and the server what it makes of the sums; the test compares both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from safetensors.torch import load_file

from fedspray import algorithms, build_federation, files
from fedspray.deploy.operations.local import RUN, LocalFederation
from fedspray.experiment import RunSettings
from fedspray.messages import combine

LOST, WHEN = 3, 4
"""The site that dies, and the round in which it does."""

WATCH = """
import os, signal, sys
line = ' '.join(sys.orig_argv)
if 'client.worker_process' in line or 'server.runner_process' in line:
    import torch
    from safetensors.torch import save_file
    from fedspray.deploy.site import executor, run
    from fedspray.engine import sums
    folder = {folder!r}

    answer = run.SiteRun.answer
    def watched(self, ask, *more):
        if self._id == {lost} and ask.request.round_index >= {when} and ask.step in (None, 'sum'):
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(self, ask, *more)
    run.SiteRun.answer = watched

    masked = sums.Party.masked
    def meant(self, layout, enclosed, request, uplink, *more):
        if uplink:
            rows = {{name: value.contiguous() for name, value in uplink.items()}}
            save_file(rows, f'{{folder}}/{{request.round_index}}-{{self._member._own}}.safetensors')
        return masked(self, layout, enclosed, request, uplink, *more)
    sums.Party.masked = meant

    unpack = sums.SumLayout.unpack
    def opened(self, words):
        found = unpack(self, words)
        if found.combined:
            index = len([name for name in os.listdir(folder) if name.startswith('sum-')]) + 1
            rows = {{name: value.contiguous() for name, value in found.combined.items()}}
            save_file(rows, f'{{folder}}/sum-{{index}}.safetensors')
        return found
    sums.SumLayout.unpack = opened
"""


class Unattended(LocalFederation):
    """A site that dies is not started again."""

    def _supervise(self, *_: Any) -> None:
        pass


def play(folder: Path, data: Any, algorithm: str, link: tuple[str, ...], rounds: int) -> tuple[dict[str, Any], Path]:
    """A run on several sites of which one dies, and where it was watched."""
    watched, patch = folder / "watched", folder / "patch"
    watched.mkdir(parents=True)
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(WATCH.format(folder=str(watched), lost=LOST, when=WHEN))
    settings = RunSettings(algorithm=algorithm, values={"rounds": rounds, "min_clients": 3}, link=link)
    with pytest.MonkeyPatch.context() as context:
        context.setenv("PYTHONPATH", os.pathsep.join([str(patch), os.environ.get("PYTHONPATH", "")]))
        found = Unattended(folder / "project", data, settings, grace=4.0)
        result = found.run(lambda _: None)
    records = files.read_lines(found.project.run_folder(RUN) / "seed-0" / "rounds.jsonl")
    return {**result, "records": records}, watched


def check(folder: Path, data: Any, algorithm: str, rounds: int, points: float) -> None:
    (plain, _), (secure, watched) = (
        play(folder / name, data, algorithm, link, rounds)
        for name, link in (("plain", ()), ("secure", ("secure-sum",)))
    )
    declared = algorithms.find(algorithm).uplink
    for record in secure["records"]:
        index, trained = record["round"], record["trained"]
        assert (LOST in trained) == (index < WHEN)
        rows = [load_file(watched / f"{index}-{k}.safetensors") for k in trained]
        wanted = combine(declared, {name: torch.cat([row[name] for row in rows]) for name in rows[0]})
        found = load_file(watched / f"sum-{index}.safetensors")
        for name, value in wanted.items():
            # A sum of many large terms has float32's own rounding in the plain way.
            assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-6 * max(1.0, float(value.abs().max()))), name
    mine, other = plain["seeds"][0], secure["seeds"][0]
    assert other["clients"] == {}
    assert [r["trained"] for r in plain["records"]] == [r["trained"] for r in secure["records"]]
    for name in ("overall", "minority"):
        assert abs(mine[name] - other[name]) <= points / 100, (name, mine[name], other[name])
    extra = [each["engine"]["overhead_per_round"] for each in (plain, secure)]
    print(f"{algorithm}: overhead per round {extra[0]:.2f} s plain, {extra[1]:.2f} s with secure sums; ", end="")
    print({name: (mine[name], other[name]) for name in ("overall", "minority", "bytes_up", "bytes_down", "best_round")})


@pytest.mark.slow
def test_four_banks(tmp_path: Path) -> None:
    check(tmp_path, build_federation("banks", clients=4, nodes=200), "fedspray", 5, 0.1)


@pytest.mark.nightly
@pytest.mark.data
@pytest.mark.parametrize("algorithm", ["fedavg", "fedspray2"])
def test_pubmed_on_seven_sites(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(real_data))
    data = build_federation("pubmed", partitioner="files", partition_dir=real_data / "partitions" / "PubMed")
    check(tmp_path, data, algorithm, 12, 0.1)
