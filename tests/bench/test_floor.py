from __future__ import annotations

import pytest
import torch
from play import build
from toys import ragged_federation, stack

from benchmarks.cases import ALGORITHMS, BACKBONES
from benchmarks.floor import floor_of
from fedspray.errors import InputError


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_round_of_bare_products(algorithm: str, backbone: str, sparse: bool) -> None:
    """FedAvg's GNN takes E steps and one more pass; a step of FedSpray's encoder comes on top."""
    batch = stack(ragged_federation(sparse=sparse), dtype=torch.float32)
    counts = {}
    for epochs in (1, 3):
        run = floor_of(build(algorithm, backbone, hidden=8, local_epochs=epochs), batch)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run()
        names = [event.name for event in profile.events()]
        counts[epochs] = {kind: sum(kind in name for name in names) for kind in ("Adam", "aten::addmm")}
    step = {"gcn": 2, "sage": 2, "sgc": 1}[backbone] + (2 if algorithm == "fedspray" else 0)
    assert (counts[1]["Adam"], counts[3]["Adam"]) == (step, 3 * step)
    assert counts[3]["aten::addmm"] > counts[1]["aten::addmm"] > 0


def test_an_unknown_backbone_is_refused() -> None:
    with pytest.raises(InputError, match="floor exists only"):
        floor_of(build("fedavg", "gat"), stack(ragged_federation()))
