"""The clients of a run as its server sees them, when they are other machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fedspray.data.federation import Roster
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.messages.schema import (
    MessageSchema,
    contradiction,
    difference,
    fault_of_counts,
    fault_of_uplink,
)
from fedspray.deploy.messages.wire import Ask, Reply
from fedspray.engine.crossing import ServerEnd, trip_of
from fedspray.engine.layouts import layout_of
from fedspray.engine.local import Blocks
from fedspray.engine.rounds import Answers
from fedspray.engine.worker import Request
from fedspray.experiment import RoundSettings
from fedspray.messages import not_finite
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs.models import PersonalModel

if TYPE_CHECKING:
    from fedspray.deploy.server.sums import RemoteSums


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
        schema: what their messages must look like.
        links: the server's halves of what messages pass, if there is anything.
        left: sites that were removed: they keep their number, and are not asked.
    """

    def __init__(
        self,
        roster: Roster,
        rounds: RoundSettings,
        seed: int,
        courier: Courier,
        schema: MessageSchema,
        links: ServerEnd | None = None,
        left: Set[str] = frozenset(),
    ) -> None:
        self._names = roster.clients
        self.client_ids = tuple(k for k, name in enumerate(roster.clients) if name not in left)
        self.client_names = tuple(roster.clients[k] for k in self.client_ids)
        self._task, self._schema = roster.task, schema
        self._rounds, self._seed, self._courier = rounds, seed, courier
        self._heard = [0] * roster.num_clients
        self._digests: dict[str, str] = {}
        self._links = links
        self._sums: RemoteSums | None = None
        """How sums are found where the server may see nothing else."""
        self._hides = False
        self.largest = schema.most_bytes("uplink", "counts", "detail")
        """Bytes of the largest answer that is read at all."""

    @classmethod
    def of(cls, agreement: Agreement, seed: int, courier: Courier, left: Set[str] = frozenset()) -> RemoteHost:
        """For a seed of what was agreed on."""
        roster, run = agreement.roster, agreement.resolved
        schema = MessageSchema.of(agreement.algorithms[0], roster.task, run.dtype, links=bool(run.links))
        chain = [link for link in run.links if not link.only_sums]
        links = ServerEnd(chain, trip_of(run.algorithm, roster.task, seed, run.dtype)) if chain else None
        host = cls(roster, run.rounds, seed, courier, schema, links, left=left)
        if agreement.secure_sum is not None:
            from fedspray.deploy.server.sums import RemoteSums

            classes = roster.task.num_classes
            named = dict(zip(host.client_ids, host.client_names, strict=True))
            host._sums = RemoteSums(agreement.secure_sum, named, roster.num_clients, seed, courier, schema, classes)
        host.largest += agreement.protocol_bytes
        host._hides = any(link.hides_evaluation for link in run.links)
        return host

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
        for i, k in enumerate(self.client_ids):
            asked = replace(request, train=request.train and k in train_ids, from_round=self._heard[k])
            row = {name: value[i : i + 1] for name, value in downlink.items()}
            if self._links is not None and row:
                row = self._links.send(row, k, request.round_index)
            asks[self._names[k]] = Ask(self._seed, asked, row)
        if self._sums is not None:
            return self._added_up(self._sums, request, asks, train_ids)
        replies: dict[int, Reply] = {}
        failures: dict[int, str] = {}
        delivered = self._courier.deliver(asks, self._quorum(request, train_ids))
        for k in self.client_ids:
            reply = self._opened(delivered[self._names[k]], k, request)
            if isinstance(reply, str):
                failures[k] = reply
            elif reply.error is not None:
                failures[k] = reply.error
            elif (fault := self._fault(reply, asks[self._names[k]].request)) is not None:
                failures[k] = fault
            else:
                replies[k] = reply
        for k, reply in replies.items():
            self._heard[k] = request.round_index
            if reply.model is not None:
                self._digests[self._names[k]] = reply.model
        uplinks = {k: reply.uplink for k, reply in replies.items() if reply.trained}
        counts = {k: reply.counts for k, reply in replies.items() if reply.counts}
        travelled: dict[str, Any] = {}
        if self._links is not None:
            sent = {k: delivered[self._names[k]] for k in uplinks}
            travelled = {
                "bytes_down": tuple(tree.num_bytes(asks[name].message) for name in self.client_names),
                "bytes_up": tuple(tree.num_bytes(reply.uplink) for reply in sent.values() if isinstance(reply, Reply)),
            }
        failed = dict(sorted(failures.items()))
        return Answers(_stacked(uplinks), tuple(uplinks), _stacked(counts), tuple(counts), failed, **travelled)

    def _added_up(self, sums: RemoteSums, request: Request, asks: Mapping[str, Ask], train_ids: Set[int]) -> Answers:
        asked = {
            k: (asks[name].request, asks[name].message)
            for k, name in zip(self.client_ids, self.client_names, strict=True)
        }
        answers, models = sums.exchange(request, asked, train_ids)
        for k, model in models.items():
            self._heard[k] = request.round_index
            if model is not None:
                self._digests[self._names[k]] = model
        return answers

    def _opened(self, reply: Reply | str, client_id: int, request: Request) -> Reply | str:
        """An answer as the algorithm's, or why it cannot be read."""
        if self._links is None or isinstance(reply, str) or not reply.uplink:
            return reply
        try:
            uplink = self._links.receive(reply.uplink, client_id, request.round_index)
        except Exception as error:  # whatever a site sends
            return f"its uplink cannot be opened ({type(error).__name__})"
        return replace(reply, uplink=uplink)

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """The last round that was heard of each site, and what links remember; all else is at the sites."""
        links = {} if self._links is None else tree.prefixed("links", self._links.tensors())
        return {"heard": torch.tensor(self._heard), **links}

    def load(self, tensors: Mapping[str, Tensor], round_index: int) -> None:
        """Goes back to what `tensors` held."""
        heard = tensors["heard"].tolist()
        self._heard = heard + [0] * (len(self._names) - len(heard))  # sites that joined since
        if self._links is not None:
            self._links.load(tree.part_of(tensors, "links"))

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
        counted = self._schema.detail if request.detail else self._schema.counts if request.evaluate else ()
        if request.detail and not reply.counts:
            counted = ()  # it has no model of the reported round
        wanted = {"uplink": self._schema.uplink if request.train else (), "counts": counted}
        for part, layout in wanted.items():
            found = layout_of(getattr(reply, part))
            if found != layout:
                return f"its {part} is not the algorithm's: {difference(found, layout)}"
            if (wrong := not_finite(getattr(reply, part))) is not None:
                return f"{wrong} is not finite"
        return (
            fault_of_uplink(reply.uplink, self._schema.declared)
            or fault_of_counts(reply.counts, self._task, self._rounds.rounds)
            or (None if self._hides else contradiction(reply.uplink, reply.counts, self._schema.declared))
        )

    def _quorum(self, request: Request, train_ids: Set[int]) -> Quorum:
        sites = frozenset(self._names[k] for k in (train_ids if request.train else self.client_ids))
        return Quorum(sites, self._rounds.min_clients or math.ceil(len(sites) / 2))


def _stacked(messages: Mapping[int, Message]) -> Message:
    parts = [messages[k] for k in sorted(messages)]
    return {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else {})}
