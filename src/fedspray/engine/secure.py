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
for the same list, so that two sums of one round cannot be subtracted from each other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from fedspray.errors import InputError
from fedspray.links import _masks
from fedspray.links._masks import KEY, SECRET, Words
from fedspray.links.secure_sum import SecureSum
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


@dataclass
class _Session:
    """What a client knows of the keys that are in use."""

    number: int
    sealing: X25519PrivateKey
    secrets: list[tuple[bytes, bytes]]
    """For each sum: of the key for pairwise masks, and of the client's own mask."""
    keys: dict[int, bytes] = field(default_factory=dict)
    """By client: its key to seal letters, and one for each sum."""
    certificates: dict[int, bytes] = field(default_factory=dict)
    digest: bytes = b""
    """Of all keys."""

    @property
    def threshold(self) -> int:
        return 2 * len(self.keys) // 3 + 1


@dataclass
class _Sum:
    """What a client knows of the sum that is under way."""

    label: str
    slot: int
    members: tuple[int, ...]
    trainers: tuple[int, ...]
    holders: tuple[int, ...]
    survivors: tuple[int, ...] = ()


class Member:
    """A client's side.

    Args:
        client_id: whose.
        link: what is to be guarded.
        identity: proves who it is.
        context: what all clients agree on: the run and its seed.
        released: for which lists the client gave its shares, by the name of the sum; a site keeps it on disk.
        keep: called whenever ``released`` has changed, before the shares leave.
    """

    def __init__(
        self,
        client_id: int,
        link: SecureSum,
        identity: Identity,
        context: str,
        released: dict[str, list[int]] | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self._own, self._link, self._identity, self._context = client_id, link, identity, context.encode()
        self._released, self._keep = {} if released is None else released, keep
        self._session: _Session | None = None
        self._sum: _Sum | None = None
        self._slots: set[int] = set()

    @property
    def session(self) -> int:
        """Which keys are in use."""
        return self._known().number

    def handle(self, step: str, message: Message) -> Message:
        """Answers one step."""
        steps = {"keys": self._advertise, "shares": self._share, "confirm": self._confirm, "unmask": self._unmask}
        return steps[step](message)

    def _advertise(self, message: Message) -> Message:
        number = int(message["number"])
        if self._session is not None and number <= self._session.number:
            raise Unsafe(f"keys of session {number} are asked for, but session {self._session.number} was the last")
        count = self._link.key_rounds + 1
        session = _Session(number, X25519PrivateKey.generate(), [_two_secrets() for _ in range(count)])
        pairs = [session.sealing, *(_masks.key_from(secret) for secret, _ in session.secrets)]
        keys = b"".join(key.public_key().public_bytes_raw() for key in pairs)
        self._session, self._sum, self._slots = session, None, set()
        signature = self._identity.sign(self._stated(b"keys", number, keys))
        parts = {"keys": keys, "certificate": self._identity.certificate, "signature": signature}
        return {name: _row(part) for name, part in parts.items()}

    def _share(self, message: Message) -> Message:
        session = self._known()
        if session.keys:
            raise Unsafe("shares of one session are asked for twice")
        ids = sorted({int(name.split(".")[0]) for name in message})
        for k in ids:
            keys, certificate, signature = (
                _raw(message[f"{k}.{name}"]) for name in ("keys", "certificate", "signature")
            )
            self._identity.check(k, certificate, signature, self._stated(b"keys", session.number, keys))
            if len(keys) != KEY * (self._link.key_rounds + 2):
                raise Unsafe(f"client {k} has {len(keys)} bytes of keys, which is not what was agreed")
            session.keys[k], session.certificates[k] = keys, certificate
        if self._own not in ids or session.keys[self._own][:KEY] != session.sealing.public_key().public_bytes_raw():
            raise Unsafe("the list of keys is without this client's own")
        self._enough("keys", ids)
        session.digest = hashlib.sha256(b"".join(b"%d:" % k + session.keys[k] for k in ids)).digest()
        shares = [
            [_masks.split_secret(secret, session.threshold, len(ids)) for secret in pair] for pair in session.secrets
        ]
        letters = {k: b"".join(kind[place] for pair in shares for kind in pair) for place, k in enumerate(ids)}
        return {str(k): _row(_masks.seal(self._letter_key(self._own, k), letter)) for k, letter in letters.items()}

    def masked(self, label: str, enclosed: Message, vector: Words) -> Message:
        """What leaves in the place of ``vector``.

        Args:
            label: what is added up; sums with one label are opened for one list of clients only.
            enclosed: what the server's `Collector` said about this sum.
            vector: this client's numbers.
        """
        session = self._known()
        members, trainers, holders = (_ids(enclosed[name]) for name in ("members", "trainers", HOLDERS))
        slot = int(enclosed["slot"])
        if slot in self._slots or not 0 <= slot < len(session.secrets):
            raise Unsafe(f"sum {slot} of the session was masked before, or has no keys")
        if self._own not in members or not set(members) <= set(session.keys) or list(members) != sorted({*members}):
            raise Unsafe("the list of clients in the sum is not one of clients with keys")
        self._enough("a sum", members)
        self._slots.add(slot)
        self._sum = _Sum(label, slot, members, trainers, holders)
        own_key, own_mask = session.secrets[slot]
        total = vector + _masks.stream(_masks.derived(own_mask, b"own mask"), len(vector))
        private = _masks.key_from(own_key)
        for k in members:
            if k != self._own:
                total += pair_mask(private, session.keys[k], (self._own, k), session.digest, slot, len(vector))
        return {"masked": torch.from_numpy(total.view(np.int64))[None]}

    def allowed(self, enclosed: Message) -> Tensor | None:
        """The classes, [C], whose vectors enough clients hold; None: it was not asked for."""
        holders = enclosed[HOLDERS][0]
        return None if holders.numel() == 0 else holders >= self._link.holders

    def _confirm(self, message: Message) -> Message:
        session, now = self._known(), self._running()
        survivors = _ids(message["survivors"])
        if now.survivors not in ((), survivors):
            raise Unsafe("two lists of clients were sent for one sum")
        if self._own not in survivors or not set(survivors) <= set(now.members):
            raise Unsafe("the list of clients that sent their part is not one of this sum")
        self._enough("a sum", survivors)
        trained = [k for k in survivors if k in now.trainers]
        if now.trainers and len(trained) < self._link.clients:
            raise Unsafe(f"updates of {len(trained)} clients would be added, but clients is {self._link.clients}")
        lost = len(now.members) - len(survivors)
        rarest = min((h for h in now.holders if h >= self._link.holders), default=None)
        if rarest is not None and rarest - lost < self._link.holders:
            raise Unsafe(f"a class may be down to {rarest - lost} clients, but holders is {self._link.holders}")
        before = self._released.get(now.label, [*survivors])
        if before != [*survivors]:
            raise Unsafe(f"{now.label} was added up before, over other clients")
        now.survivors = survivors
        return {"signature": _row(self._identity.sign(self._statement(session, now)))}

    def _unmask(self, message: Message) -> Message:
        session, now = self._known(), self._running()
        if not now.survivors:
            raise Unsafe("shares are asked for before there is a list")
        statement, signers = self._statement(session, now), 0
        for k in now.survivors:
            if f"signature.{k}" in message:
                self._identity.check(k, session.certificates[k], _raw(message[f"signature.{k}"]), statement)
                signers += 1
        if signers < session.threshold:
            raise Unsafe(f"{signers} clients signed the list, but {session.threshold} must")
        self._released[now.label] = [*now.survivors]
        self._keep()
        found = []
        for k in now.members:
            letter = _masks.unseal(self._letter_key(k, self._own), _raw(message[f"letter.{k}"]))
            start = 2 * SECRET * now.slot + (SECRET if k in now.survivors else 0)
            found.append(letter[start : start + SECRET])
        self._sum = None
        return {"shares": _row(b"".join(found))}

    def _letter_key(self, sender: int, receiver: int) -> bytes:
        session = self._known()
        other = session.keys[receiver if sender == self._own else sender][:KEY]
        return _masks.common_key(session.sealing, other, b"letter %d %d " % (sender, receiver) + session.digest)

    def _statement(self, session: _Session, now: _Sum) -> bytes:
        lists = [now.members, now.trainers, now.holders, now.survivors]
        return self._stated(b"sum", session.number, session.digest + repr((now.label, now.slot, lists)).encode())

    def _stated(self, what: bytes, number: int, content: bytes) -> bytes:
        return b"\x1f".join([b"fedspray secure-sum", what, self._context, b"%d" % number, content])

    def _enough(self, what: str, ids: Sequence[int]) -> None:
        needed = max(self._link.clients, self._known().threshold)
        if len(ids) < needed:
            raise Unsafe(f"{what} of {len(ids)} clients is asked for, but at least {needed} are needed")

    def _known(self) -> _Session:
        if self._session is None:
            raise Unsafe("this client has no keys yet")
        return self._session

    def _running(self) -> _Sum:
        if self._sum is None:
            raise Unsafe("there is no sum under way")
        return self._sum


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
        return self._without_masks(sent, {k: _raw(message["shares"]) for k, message in opened.items()})

    def _without_masks(self, sent: Mapping[int, Words], shares: Mapping[int, bytes]) -> Words:
        total = added(sent.values())
        keys = {k: _raw(message["keys"]) for k, message in self._keys.items()}
        places = {k: place + 1 for place, k in enumerate(sorted(keys))}
        digest = hashlib.sha256(b"".join(b"%d:" % k + keys[k] for k in sorted(keys))).digest()
        for row, k in enumerate(self.members):
            own = slice(row * SECRET, (row + 1) * SECRET)
            chosen = list(shares.items())[: 2 * len(keys) // 3 + 1]
            secret = _masks.join_secret({places[giver]: given[own] for giver, given in chosen})
            if k in sent:
                total -= _masks.stream(_masks.derived(secret, b"own mask"), len(total))
                continue
            private = _masks.key_from(secret)
            if private.public_key().public_bytes_raw() != _key_of(keys[k], self._slot):
                raise NotOpened(f"the shares of client {k}'s key do not fit together: a client gave a wrong one")
            for other in sent:  # what k would have sent to cancel the masks that the others have with it
                total += pair_mask(private, keys[other], (k, other), digest, self._slot, len(total))
        return total

    def _check_enough(self, what: str, ids: Sequence[int] | Mapping[int, Any]) -> None:
        needed = max(self._link.clients, 2 * len(self._keys) // 3 + 1)
        if len(ids) < needed:
            self.stale = True
            raise NotOpened(f"{len(ids)} of {len(self._ids)} clients {what}, but secure-sum needs {needed}")


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


def added(vectors: Iterable[Words]) -> Words:
    """The sum modulo 2^64."""
    return np.asarray(np.sum(list(vectors), axis=0, dtype=np.uint64))


def pair_mask(
    private: X25519PrivateKey, keys: bytes, pair: tuple[int, int], digest: bytes, slot: int, length: int
) -> Words:
    """What the first of a pair adds because of the other, whose keys these are."""
    one, other = pair
    purpose = b"mask %d %d %d " % (slot, min(pair), max(pair)) + digest
    return _masks.pair_mask(private, _key_of(keys, slot), purpose, length, adds=one < other)


def _key_of(keys: bytes, slot: int) -> bytes:
    return keys[KEY * (slot + 1) : KEY * (slot + 2)]


def _two_secrets() -> tuple[bytes, bytes]:
    return os.urandom(SECRET), os.urandom(SECRET)


def _row(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[None] if content else torch.zeros(1, 0).byte()


def _raw(row: Tensor) -> bytes:
    return row[0].numpy().tobytes()


def words_of(message: Message) -> Words:
    """What a client sent of a sum."""
    words: Words = message["masked"][0].numpy().view(np.uint64)
    return words


def _ids(row: Tensor) -> tuple[int, ...]:
    return tuple(row[0].tolist())
