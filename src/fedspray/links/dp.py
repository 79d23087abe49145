"""Differential privacy of what clients send: clipping, Gaussian noise, and what they add up to over a run.

Keys are taken in groups, as the algorithm declares them (``gnn.*`` is one). With P groups, C the largest length of a
group, counted from what was received where that came down, and z the noise multiplier, a client sends in every round

    x ← x · min(1, C / ‖x‖) + z · C · √P · N(0, 1)          for each group

All groups of a round are one Gaussian mechanism of multiplier z: a client that has nothing to say sends x = 0 and
noise, and every group is at most C away from that. R rounds are one of multiplier z / √R, of which `dp-accounting`
says the exact ε at a given δ (the bound by Rényi divergences is kept beside it). Who takes part in a round is no
secret, so drawing some of the clients makes nothing more private; one that is not drawn sends nothing.

With ``level=client`` what is protected is all data of a client. A weight that only averages clients is sent as 1, for
everybody. With ``level=record`` it is the features and the label of one training node: an algorithm clips the gradient
of each node (`fedspray2` with `record_clip`), C is that limit, and keys whose change by one node has no limit are not
sent (they are 0). If `secure-sum` follows, and only sums travel, each client adds its share of the noise:
z · C · √P / √m, where m is the least number of clients in a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.backbones.base import setting
from fedspray.errors import InputError
from fedspray.experiment import RoundSettings
from fedspray.files import Json
from fedspray.links.base import Link, Memory, Trip, counted_from
from fedspray.messages import SHARES, Declared, fates, key_of, pattern_of
from fedspray.nn.tree import Message
from fedspray.seeds import torch_generator

COVERED_BY_NODE = ("gradient.*", "num_train")
"""Of `fedspray2`: a training node changes the sum of clipped gradients by `record_clip`, and their number by 1."""


@dataclass(frozen=True, kw_only=True)
class DifferentialPrivacy(Link):
    """Clips and adds noise so that a run as a whole has an ε."""

    summary: ClassVar[str] = (
        "differential privacy: clips and adds noise to all that leaves, and reports ε in every round"
    )

    epsilon: float = setting(8.0, "largest ε of the whole run, unless `noise` is given", above=0)
    noise: float = setting(0.0, "noise multiplier (z); 0: derived from epsilon", least=0)
    delta: float = setting(1e-5, "δ", above=0, below=1)
    clip: float = setting(
        1.0, "largest length of a group of keys (C); with level=record it is the algorithm's", above=0
    )
    count_clip: float = setting(100.0, "largest length of a group of counts", above=0)
    level: str = setting("client", "what is protected: a client, or a record", choices=("client", "record"))
    evaluation: str = setting(
        "none", "what the server learns of evaluations: none, or exact (ε does not cover it)", choices=("none", "exact")
    )
    shares: int = setting(0, "noise is the sum of this many clients' shares; 0: the number that secure-sum guarantees")

    def check(self, declared: Declared) -> None:
        """Every key must be a mean or a sum."""
        own = [name for name, key in fates(declared).items() if key.fate == "each"]
        if own:
            raise InputError(f"dp clips and adds noise to means and sums, but {', '.join(own)} is for each client")
        missing = [name for name in COVERED_BY_NODE if self.level == "record" and name not in declared]
        if missing:
            raise InputError(f"dp: level=record is for fedspray2, but this algorithm does not send {missing[0]}")
        averaged = [name for name, key in fates(declared).items() if self.level == "record" and key.fate == "mean"]
        if averaged:
            raise InputError(f"dp: level=record covers sums over training nodes, but {averaged[0]} is a mean")

    @property
    def hides_evaluation(self) -> bool:
        """Evaluation counts stay at the clients."""
        return self.evaluation == "none"

    def for_run(self, algorithm: Any, rounds: RoundSettings, chain: Sequence[Link]) -> Link:
        """The same link, for so many rounds, with the noise multiplier that its ε asks for."""
        own = float(getattr(algorithm, "record_clip", 0.0))
        if self.level == "record" and own != self.clip:
            raise InputError(
                f"dp: level=record has clip {self.clip:g}, but the algorithm clips the gradient of a node to "
                f"{own:g} (record_clip): give both the same"
            )
        sums = [link for link in chain if link.only_sums]
        by_class = any(key.kind is SHARES for key in fates(algorithm.uplink).values())  # they weigh a mean by class
        sure = getattr(sums[0], "clients", 1) if sums and not by_class else 1
        if self.shares > sure:
            raise InputError(f"dp: shares is {self.shares}, but {sure} clients are guaranteed to be in a sum")
        noise = self.noise or multiplier(self.epsilon, self.delta) * math.sqrt(rounds.rounds)
        return replace(self, noise=noise, shares=self.shares or sure)

    def to_server(self, message: Message, memory: Memory, trip: Trip) -> tuple[Message, Memory]:
        """Clips and adds noise, group by group."""
        groups: dict[str, Message] = {}
        sent: Message = {}
        for name, value in message.items():
            constant = self._constant(name, value, trip.declared)
            if constant is None:
                groups.setdefault(_pattern(trip.declared, name), {})[name] = value
            else:
                sent[name] = torch.full_like(value, constant)
        for group, values in groups.items():
            sent |= self._noisy(values, group, len(groups), trip)
        return {name: sent[name] for name in message}, memory

    def _constant(self, name: str, value: Tensor, declared: Declared) -> int | None:
        """What is sent of a key in the place of its numbers; None: those, with noise."""
        if self.level == "record" and _pattern(declared, name) not in COVERED_BY_NODE:
            return 0
        is_weight = value.dim() == 1 and name in {key.weight for key in fates(declared).values()}
        return 1 if self.level == "client" and is_weight else None

    def protection(self, name: str, value: Tensor, declared: Declared) -> str:
        """Clipping and noise, or a constant."""
        constant = self._constant(name, value, declared)
        if constant is not None:
            return f"not sent: every client sends {constant}"
        limit = self._limit(_pattern(declared, name), declared)
        return f"clipped to {limit:g}, Gaussian noise of multiplier {self.noise:.4g}: part of ε"

    def spent(self, round_index: int) -> Json:
        """The most privacy that a client has spent by the end of this round."""
        exact, renyi = epsilon_of(self.noise / math.sqrt(max(1, round_index)), self.delta)
        found = {
            "epsilon": exact,
            "epsilon_by_renyi": renyi,
            "delta": self.delta,
            "noise": self.noise,
            "unit": "a client" if self.level == "client" else "a training node",
            "outside": [] if self.hides_evaluation else ["evaluation counts"],
        }
        return {"privacy": found}

    def _noisy(self, values: Message, group: str, num_groups: int, trip: Trip) -> Message:
        bases = {name: counted_from(value, trip.received.get(name)) for name, value in values.items()}
        changes = {name: value - bases[name] for name, value in values.items()}
        limit = self._limit(group, trip.declared)
        length = torch.stack([change.norm() for change in changes.values()]).norm()
        by_node = self.level == "record"  # gradients were clipped node by node
        scale = 1.0 if by_node or length <= limit else float(limit / length)
        deviation = self.noise * limit * math.sqrt(num_groups / max(1, self.shares))
        noisy = {}
        for name, change in changes.items():
            seed = trip.seed if trip.secret is None else trip.secret
            draw = torch_generator(seed, "dp", trip.round_index, trip.client_id, name)
            noise = deviation * torch.randn(change.shape, generator=draw).to(change.dtype)
            noisy[name] = self._plausible(bases[name] + scale * change + noise, trip.declared, name)
        return noisy

    def _plausible(self, value: Tensor, declared: Declared, name: str) -> Tensor:
        """Noisy numbers as the server believes them; shares of noise are left as they are, since they must add up."""
        kind = key_of(declared, name).kind
        if self.shares > 1:
            return value
        return (value.round() if kind.whole else value).clamp(kind.lowest, kind.highest)

    def _limit(self, group: str, declared: Declared) -> float:
        kind = key_of(declared, group).kind
        if kind is SHARES or (kind.whole and self.level == "record"):
            return 1.0
        return self.count_clip if kind.whole else self.clip


def _pattern(declared: Declared, name: str) -> str:
    return pattern_of(declared, name) or name


@lru_cache(maxsize=4096)
def epsilon_of(noise: float, delta: float) -> tuple[float, float]:
    """ε of one Gaussian mechanism with a noise multiplier: exactly, and by Rényi divergences."""
    accounting = _accounting()
    accountant = accounting.rdp.RdpAccountant().compose(accounting.GaussianDpEvent(noise))
    return float(accounting.get_epsilon_gaussian(noise, delta)), float(accountant.get_epsilon(delta))


@lru_cache(maxsize=256)
def multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of one Gaussian mechanism that has this ε, rounded up."""
    found = float(_accounting().get_sigma_gaussian(epsilon, delta))
    return math.ceil(found * 1e6) / 1e6


def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise InputError("dp needs dp-accounting: pip install 'fedspray[privacy]'") from None
    return dp_accounting
