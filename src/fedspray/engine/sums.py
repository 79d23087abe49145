"""What is added up in an exchange that hands the server nothing but sums, and both sides of it in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from torch import Tensor

from fedspray.engine.collector import Collector
from fedspray.engine.member import Member
from fedspray.engine.rounds import Answers, Sums
from fedspray.engine.secure import HOLDERS, NotOpened, Unsafe, words_of
from fedspray.engine.worker import Request
from fedspray.evaluation.metrics import Counts
from fedspray.links._masks import Words, from_fixed, to_fixed
from fedspray.links.base import Link
from fedspray.links.secure_sum import SecureSum
from fedspray.messages import Declared, addends, from_sums, key_of
from fedspray.nn import tree
from fedspray.nn.tree import Message

COARSE = 4
"""Bits after the point of counts and of numbers of pairs, which are whole or half."""


@dataclass(frozen=True)
class SumLayout:
    """Where each number of an exchange stands in the one vector that is added up."""

    rows: tuple[tuple[str, tuple[int, ...], int], ...]
    """Name, shape without the client's axis, and bits after the point."""
    uplink: Mapping[str, torch.dtype]
    declared: Declared
    parties: int

    @classmethod
    def of(cls, declared: Declared, uplink: Message, counts: Message, link: SecureSum, parties: int) -> SumLayout:
        """For messages of this form (one client's or several clients')."""
        rows = []
        for name, value in sorted(summands(declared, uplink, counts, counts).items()):
            part, _, key = name.partition(".")
            whole = key == "evaluation.ranks" or (part == "uplink" and key_of(declared, key).kind.whole)
            rows.append((name, tuple(value.shape[1:]), COARSE if whole else link.bits))
        return cls(tuple(rows), {name: value.dtype for name, value in uplink.items()}, declared, parties)

    def pack(self, uplink: Message, counts: Message, best: Message) -> Words:
        """One client's vector; what it has nothing of counts as 0."""
        own = summands(self.declared, uplink, counts, best)
        empty = torch.zeros(1)
        parts = [
            to_fixed(name, own.get(name, empty.expand(prod(shape))), bits, self.parties)
            for name, shape, bits in self.rows
        ]
        return np.concatenate([np.zeros(0, dtype=np.uint64), *parts])

    def unpack(self, words: Words) -> Sums:
        """What the server makes of the sum of these vectors."""
        sums: Message = {}
        start = 0
        for name, shape, bits in self.rows:
            size = prod(shape)
            sums[name], start = from_fixed(words[start : start + size], bits).view(shape), start + size
        combined = from_sums(self.declared, tree.part_of(sums, "uplink"), {})
        typed = {name: value.to(self.uplink[name]) for name, value in combined.items()}
        return Sums(typed, tree.part_of(sums, "counts"), tree.part_of(sums, "best"))

    @property
    def length(self) -> int:
        """Numbers in the vector."""
        return sum(prod(shape) for _, shape, _ in self.rows)


def summands(declared: Declared, uplink: Message, counts: Message, best: Message) -> Message:
    """What clients add to the sums of an exchange, [K, …]: their update, their evaluation and that of the best model.

    In the report at the end, which is of the best model itself, there is no third part.
    """
    found = tree.prefixed("uplink", addends(declared, {name: value.double() for name, value in uplink.items()}))
    if counts:
        found |= tree.prefixed("counts", Counts.from_message(counts).summands())
    if best and "evaluation.round" not in best:
        known = {"known": torch.ones(len(best["evaluation.majority"]), dtype=torch.float64)}
        found |= tree.prefixed("best", {**Counts.from_message(best).summands(), **known})
    return found


def by_class(declared: Declared, uplink: Message) -> set[str]:
    """The keys with a value for each class, and the weights that say how much of a class a client has."""
    weights = {name: key_of(declared, name).weight for name in uplink}
    found = {name: weight for name, weight in weights.items() if weight is not None and uplink[weight].dim() == 2}
    return {*found, *found.values()}


def without_rare_classes(declared: Declared, uplink: Message, allowed: Tensor | None) -> Message:
    """An update that says nothing of classes that too few clients have."""
    if allowed is None or allowed.all():
        return uplink
    rare = (~allowed).nonzero()[:, 0]
    return uplink | {name: uplink[name].index_fill(1, rare, 0) for name in by_class(declared, uplink)}


class Party:
    """A client's side of every step: its `Member`, and what is added up.

    ``classes`` [C] are its training nodes of each class; ``parties`` is how many clients there are.
    """

    def __init__(self, member: Member, classes: Tensor, parties: int) -> None:
        self._member, self._classes, self._parties = member, classes, parties

    def handle(self, step: str, message: Message) -> Message:
        """Answers a step of the protocol."""
        if step != HOLDERS:
            return self._member.handle(step, message)
        held = to_fixed(HOLDERS, (self._classes > 0).float(), 0, self._parties)
        return self._member.masked(f"{HOLDERS} {self._member.session}", message, held)

    def masked(
        self, layout: SumLayout, enclosed: Message, request: Request, uplink: Message, counts: Message, best: Message
    ) -> Message:
        """What leaves in the place of an update and an evaluation."""
        shown = without_rare_classes(layout.declared, uplink, self._member.allowed(enclosed))
        return self._member.masked(f"round {request.round_index}", enclosed, layout.pack(shown, counts, best))


class LocalIdentity:
    """Keys of clients that are all in one process."""

    def __init__(self, client_id: int, known: dict[int, Ed25519PublicKey]) -> None:
        self._private, self._known = Ed25519PrivateKey.generate(), known
        known[client_id] = self._private.public_key()
        self.certificate = b""

    def sign(self, text: bytes) -> bytes:
        """Ed25519."""
        return self._private.sign(text)

    def check(self, client_id: int, certificate: bytes, signature: bytes, text: bytes) -> None:
        """By the list of keys."""
        self._known[client_id].verify(signature, text)


class LocalSums:
    """Both sides, in one process; ``classes`` are, by client, its training nodes of each class, [C]."""

    def __init__(self, link: SecureSum, declared: Declared, classes: Mapping[int, Tensor]) -> None:
        self._link, self._declared, self._num_classes = link, declared, len(next(iter(classes.values())))
        known: dict[int, Ed25519PublicKey] = {}
        identities = {k: LocalIdentity(k, known) for k in classes}
        self._parties = {
            k: Party(Member(k, link, identities[k], "here"), own, len(classes)) for k, own in classes.items()
        }
        self._collector: Collector | None = None
        self.seen: list[tuple[str, int, Message]] = []
        """What the server got in the last exchange: step, client and message."""
        self._down: dict[int, int] = {}

    def add_up(self, answers: Answers, best: Mapping[int, Message], request: Request, downlink: Message) -> Answers:
        """The same answers, as the server sees them: sums alone."""
        layout = SumLayout.of(self._declared, answers.uplink, answers.counts, self._link, len(self._parties))
        if not layout.rows:
            return answers
        plain = answers.bytes_down or [tree.num_bytes(downlink) // len(self._parties)] * len(self._parties)
        self.seen, self._down = [], dict(zip(self._parties, plain, strict=True))
        try:
            sums = layout.unpack(self._summed(layout, answers, best, request))
        except (NotOpened, Unsafe) as error:
            failures = {k: answers.failures.get(k, str(error)) for k in self._parties}
            return Answers({}, (), {}, (), failures, errors=answers.errors)
        sent = {k: sum(tree.num_bytes(m) for _, j, m in self.seen if j == k) for k in self._parties}
        up, down = tuple(sent[k] for k in answers.trained), tuple(self._down.values())
        return replace(answers, uplink={}, counts={}, sums=sums, bytes_up=up, bytes_down=down)

    def _summed(self, layout: SumLayout, answers: Answers, best: Mapping[int, Message], request: Request) -> Words:
        collector = self._collector_for(answers.uplink)
        collector.prepare()
        enclosed = collector.enclosed(answers.trained)
        sent = {}
        for k in sorted({*answers.trained, *answers.evaluated}):
            own = _row(answers.uplink, answers.trained, k), _row(answers.counts, answers.evaluated, k)
            message = self._parties[k].masked(layout, enclosed, request, *own, best.get(k, {}))
            self.seen.append(("sum", k, message))
            sent[k] = words_of(message)
        return collector.open(sent)

    def _collector_for(self, uplink: Message) -> Collector:
        if self._collector is None:
            classes = self._num_classes if by_class(self._declared, uplink) else 0
            self._collector = Collector(self._link, list(self._parties), self._ask, classes)
        return self._collector

    def _ask(self, step: str, messages: Mapping[int, Message]) -> Mapping[int, Message]:
        answers = {}
        for k, message in messages.items():
            self._down[k] += tree.num_bytes(message)
            answers[k] = self._parties[k].handle(step, message)
            self.seen.append((step, k, answers[k]))
        return answers


def _row(message: Message, ids: Sequence[int], client_id: int) -> Message:
    if client_id not in ids:
        return {}
    place = ids.index(client_id)
    return {name: value[place : place + 1] for name, value in message.items()}


def as_secure_sum(link: Link) -> SecureSum:
    """The only link that asks for sums."""
    assert isinstance(link, SecureSum)
    return link
