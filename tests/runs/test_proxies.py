from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toys import ragged_federation

import fedspray
from fedspray.runs import proxies
from fedspray.runs import run as module
from fedspray.runs.proxies import ClassProxies


def test_alignment_of_the_reported_round(tmp_path: Path) -> None:
    result = fedspray.run(ragged_federation(), "fedspray", rounds=6, out=tmp_path / "run", hidden=8)
    kept = ClassProxies.load(tmp_path / "run" / "seed-0" / proxies.FILE)
    # The server's rule: S[j] = Σ_k a_jk S_k[j] / Σ_k a_jk.
    expected = torch.einsum("kc,kcd->cd", kept.weight, kept.own) / kept.weight.sum(dim=0)[:, None]
    assert torch.allclose(kept.aligned, expected, atol=1e-6)
    model = result.models["client_00"].snapshot
    assert model.round_index == result.seeds[0].metrics["best_round"]
    assert torch.equal(model.message["class_proxies"][0], kept.aligned)
    assert kept.clients.tolist() == [0, 1, 2]
    assert not torch.equal(kept.sent, kept.aligned)


@pytest.mark.parametrize("algorithm", ["local", "fedavg"])
def test_algorithms_without_proxies_keep_none(tmp_path: Path, algorithm: str) -> None:
    fedspray.run(ragged_federation(), rounds=2, out=tmp_path / "run", algorithm=algorithm)
    assert not (tmp_path / "run" / "seed-0" / proxies.FILE).exists()


@pytest.mark.parametrize("stop_after", [1, 4, 6])
def test_a_resumed_run_keeps_the_same_proxies(tmp_path: Path, stop_after: int) -> None:
    federation = ragged_federation()
    fedspray.run(federation, rounds=6, out=tmp_path / "whole", algorithm="fedproto")

    def stop(seed: int, record: dict[str, object]) -> None:
        if record["round"] == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedspray.run(federation, rounds=6, out=tmp_path / "cut", algorithm="fedproto", on_record=stop)
    settings, _ = module.load_settings(tmp_path / "cut")
    module.carry_out(federation, settings, tmp_path / "cut")
    whole, cut = (ClassProxies.load(tmp_path / name / "seed-0" / proxies.FILE) for name in ("whole", "cut"))
    for name in ("clients", "sent", "own", "weight", "aligned"):
        assert torch.equal(getattr(whole, name), getattr(cut, name))
