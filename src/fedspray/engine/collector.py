"""The server's side of secure aggregation; `engine.secure` tells the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedspray.engine.secure import HOLDERS, Ask, NotOpened, digest_of, key_of, pair_mask, raw, threshold, words_of
from fedspray.links import _masks
from fedspray.links._masks import SECRET, Words
from fedspray.links.secure_sum import SecureSum
from fedspray.nn.tree import Message


class Collector:
    """The server's side.

    Args:
        link: what is to be guarded.
        client_ids: whom to ask for keys.
        ask: reaches them.
        num_classes: for algorithms that send vectors of classes: it is found out first how many clients hold each.
        first: the number of the first session; clients take only numbers that grow.
    """

    def __init__(
        self, link: SecureSum, client_ids: Sequence[int], ask: Ask, num_classes: int = 0, *, first: int = 1
    ) -> None:
        self._link, self._ids, self._ask, self._num_classes = link, tuple(client_ids), ask, num_classes
        self._keys: dict[int, Message] = {}
        self._letters: Mapping[int, Message] = {}
        self._holders: tuple[int, ...] = ()
        self._number, self._slot = first - 1, 0
        self.stale = True
        """New keys are needed: the old ones are used up, or somebody was lost."""

    @property
    def members(self) -> tuple[int, ...]:
        """Who has keys."""
        return tuple(sorted(self._letters))

    def prepare(self) -> None:
        """Gets ready for a sum: new keys, if they are needed."""
        if not self.stale and self._slot < self._link.key_rounds:
            self._slot += 1
            return
        self._number, self._slot, self._holders = self._number + 1, 0, ()
        asked: Message = {"number": torch.tensor([self._number])}
        self._keys = dict(self._ask("keys", dict.fromkeys(self._ids, asked)))
        self._check_enough("sent keys", self._keys)
        everything = {f"{k}.{name}": part for k, own in self._keys.items() for name, part in own.items()}
        self._letters = self._ask("shares", dict.fromkeys(self._keys, everything))
        self._check_enough("exchanged keys", self._letters)
        self.stale = False
        if self._num_classes:
            sent = self._ask(HOLDERS, dict.fromkeys(self.members, self.enclosed(())))
            held = self.open({k: words_of(message) for k, message in sent.items()})
            self._holders = tuple(held.astype(np.int64).tolist())
        self._slot = 1

    def enclosed(self, trainers: Sequence[int]) -> Message:
        """What clients must know to mask their part of a sum."""
        lists = {"members": self.members, "trainers": sorted(trainers), HOLDERS: self._holders, "slot": [self._slot]}
        return {name: torch.tensor([list(ids)], dtype=torch.int64) for name, ids in lists.items()}

    def open(self, sent: Mapping[int, Words]) -> Words:
        """The sum of what these clients meant by what they sent; raises `NotOpened` if too few go on."""
        survivors, members = sorted(sent), self.members
        self.stale = self.stale or len(survivors) < len(members)
        self._check_enough("sent their part", survivors)
        listed: Message = {"survivors": torch.tensor([survivors])}
        signed = self._ask("confirm", dict.fromkeys(survivors, listed))
        self._check_enough("confirmed the list", signed)
        signatures = {f"signature.{k}": message["signature"] for k, message in signed.items()}
        letters = {k: {f"letter.{j}": self._letters[j][str(k)] for j in members} for k in signed}
        opened = self._ask("unmask", {k: {**signatures, **own} for k, own in letters.items()})
        self._check_enough("gave their shares", opened)
        return self._without_masks(sent, {k: raw(message["shares"]) for k, message in opened.items()})

    def _without_masks(self, sent: Mapping[int, Words], shares: Mapping[int, bytes]) -> Words:
        total = added(sent.values())
        keys = {k: raw(message["keys"]) for k, message in self._keys.items()}
        places = {k: place + 1 for place, k in enumerate(sorted(keys))}
        digest = digest_of(keys)
        for row, k in enumerate(self.members):
            own = slice(row * SECRET, (row + 1) * SECRET)
            chosen = list(shares.items())[: threshold(keys)]
            secret = _masks.join_secret({places[giver]: given[own] for giver, given in chosen})
            if k in sent:
                total -= _masks.stream(_masks.derived(secret, b"own mask"), len(total))
                continue
            private = _masks.key_from(secret)
            if private.public_key().public_bytes_raw() != key_of(keys[k], self._slot):
                raise NotOpened(f"the shares of client {k}'s key do not fit together: a client gave a wrong one")
            for other in sent:  # what k would have sent to cancel the masks that the others have with it
                total += pair_mask(private, keys[other], (k, other), digest, self._slot, len(total))
        return total

    def _check_enough(self, what: str, ids: Sequence[int] | Mapping[int, Any]) -> None:
        needed = max(self._link.clients, threshold(self._keys))
        if len(ids) < needed:
            self.stale = True
            raise NotOpened(f"{len(ids)} of {len(self._ids)} clients {what}, but secure-sum needs {needed}")


def added(vectors: Iterable[Words]) -> Words:
    """The sum modulo 2^64."""
    return np.asarray(np.sum(list(vectors), axis=0, dtype=np.uint64))
