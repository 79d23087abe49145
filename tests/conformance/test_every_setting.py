"""Every setting of every algorithm does something."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
from play import Play, build, finite, same
from toys import permuted_federation, ragged_federation, stack

from fedspray import algorithms

COMMON: dict[str, Any] = {"local_epochs": 1, "reset_optimizer": True}
ENGINES = {"sample_nodes", "fanout", "unit_rows", "prior_shift"}
"""Settings that the worker acts on: tests/engine/test_sampling.py."""

_PERSONAL = {"extractor_rounds": 1}
_SHARES = {"share_lr": 20.0}
_EAGER = {"warmup": 0, "pause": 0, "min_members": 2, "max_ratio": 9.0, "min_gap": -2.0}
_FIXED = {**_EAGER, "threshold": "fixed", "eps1": 9.0, "eps2": 0.0}
_PLUS = {**_EAGER, "sequence_length": 2}

CHANGES: dict[str, list[tuple[str, Any, dict[str, Any]]]] = {
    "adafgl": [
        ("extractor_rounds", 0, _PERSONAL),
        ("topology_share", 0.9, _PERSONAL),
        ("propagation_steps", 1, _PERSONAL),
        ("label_steps", 0, _PERSONAL),
        ("personal_lr", 0.1, _PERSONAL),
        ("personal_weight_decay", 0.1, _PERSONAL),
        ("personal_dropout", 0.1, _PERSONAL),
    ],
    "apfl": [
        ("alpha_start", 0.1, {}),
        ("alpha_lr", 0.1, {}),
        ("alpha_update", "step", {}),
        ("alpha_update", "never", {}),
        ("alpha_decay", 0.5, {}),
        ("mix", "logits", {}),
        ("weighting", "uniform", {}),
        ("predict_with", "own", {}),
    ],
    "ditto": [("proximal_weight", 5.0, {})],
    "fed-pub": [
        ("sharpness", 3.0, {}),
        ("embedding", "hidden", {}),
        ("centre", True, {}),
        ("proxy_blocks", 2, {}),
        ("proxy_block_size", 10, {}),
        ("proxy_density", 0.5, {}),
    ],
    "fedaux": [("sharpness", 3.0, {}), ("kernel_width", 0.5, {})],
    "fedala": [
        ("mixed_layers", 2, _SHARES),
        ("share_lr", 5.0, _SHARES),
        ("share_steps", 3, _SHARES),
        ("first_share_steps", 3, _SHARES),
        ("share_start", 0.5, _SHARES),
        ("share_sample", 0.5, _SHARES),
    ],
    "fedavg": [],
    "fedgta": [
        ("similarity_threshold", 0.999, {}),
        ("num_moments", 2, {}),
        ("moments", "central", {}),
        ("moments", "hybrid", {}),
        ("propagation_steps", 1, {}),
        ("propagation_share", 0.9, {}),
        ("temperature", 1.0, {}),
        ("weighting", "uniform", {}),
    ],
    "fedlit": [
        ("link_types", 2, {}),
        ("edge_repr", "sym", {}),
        ("recluster", "round", {}),
        ("em_steps", 3, {}),
        ("self_loops", False, {}),
        ("branch_weights", "uniform", {}),
        ("share", "nothing", {}),
        ("match_parameters", True, {}),
    ],
    "fedper": [("personal_layers", 2, {}), ("personal_start", "own", {})],
    "fedproto": [("prototype_weight", 0.1, {}), ("weighting", "uniform", {}), ("predict_by", "prototype", {})],
    "fedprox": [("proximal_weight", 1.0, {})],
    "fedspray": [
        ("proxy_dim", 8, {}),
        ("distill_weight", 5.0, {}),
        ("encoder_distill_weight", 5.0, {}),
        ("confidence", 0.0, {"confidence": 0.4}),
        ("encoder_lr", 0.01, {}),
        ("encoder_weight_decay", 0.1, {}),
        ("proxy_lr", 0.1, {}),
        ("combine", "concat", {}),
        ("node_proxy_start", "kept", {}),
        ("proxy_moments", "reset", {}),
        ("class_proxy_start", 1.0, {}),
        ("projector_start", "fusion", {}),
        ("encoder_init", "uniform-out", {}),
        ("gnn_start", "own", {}),
        ("weighting", "all", {}),
        ("use_proxies", False, {}),
        ("proxy_noise", 0.5, {}),
        ("blend", 0.5, {}),
        ("blend", "auto", {}),
    ],
    "fedspray2": [
        ("embedding_dim", 8, {}),
        ("distill_weight", 1.0, {}),
        ("confidence", 0.0, {"distill_weight": 1.0}),
        ("encoder_lr", 0.1, {}),
        ("encoder_weight_decay", 0.1, {}),
        ("encoder_dropout", 0.0, {}),
        ("blend", 0.2, {}),
        ("shift", 0.9, {}),
        ("tolerance", 100.0, {"fading": 1.0}),
        ("fading", 0.0, {"fading": 0.9}),
        ("safety", "off", {}),
        ("record_clip", 0.01, {}),
        ("reads_neighbours", False, {}),
    ],
    "fedspray2-shared": [("proximal_weight", 10.0, {})],
    "fedstar": [
        ("walk_steps", 4, {}),
        ("degree_buckets", 0, {}),
        ("degree_scale", "log", {}),
        ("isolated_bucket", True, {}),
        ("head", "published", {}),
        ("personal_start", "own", {}),
        ("share", "nothing", {}),
        ("share", "everything", {}),
        ("match_parameters", True, {}),
    ],
    "gcfl": [
        ("threshold", "fixed", _EAGER),
        ("max_ratio", 0.0, _EAGER),
        ("eps1", 0.0, _FIXED),
        ("eps2", 99.0, _FIXED),
        ("min_gap", 9.0, _EAGER),
        ("warmup", 99, _EAGER),
        ("pause", 99, {**_EAGER, "pause": 1}),
        ("min_members", 99, _EAGER),
        ("cut", "complete", _EAGER),
    ],
    "gcfl-plus": [
        ("sequence", "update", _PLUS),
        ("sequence_length", 3, _PLUS),
        ("standardise", True, _PLUS),
        ("cut", "complete", _PLUS),
    ],
    "local": [("gnn_start", "own", {})],
    "moon": [
        ("contrast_weight", 5.0, {"init": "glorot"}),
        ("temperature", 0.1, {"init": "glorot"}),
        ("contrast_nodes", "all", {"init": "glorot"}),
    ],
    "scaffold": [("sgd_lr", 0.1, {}), ("server_lr", 0.5, {}), ("weighting", "uniform", {})],
}
"""For each algorithm: a setting, another value for it, and what else is set where it would not matter otherwise."""

WITHOUT_MEANING = {("scaffold", "reset_optimizer")}
"""Settings of the contract that an algorithm says it does not use."""
INHERITED = {"fedspray-plus": "fedspray", "fedspray-no-proxies": "fedspray"}
"""Algorithms without settings of their own."""
EXTENDING = {"gcfl-plus": "gcfl", "fedspray2-shared": "fedspray2"}
"""Algorithms with all settings of another, and more."""

CASES = [
    (name, setting, value, base)
    for name, changes in CHANGES.items()
    for setting, value, base in [*((setting, value, {}) for setting, value in COMMON.items()), *changes]
    if (name, setting) not in WITHOUT_MEANING
]


@cache
def _seen(name: str, **values: Any) -> dict[str, torch.Tensor]:
    """All that can be seen of an algorithm after three rounds."""
    federation = permuted_federation(num_nodes=10) if name in ("gcfl", "gcfl-plus") else ragged_federation()
    game = Play(build(name, **values), stack(federation), rounds=3)  # three clients can be cut in few ways
    assert finite(game.server, game.client, game.uplinks[-1], game.logits())
    return {"logits": game.logits(), **game.uplinks[-1]}


@pytest.mark.parametrize(
    ("name", "setting", "value", "base"), CASES, ids=[f"{name}-{setting}-{value}" for name, setting, value, _ in CASES]
)
def test_a_setting_changes_something_and_stays_finite(
    name: str, setting: str, value: Any, base: dict[str, Any]
) -> None:
    assert not same(_seen(name, **base), _seen(name, **{**base, setting: value}))


@pytest.mark.parametrize("name", algorithms.names())
def test_no_setting_is_left_out(name: str) -> None:
    own = {f.name for f in fields(algorithms.find(name))} - {"backbone"} - ENGINES
    if name in INHERITED:
        assert own == {f.name for f in fields(algorithms.find(INHERITED[name]))} - {"backbone"} - ENGINES
        return
    parent = {setting for setting, _, _ in CHANGES.get(EXTENDING.get(name, ""), [])}
    assert own == {setting for setting, _, _ in CHANGES[name]} | set(COMMON) | parent
