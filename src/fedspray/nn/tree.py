"""Trees of tensors: how states are built, stored, cut and joined.

A state is a frozen dataclass whose fields are tensors, dicts of tensors, or further states. Every
tensor's first axis runs over clients, unless its field says otherwise (`per_train_node`); fields that
only training needs (`training_only`) are dropped from saved models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedspray.data.batch import GraphBatch

Params = dict[str, Tensor]
"""Named weights of a model; each [K, …]."""

Message = dict[str, Tensor]
"""What travels between client and server: named tensors, each [K, …], and nothing else."""

T = TypeVar("T")


def training_only(*, per_train_node: bool = False) -> Any:
    """A field that prediction does not need (moments of an optimizer, for example)."""
    return field(metadata={"training_only": True} | ({"axis": "train"} if per_train_node else {}))


def per_client() -> Any:
    """A field whose first axis runs over clients, inside a state that is otherwise per node."""
    return field(metadata={"axis": "client"})


def per_column() -> Any:
    """A field of tensors whose first axis runs over the feature columns in use; empty unless given."""
    return field(default_factory=dict, metadata={"axis": "column"})


def flatten(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    """Names every tensor of a tree: ``{"gnn.conv1.weight": …}``; without dropped parts."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    if tree is None:
        return {}
    parts = tree if isinstance(tree, Mapping) else {f.name: getattr(tree, f.name) for f in fields(tree)}
    flat: dict[str, Tensor] = {}
    for name, part in parts.items():
        flat |= flatten(part, f"{prefix}.{name}" if prefix else name)
    return flat


def restore(template: T, flat: Mapping[str, Tensor], prefix: str = "") -> T:
    """A tree like ``template`` with the tensors of ``flat``; absent parts become None."""

    def build(part: Any, name: str) -> Any:
        if isinstance(part, Tensor):
            return flat.get(name)
        if not any(key.startswith(f"{name}.") for key in flat):
            return type(part)() if isinstance(part, Mapping) and not part else None
        if isinstance(part, Mapping):
            return {key: build(value, f"{name}.{key}") for key, value in part.items()}
        return replace(part, **{f.name: build(getattr(part, f.name), f"{name}.{f.name}") for f in fields(part)})

    nested: Any = template
    if is_dataclass(nested):
        parts = {f.name: build(getattr(nested, f.name), prefix + f.name) for f in fields(nested)}
        return replace(nested, **parts)  # type: ignore[type-var, return-value]
    return {key: build(value, prefix + key) for key, value in nested.items()}  # type: ignore[return-value]


def for_prediction(state: T) -> T:
    """The state without what only training needs."""

    def kept(name: str, needless: bool) -> Any:
        part = getattr(state, name)
        return None if needless else for_prediction(part) if is_dataclass(part) else part

    parts = {f.name: kept(f.name, f.metadata.get("training_only", False)) for f in fields(state)}  # type: ignore[arg-type]
    return replace(state, **parts)  # type: ignore[type-var]


def split(state: T, batch: GraphBatch) -> list[T]:
    """Cuts the state of a batch into the states of its clients."""
    sizes = {
        "client": (1,) * batch.num_clients,
        "train": batch.train_rows.sizes,
        "column": batch.rows.columns_by_client,
    }
    cuts = _map(state, "client", lambda leaf, axis: leaf.split(sizes[axis]))
    return [_map(cuts, "client", lambda leaf, _, k=k: leaf[k].clone()) for k in range(batch.num_clients)]


def take_train(state: T, index: Tensor) -> T:
    """The state with only these training nodes."""
    return _map(state, "client", lambda leaf, axis: leaf[index.to(leaf.device)] if axis == "train" else leaf)  # type: ignore[no-any-return]


def put_train(state: T, part: T, index: Tensor) -> T:
    """``part``, with ``state``'s values for all other training nodes: the inverse of `take_train`."""
    whole = flatten(state)
    by_node = flatten(_map(state, "client", lambda _, axis: torch.tensor(axis == "train")))
    index = index.to(next(iter(whole.values())).device)

    def put(name: str, leaf: Tensor) -> Tensor:
        return whole[name].index_copy(0, index, leaf) if by_node[name] else leaf

    return restore(state, {name: put(name, leaf) for name, leaf in flatten(part).items()})


def cast(state: T, dtype: torch.dtype) -> T:
    """The state with all its floating-point tensors in ``dtype``."""
    return _map(state, "client", lambda leaf, _: leaf.to(dtype) if leaf.is_floating_point() else leaf)  # type: ignore[no-any-return]


def to(state: T, device: torch.device) -> T:
    """The state with all its tensors on ``device``; the same tensors if they are already there."""
    return _map(state, "client", lambda leaf, _: leaf.to(device))  # type: ignore[no-any-return]


def expand(params: Mapping[str, Tensor], num_clients: int) -> Params:
    """The same weights for every client, as views: […] → [K, …]."""
    return {name: value.expand(num_clients, *value.shape) for name, value in params.items()}


def prefixed(prefix: str, params: Mapping[str, Tensor]) -> Message:
    """Weights as part of a message: ``{"conv1.weight": …}`` → ``{"gnn.conv1.weight": …}``."""
    return {f"{prefix}.{name}": value for name, value in params.items()}


def part_of(message: Mapping[str, Tensor], prefix: str) -> Params:
    """The part of a message under ``prefix``: the inverse of `prefixed`."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in message.items() if name.startswith(start)}


def num_bytes(message: Mapping[str, Tensor]) -> int:
    """Bytes of a message for all its clients together, as sent (an expanded view counts for each)."""
    return sum(value.numel() * value.element_size() for value in message.values())


def _map(tree: Any, axis: str, function: Callable[..., Any]) -> Any:
    if isinstance(tree, Tensor | tuple):
        return function(tree, axis)
    if isinstance(tree, Mapping):
        return {key: _map(value, axis, function) for key, value in tree.items()}
    changed = {
        f.name: _map(getattr(tree, f.name), f.metadata.get("axis", axis), function)
        for f in fields(tree)
        if getattr(tree, f.name) is not None
    }
    return replace(tree, **changed)
