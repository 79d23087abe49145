"""Secure aggregation: how clients and server find a sum that reveals nothing but itself.

The protocol is that of Bonawitz et al. (CCS 2017) with its signatures against a server that lies, over all pairs of
clients. Keys for several sums are made at once. With n clients and t = ⌊2n/3⌋ + 1:

    keys      everyone signs fresh X25519 keys: one to seal letters, and one for each sum
    shares    everyone splits the secret of each sum's key, and of a mask of its own, into n shares of which t suffice,
              and seals one for each other client; the server hands the letters on
    (a sum)   a client sends x + its own mask + Σ masks with those after it - Σ masks with those before it, modulo 2^64
    confirm   the server says who sent; everyone of them signs that list
    unmask    who sees t signatures of one list opens its letters, and gives the server, of everyone on the list, the
              share of the own mask, and of everyone else that of the key

So the server removes the own masks of those who sent, and the pairwise masks with those who were lost. It never gets
both secrets of one client: an answer that comes late stays masked. A client gives its shares for a round once, or again
for the same list, so that two sums of one round cannot be subtracted from each other. `engine.member` is the client's
side, `engine.collector` the server's; this file has what both know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sized
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from fedspray.errors import InputError
from fedspray.links import _masks
from fedspray.links._masks import KEY, Words
from fedspray.nn.tree import Message

Ask = Callable[[str, Mapping[int, Message]], Mapping[int, Message]]
"""Sends each client its message of one step; gives the answers of those that answered."""
HOLDERS = "holders"
"""The name of the first sum of a session: how many clients have training nodes of each class."""
STEPS = ("keys", "shares", HOLDERS, "confirm", "unmask")
"""All but the sum itself."""


class Unsafe(InputError):
    """A client does not go on, because its numbers could become known."""


class NotOpened(RuntimeError):
    """Too few clients are left to open a sum."""


class Identity(Protocol):
    """How clients know each other."""

    certificate: bytes

    def sign(self, text: bytes) -> bytes:
        """This client's signature."""

    def check(self, client_id: int, certificate: bytes, signature: bytes, text: bytes) -> None:
        """Raises `Unsafe` if the signature is not that client's."""


def threshold(keys: Sized) -> int:
    """How many of the clients with keys must go on."""
    return 2 * len(keys) // 3 + 1


def digest_of(keys: Mapping[int, bytes]) -> bytes:
    """Of the keys of all clients."""
    return hashlib.sha256(b"".join(b"%d:" % k + keys[k] for k in sorted(keys))).digest()


def pair_mask(
    private: X25519PrivateKey, keys: bytes, pair: tuple[int, int], digest: bytes, slot: int, length: int
) -> Words:
    """What the first of a pair adds because of the other, whose keys these are."""
    one, other = pair
    purpose = b"mask %d %d %d " % (slot, min(pair), max(pair)) + digest
    return _masks.pair_mask(private, key_of(keys, slot), purpose, length, adds=one < other)


def key_of(keys: bytes, slot: int) -> bytes:
    """A client's key of one sum."""
    return keys[KEY * (slot + 1) : KEY * (slot + 2)]


def row(content: bytes) -> Tensor:
    """Bytes as a message carries them."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[None] if content else torch.zeros(1, 0).byte()


def raw(value: Tensor) -> bytes:
    """What `row` held."""
    return value[0].numpy().tobytes()


def words_of(message: Message) -> Words:
    """What a client sent of a sum."""
    words: Words = message["masked"][0].numpy().view(np.uint64)
    return words
