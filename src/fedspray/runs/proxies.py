"""The clients' class vectors, before and after the server aligned them.

For algorithms that send one vector per class (FedSpray's structure proxies, FedProto's prototypes),
`ProxyKeeper` listens to the exchanges and keeps the vectors of the reported round.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedspray.engine.rounds import Answers
from fedspray.engine.worker import Request
from fedspray.files import Json
from fedspray.messages import CLASS_VECTORS, Declared, fates
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs import store
from fedspray.runs.callbacks import Callback

FILE = "proxies.safetensors"


@dataclass(frozen=True, eq=False)
class ClassProxies:
    """The class vectors of one round."""

    clients: Tensor
    """[K]: the ids of the clients that trained."""
    sent: Tensor
    """[C, D]: at the start of the round."""
    own: Tensor
    """[K, C, D]: what each client sent up."""
    weight: Tensor
    """[K, C]: how much of each class a client holds; 0 is none."""
    aligned: Tensor
    """[C, D]: as aligned by the server."""

    def save(self, path: Path) -> None:
        """Writes one safetensors file."""
        store.write_tensors(path, {f.name: getattr(self, f.name) for f in fields(self)}, {})

    @classmethod
    def load(cls, path: Path) -> ClassProxies:
        """Reads what `save` wrote."""
        tensors, _ = store.read_tensors(path)
        return cls(**{f.name: tensors[f.name] for f in fields(cls)})

    def to_json(self) -> Json:
        """Shapes, and numbers as base64 of float32 (clients: int64), little-endian."""
        return {f.name: _packed(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_json(cls, content: Json) -> ClassProxies:
        """Reads what `to_json` wrote."""
        return cls(**{f.name: _unpacked(content[f.name]) for f in fields(cls)})


class ProxyKeeper(Callback):
    """Keeps the class vectors an algorithm sends both ways, if it declares a mean of `CLASS_VECTORS`.

    Which round is best is known two exchanges later, so the vectors of the last two rounds and of the best one are
    kept. The weight of the declared vectors says how much of each class a client has.
    """

    def __init__(self, declared: Declared, tensors: Mapping[str, Tensor] | None = None) -> None:
        keys = fates(declared).items()
        self._keys = next(((name, key.weight) for name, key in keys if key.kind is CLASS_VECTORS and key.weight), None)
        held = tensors or {}
        rounds = sorted({int(name.split(".")[0]) for name in held})
        self._rounds = {r: dict(tree.part_of(held, str(r))) for r in rounds}

    def on_exchange(self, request: Request, downlink: Message, answers: Answers) -> None:
        """Records an exchange; the downlink of a round has the vectors aligned in the round before."""
        if self._keys is None or self._keys[0] not in downlink:
            return
        vectors, weight = self._keys
        received, index = downlink[vectors][0].clone(), request.round_index
        if index - 1 in self._rounds:
            self._rounds[index - 1]["aligned"] = received
        if vectors in answers.uplink:
            self._rounds[index] = {
                "clients": torch.tensor(answers.trained),
                "sent": received,
                "own": answers.uplink[vectors].clone(),
                "weight": answers.uplink[weight].clone(),
            }
        kept = {index, index - 1, request.best_round}
        self._rounds = {r: values for r, values in self._rounds.items() if r in kept}

    def at(self, round_index: int) -> ClassProxies | None:
        """The class vectors of a round, if there are any."""
        values = self._rounds.get(round_index, {})
        return ClassProxies(**values) if "aligned" in values else None

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """The state by name, for a checkpoint."""
        return {f"{r}.{name}": value for r, values in self._rounds.items() for name, value in values.items()}


def _packed(tensor: Tensor) -> Json:
    array = tensor.numpy().astype("<f4" if tensor.is_floating_point() else "<i8")
    return {"type": array.dtype.str, "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def _unpacked(content: Json) -> Tensor:
    array = np.frombuffer(base64.b64decode(content["data"]), dtype=content["type"])
    return torch.from_numpy(array.reshape(content["shape"]).copy())
