"""Secure aggregation: the server learns the sums over clients, and no client's own numbers.

Every pair of clients agrees on a mask that one adds and the other subtracts, so that what a client sends looks random
and the sum of all is the sum of what they meant. `fedspray.engine.secure` has the protocol and what it promises.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedspray.backbones.base import setting
from fedspray.errors import InputError
from fedspray.links.base import Link
from fedspray.messages import Declared, fates


@dataclass(frozen=True, kw_only=True)
class SecureSum(Link):
    """Hides each client's update and evaluation behind masks that cancel in the sum."""

    summary: ClassVar[str] = "the server sees sums over clients only, of updates and of evaluation counts"
    reveals: ClassVar[str] = "who takes part, and how many clients have training nodes of each class"
    only_sums: ClassVar[bool] = True
    adds: ClassVar[Mapping[str, str]] = {
        "masked": "nothing by itself: the sum of all clients' is the sum of what they sent",
        "keys": "nothing: fresh public keys, signed",
        "certificate": "the client's name and its public key",
        "[0-9]*": "nothing to the server: shares of secrets, sealed for other clients",
        "signature": "that the client agrees with the list of those who sent",
        "shares": "shares of the masks of those who sent, and of the keys of those who were lost: the sum alone",
    }

    clients: int = setting(3, "never open a sum over fewer clients than this", least=2)
    holders: int = setting(
        2, "don't send vectors of a class that fewer clients than this have training nodes of", least=1
    )
    bits: int = setting(32, "bits after the point of the fixed-point numbers that are added, of 64", least=8, most=48)
    key_rounds: int = setting(10, "rounds for which clients exchange keys at once", least=1, most=1000)

    def most_bytes(self, clients: int) -> int:
        """More than any message about keys and shares has: certificates, signatures, keys and letters of all."""
        return clients * (10_000 + 64 * (self.key_rounds + 2))

    def protection(self, name: str, value: Tensor, declared: Declared) -> str:
        """Masks."""
        return f"masked: the server learns the sum over {self.clients} clients or more"

    def check(self, declared: Declared) -> None:
        """Every key must be a mean or a sum."""
        own = {name: key for name, key in fates(declared).items() if key.fate == "each"}
        if own:
            told = "; ".join(f"{name} ({key.reason})" for name, key in own.items())
            raise InputError(f"secure-sum gives the server sums only, but this algorithm needs each client's {told}")
