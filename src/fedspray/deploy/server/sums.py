"""The server's side of a run in which it sees sums over sites only: `fedspray.engine.secure` with other machines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set

from fedspray.deploy.messages.schema import MessageSchema
from fedspray.deploy.messages.wire import SUM, Ask, Reply
from fedspray.deploy.server.host import Courier, Quorum
from fedspray.engine.collector import Collector
from fedspray.engine.layouts import Layout, layout_of
from fedspray.engine.rounds import Answers
from fedspray.engine.secure import NotOpened, words_of
from fedspray.engine.sums import by_class
from fedspray.engine.worker import Request
from fedspray.links.secure_sum import SecureSum
from fedspray.nn import tree
from fedspray.nn.tree import Message

ATTEMPTS = 2
"""How often an exchange is tried: the second time with those that are left."""
NO_KEYS = "it was away when keys were exchanged"


class RemoteSums:
    """Carries out exchanges.

    Args:
        link: what is to be guarded.
        names: of the sites that take part, by their ids.
        num_clients: that were agreed on, with those that left.
        seed: of the run.
        courier: reaches the sites.
        schema: what messages look like.
        num_classes: of the task.
    """

    def __init__(
        self,
        link: SecureSum,
        names: Mapping[int, str],
        num_clients: int,
        seed: int,
        courier: Courier,
        schema: MessageSchema,
        num_classes: int,
    ) -> None:
        self._link, self._names, self._seed, self._courier, self._schema = link, names, seed, courier, schema
        self._num_clients = num_clients
        classes = num_classes if by_class(schema.declared, schema.zeros("uplink")) else 0
        # Numbers of sessions only ever grow, also over a restart of the server.
        self._collector = Collector(link, tuple(names), self._ask, classes, first=int(1000 * time.time()))
        self._request = Request(1)
        self._turn = 0
        self._reasons: dict[int, str] = {}
        self._down: dict[int, int] = {}
        self._up: dict[int, int] = {}

    def exchange(
        self, request: Request, asked: Mapping[int, tuple[Request, Message]], train_ids: Set[int]
    ) -> tuple[Answers, dict[int, str | None]]:
        """Asks the sites; gives the sums and, by every site that is in them, the digest of its model at the end."""
        self._request, self._reasons = request, {}
        self._down, self._up = dict.fromkeys(asked, 0), dict.fromkeys(asked, 0)
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                return self._once(request, asked, train_ids)
            except NotOpened as error:
                reason = str(error)
        failures = {k: self._reasons.get(k, reason) for k in asked}
        return Answers({}, (), {}, (), failures), {}

    def _once(
        self, request: Request, asked: Mapping[int, tuple[Request, Message]], train_ids: Set[int]
    ) -> tuple[Answers, dict[int, str | None]]:
        self._collector.prepare()
        members = self._collector.members
        trainers = sorted(train_ids & set(members)) if request.train else []
        enclosed = self._collector.enclosed(trainers)
        layout = self._schema.sums(self._link, self._num_clients, request, train=bool(trainers))
        form = (("masked", "torch.int64", (1, layout.length)),)
        asks = {k: Ask(self._seed, *asked[k], SUM, self._next(), enclosed) for k in members}
        replies = self._delivered(asks)
        sent = {k: words_of(reply.uplink) for k, reply in replies.items() if self._fits(k, reply, form)}
        sums = layout.unpack(self._collector.open(sent))
        shown = request.evaluate or request.detail
        answers = Answers(
            {},
            tuple(k for k in sorted(sent) if k in trainers),
            {},
            tuple(sorted(sent)) if shown else (),
            {k: self._reasons.get(k, NO_KEYS) for k in sorted(asked.keys() - sent.keys())},
            tuple(self._down.values()),
            tuple(self._up[k] for k in sorted(sent) if k in trainers),
            sums,
        )
        return answers, {k: replies[k].model for k in sorted(sent)}

    def _ask(self, step: str, messages: Mapping[int, Message]) -> Mapping[int, Message]:
        """One step of the protocol."""
        turn = self._next()
        replies = self._delivered({k: Ask(self._seed, self._request, {}, step, turn, m) for k, m in messages.items()})
        return {k: reply.uplink for k, reply in replies.items()}

    def _delivered(self, asks: Mapping[int, Ask]) -> dict[int, Reply]:
        """The answers that can be taken; why the others cannot is remembered."""
        needed = max(self._link.clients, 2 * len(asks) // 3 + 1)
        quorum = Quorum(frozenset(self._names[k] for k in asks), min(needed, len(asks)))
        delivered = self._courier.deliver({self._names[k]: ask for k, ask in asks.items()}, quorum)
        found = {}
        for k, ask in asks.items():
            reply = delivered[self._names[k]]
            self._down[k] += tree.num_bytes(ask.message) + tree.num_bytes(ask.guard)
            if isinstance(reply, str) or reply.error is not None:
                self._reasons[k] = reply if isinstance(reply, str) else str(reply.error)
            elif (reply.seed, reply.round_index) != (self._seed, ask.request.round_index):
                self._reasons[k] = "it answered something that it was not asked"
            else:
                self._up[k] += tree.num_bytes(reply.uplink)
                found[k] = reply
        return found

    def _fits(self, client_id: int, reply: Reply, form: Layout) -> bool:
        fits = layout_of(reply.uplink) == form
        if not fits:
            self._reasons[client_id] = "its part of the sum is not of the algorithm's size"
        return fits

    def _next(self) -> int:
        self._turn += 1
        return self._turn
