"""A client's side of secure aggregation; `engine.secure` tells the steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from fedspray.engine.secure import HOLDERS, Identity, Unsafe, digest_of, pair_mask, raw, row, threshold
from fedspray.links import _masks
from fedspray.links._masks import KEY, SECRET, Words
from fedspray.links.secure_sum import SecureSum
from fedspray.nn.tree import Message


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
        return threshold(self.keys)


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
        secrets = [(os.urandom(SECRET), os.urandom(SECRET)) for _ in range(self._link.key_rounds + 1)]
        session = _Session(number, X25519PrivateKey.generate(), secrets)
        pairs = [session.sealing, *(_masks.key_from(secret) for secret, _ in session.secrets)]
        keys = b"".join(key.public_key().public_bytes_raw() for key in pairs)
        self._session, self._sum, self._slots = session, None, set()
        signature = self._identity.sign(self._stated(b"keys", number, keys))
        parts = {"keys": keys, "certificate": self._identity.certificate, "signature": signature}
        return {name: row(part) for name, part in parts.items()}

    def _share(self, message: Message) -> Message:
        session = self._known()
        if session.keys:
            raise Unsafe("shares of one session are asked for twice")
        ids = sorted({int(name.split(".")[0]) for name in message})
        for k in ids:
            keys, certificate, signature = (
                raw(message[f"{k}.{name}"]) for name in ("keys", "certificate", "signature")
            )
            self._identity.check(k, certificate, signature, self._stated(b"keys", session.number, keys))
            if len(keys) != KEY * (self._link.key_rounds + 2):
                raise Unsafe(f"client {k} has {len(keys)} bytes of keys, which is not what was agreed")
            session.keys[k], session.certificates[k] = keys, certificate
        if self._own not in ids or session.keys[self._own][:KEY] != session.sealing.public_key().public_bytes_raw():
            raise Unsafe("the list of keys lacks this client's own")
        self._enough("keys", ids)
        session.digest = digest_of(session.keys)
        shares = [
            [_masks.split_secret(secret, session.threshold, len(ids)) for secret in pair] for pair in session.secrets
        ]
        letters = {k: b"".join(kind[place] for pair in shares for kind in pair) for place, k in enumerate(ids)}
        return {str(k): row(_masks.seal(self._letter_key(self._own, k), letter)) for k, letter in letters.items()}

    def masked(self, label: str, enclosed: Message, vector: Words) -> Message:
        """What leaves in the place of ``vector``; ``enclosed`` is what the server's `Collector` said about this sum.

        Sums with one label are opened for one list of clients only.
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
        return {"signature": row(self._identity.sign(self._statement(session, now)))}

    def _unmask(self, message: Message) -> Message:
        session, now = self._known(), self._running()
        if not now.survivors:
            raise Unsafe("shares are asked for before there is a list")
        statement, signers = self._statement(session, now), 0
        for k in now.survivors:
            if f"signature.{k}" in message:
                self._identity.check(k, session.certificates[k], raw(message[f"signature.{k}"]), statement)
                signers += 1
        if signers < session.threshold:
            raise Unsafe(f"{signers} clients signed the list, but {session.threshold} must")
        self._released[now.label] = [*now.survivors]
        self._keep()
        found = []
        for k in now.members:
            letter = _masks.unseal(self._letter_key(k, self._own), raw(message[f"letter.{k}"]))
            start = 2 * SECRET * now.slot + (SECRET if k in now.survivors else 0)
            found.append(letter[start : start + SECRET])
        self._sum = None
        return {"shares": row(b"".join(found))}

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


def _ids(row: Tensor) -> tuple[int, ...]:
    return tuple(row[0].tolist())
