"""The prior shift: moves decisions towards classes that are rare at a client, as far as validation nodes allow.

    log ŷ - a log π_k        π_k: the client's own class shares, which never leave it

`shifted` makes it an option of any algorithm (``prior_shift``): clients also count how many
validation nodes each a gets right, and the server chooses a from their sums. Nothing else changes, not even
the reported round, because the loss is the algorithm's own. FedSpray 2 chooses with the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.messages import COUNTS, total
from fedspray.nn import ops
from fedspray.nn.tree import Message, expand

SHIFTS = tuple(i / 10 for i in range(8))
"""The shifts a that ``auto`` chooses among."""
TOLERANCE = 0.05
"""Share by which a shift may increase the errors on validation nodes."""
FADING = 0.5
"""Share of the earlier counts kept each round."""
ACCURACY = "how many validation nodes the model gets right, of all and of those outside the client's largest class"
VALIDATION = "how many validation nodes the client has, exactly"
_UP, _DOWN = ("shift_counts", "shift_nodes"), "prior_shift"


def log_shares(batch: GraphBatch) -> Tensor:
    """log π [K, C]: with one extra training node per class, so that none is 0."""
    counts = batch.train_class_counts + 1
    return (counts / counts.sum(dim=1, keepdim=True)).log()


def is_minority_val(batch: GraphBatch) -> Tensor:
    """Which validation nodes are outside their client's majority class."""
    owners, majority = batch.rows.client_of[batch.val], batch.train_class_counts.argmax(dim=1)
    return (batch.labels[batch.val] != majority[owners]) & (batch.num_train[owners] > 0)


def count_right(logits: Tensor, shifts: Sequence[float], shares: Tensor, batch: GraphBatch) -> Tensor:
    """How many validation nodes each of A shifts gets right, all and minority ones: [K, 2, A].

    ``logits`` are [C, n], those of the validation nodes; ``shares`` are log π, [K, C].
    """
    owners, labels = batch.rows.client_of[batch.val], batch.labels[batch.val]
    scores = logits - logits.new_tensor(shifts)[:, None, None] * shares[owners].T  # [A, C, n]
    slots = labels.expand(len(shifts), 1, -1)
    others = scores.scatter(1, slots, -torch.inf).amax(dim=1)  # many times faster than argmax; a tie is wrong
    right = scores.gather(1, slots)[:, 0] > others
    both = torch.stack([right, right & is_minority_val(batch)]).movedim(2, 0).to(logits.dtype)  # [n, 2, A]
    return logits.new_zeros(batch.num_clients, *both.shape[1:]).index_add(0, owners, both)


def num_val(batch: GraphBatch) -> Tensor:
    """[K]: validation nodes of each client."""
    owners = batch.rows.client_of[batch.val]
    return torch.zeros_like(batch.num_train).index_add(0, owners, torch.ones_like(owners, dtype=batch.dtype))


def choose(counts: Tensor, nodes: Tensor, tolerance: float, allowed: Tensor | None = None) -> int:
    """The place with the best minority accuracy among those with at most ``tolerance`` more errors than the best.

    Ties go to the higher overall accuracy, then to the first. ``counts`` [2, P] are right predictions on all and on
    minority nodes; ``tolerance`` is a share of the errors; ``allowed`` [P]: the places to choose among.
    """
    overall, minority = counts
    among = torch.ones_like(overall, dtype=torch.bool) if allowed is None else allowed
    most = overall[among].max()
    within = among & (overall >= most - tolerance * (nodes - most).clamp(min=0))  # with noise, nodes may be fewer
    best = within & (minority == minority[within].max())
    return int(torch.where(best, overall, -torch.inf).argmax())


@dataclass(frozen=True)
class ServerState:
    """The algorithm's own, and the shifts' counts so far."""

    inner: Any
    shift_counts: Tensor
    """[2, A]: right predictions on all and on minority validation nodes, fading."""
    shift_nodes: Tensor
    """[]: validation nodes that they are counted over, fading."""


@dataclass(frozen=True)
class ClientState:
    """The algorithm's own, and log π."""

    inner: Any
    log_shares: Tensor
    """[K, C]."""


class _Shifted(Algorithm[ServerState, ClientState]):
    """Whatever `inner` does, with shifted decisions."""

    plain: ClassVar[type[Algorithm[Any, Any]]]

    @cached_property
    def inner(self) -> Algorithm[Any, Any]:
        """The algorithm itself."""
        return self.plain(**{f.name: getattr(self, f.name) for f in fields(self)})

    @property
    def _shifts(self) -> tuple[float, ...]:
        return SHIFTS if self.prior_shift == "auto" else (float(self.prior_shift),)

    def _choice(self, server: ServerState) -> float:
        known = bool(server.shift_nodes > 0)
        return self._shifts[choose(server.shift_counts, server.shift_nodes, TOLERANCE) if known else 0]

    def check(self, task: Task) -> None:
        self.inner.check(task)

    def init_server(self, task: Task, seed: int) -> ServerState:
        return ServerState(self.inner.init_server(task, seed), torch.zeros(2, len(self._shifts)), torch.zeros(()))

    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientState:
        return ClientState(self.inner.init_clients(task, batch, seed), log_shares(batch))

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        shift = expand({_DOWN: server.shift_nodes.new_tensor(self._choice(server))}, len(client_ids))
        return {**self.inner.broadcast(server.inner, client_ids), **shift}

    def client_update(
        self, client: ClientState, message: Message, batch: GraphBatch, seed: int
    ) -> tuple[ClientState, Message]:
        inner, uplink = self.inner.client_update(client.inner, _without(message), batch, seed)
        return ClientState(inner, client.log_shares), {**uplink, **self._count(client, message, batch)}

    def _count(self, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        with torch.no_grad():
            logits = self.inner.predict(client.inner, _without(message), batch)[batch.val].T
        return {_UP[0]: count_right(logits, self._shifts, client.log_shares, batch), _UP[1]: num_val(batch)}

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        inner = self.inner.server_update(server.inner, _without(message), client_ids)
        return ServerState(inner, *(FADING * getattr(server, name) + message[name] for name in _UP))

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        offsets = message[_DOWN][:, None] * client.log_shares
        return self.inner.predict(client.inner, _without(message), batch) - ops.per_row(offsets, batch.rows)

    def loss_logits(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        given = (client.inner, _without(message), batch)
        found = self.inner.loss_logits(*given)
        return self.inner.predict(*given) if found is None else found

    def alone_logits(self, client: ClientState, batch: GraphBatch) -> Tensor | None:
        return self.inner.alone_logits(client.inner, batch)

    def votes(self, client: ClientState, message: Message, batch: GraphBatch) -> Mapping[str, Tensor]:
        return self.inner.votes(client.inner, _without(message), batch)

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        return {**self.inner.diagnostics(server.inner, _without(message)), _DOWN: self._choice(server)}

    def uplink_of_whole(self, uplink: Message, client: ClientState, message: Message, batch: GraphBatch) -> Message:
        inner = self.inner.uplink_of_whole(_without(uplink), client.inner, _without(message), batch)
        return {**inner, **self._count(client, message, batch)}

    def state_of_whole(
        self, trained: ClientState, client: ClientState, message: Message, batch: GraphBatch
    ) -> ClientState:
        inner = self.inner.state_of_whole(trained.inner, client.inner, _without(message), batch)
        return ClientState(inner, trained.log_shares)


def _without(message: Message) -> Message:
    return {name: value for name, value in message.items() if name not in (*_UP, _DOWN)}


@cache
def shifted(algorithm: type[Algorithm[Any, Any]]) -> type[Algorithm[Any, Any]]:
    """The algorithm with shifted decisions: the same settings, two keys more on the way up and one on the way down."""
    uplink = {
        **algorithm.uplink,
        _UP[0]: total(
            "right predictions on all and on minority validation nodes, for each prior shift", COUNTS, reveals=ACCURACY
        ),
        _UP[1]: total("number of validation nodes", COUNTS, reveals=VALIDATION),
    }
    downlink = {**algorithm.downlink, _DOWN: "how far predictions are shifted towards a client's rare classes"}
    about = {"plain": algorithm, "uplink": uplink, "downlink": downlink, "__doc__": algorithm.__doc__}
    return type(algorithm.__name__, (_Shifted, algorithm), {**about, "__module__": algorithm.__module__})
