"""The clients of a run as its server sees them, when they are other machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedspray.data.federation import Roster
from fedspray.deploy.forms import Forms, contradiction, difference, fault_of_counts, fault_of_uplink, form_of
from fedspray.deploy.wire import Ask, Reply
from fedspray.engine.local import Blocks
from fedspray.engine.rounds import Answers
from fedspray.engine.worker import Request
from fedspray.experiment import RoundSettings
from fedspray.messages import not_finite
from fedspray.nn.tree import Message
from fedspray.runs.models import PersonalModel


@dataclass(frozen=True)
class Quorum:
    """What an exchange cannot do without."""

    sites: frozenset[str]
    """Whose answers count: those that are to train, or all where nobody is."""
    needed: int
    """How many of these answers there must be."""

    def is_settled(self, arrived: Mapping[str, Reply | str]) -> bool:
        """Whether enough of these sites did what was asked, or so many failed that there cannot be enough any more."""
        replies = [arrived[name] for name in self.sites if name in arrived]
        good = sum(isinstance(reply, Reply) and reply.error is None for reply in replies)
        awaited = len(self.sites) - len(replies)
        return good >= self.needed or good + awaited < self.needed


class Courier(Protocol):
    """Carries asks to sites and brings their answers."""

    def deliver(self, asks: Mapping[str, Ask], quorum: Quorum) -> dict[str, Reply | str]:
        """Asks every site; gives its answer, or the reason why there is none.

        Waits until the quorum is settled, and for the others as long as its grace time allows.
        """


class RemoteHost:
    """Implements the loop's `Host` over a courier.

    Args:
        roster: who takes part.
        rounds: how many clients a round needs.
        seed: of the run.
        courier: reaches the sites.
        forms: what their messages must look like.
    """

    def __init__(self, roster: Roster, rounds: RoundSettings, seed: int, courier: Courier, forms: Forms) -> None:
        self.client_ids, self.client_names = tuple(range(roster.num_clients)), roster.clients
        self._task, self._forms = roster.task, forms
        self._rounds, self._seed, self._courier = rounds, seed, courier
        self._heard = [0] * roster.num_clients
        self._digests: dict[str, str] = {}

    @property
    def blocks(self) -> Blocks:
        """Every client alone."""
        return [[k] for k in self.client_ids]

    def against_local(self, models: Mapping[str, PersonalModel]) -> dict[str, Any]:
        """Nothing: data and models are at the sites."""
        return {}

    def keep(self, folder: Path, models: Mapping[str, PersonalModel]) -> None:
        """Nothing: predictions of single nodes stay at their sites."""

    def exchange(self, request: Request, downlink: Message, train_ids: Set[int]) -> Answers:
        """Sends every client its row of ``downlink`` and collects the answers, in the order of client ids."""
        asks = {}
        for k in self.client_ids:
            asked = replace(request, train=request.train and k in train_ids, from_round=self._heard[k])
            asks[self.client_names[k]] = Ask(
                self._seed, asked, {name: value[k : k + 1] for name, value in downlink.items()}
            )
        replies: dict[int, Reply] = {}
        failures: dict[int, str] = {}
        delivered = self._courier.deliver(asks, self._quorum(request, train_ids))
        for k in self.client_ids:
            reply = delivered[self.client_names[k]]
            if isinstance(reply, str):
                failures[k] = reply
            elif reply.error is not None:
                failures[k] = reply.error
            elif (fault := self._fault(reply, asks[self.client_names[k]].request)) is not None:
                failures[k] = fault
            else:
                replies[k] = reply
        for k, reply in replies.items():
            self._heard[k] = request.round_index
            if reply.model is not None:
                self._digests[self.client_names[k]] = reply.model
        uplinks = {k: reply.uplink for k, reply in replies.items() if reply.trained}
        counts = {k: reply.counts for k, reply in replies.items() if reply.counts}
        return Answers(
            _stacked(uplinks), tuple(uplinks), _stacked(counts), tuple(counts), dict(sorted(failures.items()))
        )

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """The last round that was heard of each site; all else is at the sites."""
        return {"heard": torch.tensor(self._heard)}

    def load(self, tensors: Mapping[str, Tensor], round_index: int) -> None:
        """Goes back to what `tensors` held."""
        self._heard = tensors["heard"].tolist()

    def models(self) -> Mapping[str, PersonalModel]:
        """None: they stay at their sites."""
        return {}

    def digests(self, models: Mapping[str, PersonalModel]) -> Mapping[str, str]:
        """sha256 of each site's personal model, as the site reported it."""
        return self._digests

    def _fault(self, reply: Reply, request: Request) -> str | None:
        """Why an answer cannot be taken; None if it can."""
        if (reply.seed, reply.round_index) != (self._seed, request.round_index) or reply.trained != request.train:
            return "it answered something that it was not asked"
        counted = self._forms.detail if request.detail else self._forms.counts if request.evaluate else ()
        if request.detail and not reply.counts:
            counted = ()  # it has no model of the reported round
        wanted = {"uplink": self._forms.uplink if request.train else (), "counts": counted}
        for part, form in wanted.items():
            found = form_of(getattr(reply, part))
            if found != form:
                return f"its {part} is not the algorithm's: {difference(found, form)}"
            if (wrong := not_finite(getattr(reply, part))) is not None:
                return f"{wrong} is not finite"
        return (
            fault_of_uplink(reply.uplink, self._forms.declared)
            or fault_of_counts(reply.counts, self._task, self._rounds.rounds)
            or contradiction(reply.uplink, reply.counts, self._forms.declared)
        )

    def _quorum(self, request: Request, train_ids: Set[int]) -> Quorum:
        sites = frozenset(self.client_names[k] for k in (train_ids if request.train else self.client_ids))
        return Quorum(sites, self._rounds.min_clients or math.ceil(len(sites) / 2))


def _stacked(messages: Mapping[int, Message]) -> Message:
    parts = [messages[k] for k in sorted(messages)]
    return {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else {})}
