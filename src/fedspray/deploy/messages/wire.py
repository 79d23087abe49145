"""What crosses between the machines, as plain values: JSON, and arrays by name.

Both ends distrust what they read: only arrays of numbers, under names, are taken, no more bytes of them than the
agreed algorithm sends, and texts only as far as a terminal can show them.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save

from fedspray.engine.worker import Request
from fedspray.errors import printable
from fedspray.files import Json
from fedspray.nn import tree
from fedspray.nn.tree import Message

Arrays = dict[str, np.ndarray[Any, Any]]
CONSENT = "consent"
"""The step before the first round of a job: whether a site takes part in this run. It may take a person to answer."""
HOLD, LONGEST_HOLD = 30.0, 300.0
"""Seconds that a site waits for its person before it answers that it has not decided, and is asked again: at first,
and at most."""
SUM = "sum"
"""The step in which sites do what is asked of them, and mask what they send."""
GUARD = "secure-sum"
"""Before the names of arrays that belong to a step."""


class Malformed(ValueError):
    """A message from another machine that is not what it should be."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))  # it may quote the message


@dataclass(frozen=True)
class Ask:
    """What the server asks of one site."""

    seed: int
    request: Request
    message: Message
    step: str | None = None
    """Where the server sees sums only: which step of the protocol this is."""
    turn: int = 0
    """No two steps have the same."""
    guard: Message = field(default_factory=dict)
    """What belongs to the step."""

    def pack(self) -> tuple[Json, Arrays]:
        """As JSON and arrays."""
        head = {"seed": self.seed, "request": asdict(self.request), "step": self.step, "turn": self.turn}
        return head, _arrays(self.message | tree.prefixed(GUARD, self.guard))

    @classmethod
    def unpack(cls, head: Any, arrays: Any) -> Ask:
        """The inverse of `pack`."""
        _check_keys(head, {"seed": int, "request": dict, "step": (str, type(None)), "turn": int})
        flag, number, maybe = bool, int, (int, type(None))
        _check_keys(
            head["request"],
            {
                **{"round_index": number, "train": flag, "evaluate": flag, "detail": flag},
                **{"best_round": maybe, "from_round": maybe},
            },
        )
        everything = _message(arrays)
        message = {name: value for name, value in everything.items() if not name.startswith(f"{GUARD}.")}
        guard = tree.part_of(everything, GUARD)
        return cls(head["seed"], Request(**head["request"]), message, head["step"], head["turn"], guard)


HEAD = {
    "trained": "whether the site trained",
    "error": "what failed: sentences about agreement, version and rounds, of other errors their kind only",
    "undecided": "whether a person at the site has yet to accept or refuse the run",
    "model": "sha256 of the personal model, at the end of a run: whether two models are the same",
    "seconds": "how long it took, and so about how much data there is",
    "cpu_seconds": "the same, in CPU time",
    "seed": "nothing: which request it answers",
    "round_index": "nothing: which request it answers",
    "ledger": "the hash of the site's ledger up to this answer",
}
"""What an answer holds beside arrays, and what each field reveals."""


@dataclass(frozen=True)
class Reply:
    """What one site answers."""

    uplink: Message = field(default_factory=dict)
    counts: Message = field(default_factory=dict)
    trained: bool = False
    error: str | None = None
    """Why the site could not do what was asked."""
    undecided: bool = False
    """Whether the site has yet to say if it takes part."""
    model: str | None = None
    """sha256 of the site's personal model, at the end of a run."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    seed: int | None = None
    """What it answers: the seed and round that were asked. None: the request could not be read."""
    round_index: int | None = None
    ledger: str | None = None
    """sha256 that ends the line of the site's ledger about this answer, and with it all lines before."""

    def pack(self) -> tuple[Json, Arrays]:
        """As JSON and arrays."""
        arrays = _arrays(tree.prefixed("uplink", self.uplink) | tree.prefixed("counts", self.counts))
        return {name: getattr(self, name) for name in HEAD}, arrays

    @classmethod
    def unpack(cls, head: Any, arrays: Any) -> Reply:
        """The inverse of `pack`."""
        text, number, maybe = (str, type(None)), (float, int), (int, type(None))
        _check_keys(
            head,
            {
                **{"trained": bool, "error": text, "undecided": bool, "model": text},
                **{"seconds": number, "cpu_seconds": number, "seed": maybe, "round_index": maybe, "ledger": text},
            },
        )
        for name in ("seconds", "cpu_seconds"):
            if not (math.isfinite(head[name]) and head[name] >= 0):
                raise Malformed(f"{name} is {head[name]}, but must be a time")
        for name in ("model", "ledger"):
            if head[name] is not None and not re.fullmatch("[0-9a-f]{64}", head[name]):
                raise Malformed(f"{name} is {head[name][:80]!r}, but must be a sha256")
        if head["error"] is not None:
            head = {**head, "error": printable(head["error"])}
        message = _message(arrays)
        for name, value in message.items():
            if value.dim() == 0 or value.shape[0] != 1:
                raise Malformed(f"{name} has shape {list(value.shape)}, but one client's row is needed")
        return cls(uplink=tree.part_of(message, "uplink"), counts=tree.part_of(message, "counts"), **head)


def hold(turn: int) -> float:
    """How long a site may hold back its answer to the question of consent: longer each time it is asked."""
    return min(HOLD * 2.0 ** max(0, min(turn - 1, 10)), LONGEST_HOLD)


def freeze(arrays: Arrays) -> bytes:
    """Arrays as one piece: NVFlare would fetch each array on its own, which takes longer than the round itself."""
    return bytes(save(arrays))


def thaw(frozen: Any, at_most: int) -> Arrays:
    """The inverse of `freeze`; reading runs no code, and more than ``at_most`` bytes are not read at all."""
    if not isinstance(frozen, bytes):
        raise Malformed(f"bytes are needed, but {type(frozen).__name__} came")
    if len(frozen) > at_most:
        raise Malformed(f"{len(frozen):,} bytes came, but no message has more than {at_most:,}")
    try:
        arrays: Arrays = load(frozen)
    except Exception as error:
        raise Malformed(f"the arrays cannot be read ({error})") from None
    return arrays


def _arrays(message: Message) -> Arrays:
    return {name: value.detach().contiguous().numpy() for name, value in message.items()}


def _message(arrays: Any) -> Message:
    if not isinstance(arrays, Mapping):
        raise Malformed(f"arrays by name are needed, but {type(arrays).__name__} came")
    for name, value in arrays.items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            raise Malformed(f"{name!r} is not an array of numbers")
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def _check_keys(head: Any, kinds: Mapping[str, Any]) -> None:
    if not isinstance(head, dict) or set(head) != set(kinds):
        raise Malformed(f"the fields {sorted(kinds)} are needed, but {reprlib.repr(head)} came")
    for name, kind in kinds.items():
        if not isinstance(head[name], kind) or (isinstance(head[name], bool) and kind is not bool):
            raise Malformed(f"{name} is {reprlib.repr(head[name])}, which is not of the right type")
