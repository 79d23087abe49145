"""What algorithms promise that bring a network of their own, built of the backbone's layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from play import Play, build, finite
from toys import ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.nn.layers import num_weights

NAMES = [name for name in algorithms.names() if hasattr(algorithms.find(name), "network")]
PAIRS = [(name, backbone) for name in NAMES for backbone in backbones.names()]
NOT_SMALL_ENOUGH = ("fedstar", "sgc")
"""SGC has no hidden layer, so even one unit of structure is more than it has: see FedStar's own tests."""


def test_they_are_found() -> None:
    assert NAMES == ["fedlit", "fedstar"]


def weights(algorithm: Any, task: Task) -> int:
    return num_weights(algorithm.network(task).shapes(task))


@pytest.mark.parametrize(("name", "backbone"), [pair for pair in PAIRS if pair != NOT_SMALL_ENOUGH])
@pytest.mark.parametrize("task", [Task(500, 3), Task(300, 10)])
def test_matched_networks_have_as_many_weights_as_the_backbone(name: str, backbone: str, task: Task) -> None:
    algorithm = build(name, backbone, match_parameters=True)
    width, step = algorithm.network(task).hidden, 8 if backbone == "gat" else 1  # 8 heads: widths in steps of 8
    target = num_weights(algorithm.backbone.shapes(task))
    gaps = {
        hidden: abs(weights(build(name, backbone, hidden=hidden), task) - target)
        for hidden in (width, width - step, width + step)
    }
    assert width < 64
    assert gaps[width] == min(gaps.values())
    assert gaps[width] < (0.25 if backbone == "gat" else 0.06) * target
    assert weights(algorithm, task) == gaps[width] + target or weights(algorithm, task) == target - gaps[width]


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
def test_the_page_lists_the_sizes_for_pubmed(name: str, backbone: str) -> None:
    task, plain, matched = Task(500, 3), build(name, backbone), build(name, backbone, match_parameters=True)
    page = (Path(__file__).parents[2] / "docs" / "algorithms" / f"{name}.md").read_text()
    (row,) = re.findall(rf"^\|[^|]*\b{backbone.upper()}\b[^|]*(\|.*H = .*)$", page, flags=re.MULTILINE)
    sizes = [num_weights(plain.backbone.shapes(task)), weights(plain, task)]
    width = matched.network(task).hidden
    assert row == "".join(f"| {size:,} " for size in sizes) + f"| {weights(matched, task):,} (H = {width}) |"


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
def test_matched_networks_train(name: str, backbone: str) -> None:
    game = Play(build(name, backbone, hidden=16, match_parameters=True), stack(ragged_federation()), rounds=2)
    assert finite(game.server, game.client, game.logits())


@pytest.mark.parametrize(("name", "backbone"), PAIRS)
def test_they_start_from_glorot_whatever_the_backbone_does(name: str, backbone: str) -> None:
    """With U(0, 1) the logits of networks this deep would be in the hundred thousands, or ten millions."""
    game = Play(build(name, backbone, init="uniform01"), stack(ragged_federation()))
    assert game.logits().abs().mean() < 1


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_module_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=rf"backbone is 'torch.nn:Bilinear', but {name} builds its own network"):
        build(name, "torch.nn:Bilinear")
