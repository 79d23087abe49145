"""A chain of links between a client and the server, with the state of each end.

In one process both ends are here (`Crossing`). Between organisations the server has a `ServerEnd` and every site a
`ClientEnd`, with the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.links.base import Link, Memory, Trip
from fedspray.nn import tree
from fedspray.nn.tree import Message

Chain = Sequence[Link]


def trip_of(algorithm: Algorithm[Any, Any], task: Task, seed: int, dtype: torch.dtype) -> Trip:
    """What is the same for all messages of a run."""
    return Trip(0, 0, seed, algorithm.uplink, dtype, task.num_features, _feature_keys(algorithm, task))


def _feature_keys(algorithm: Algorithm[Any, Any], task: Task) -> frozenset[str]:
    """The keys of the downlink whose rows are features."""
    shapes = []
    for more in (0, 1):
        wider = Task(task.num_features + more, task.num_classes)
        downlink = algorithm.broadcast(algorithm.init_server(wider, 0), (0,))
        shapes.append({name: value.shape[1:2] for name, value in downlink.items()})
    rows = (task.num_features,), (task.num_features + 1,)
    return frozenset(name for name in shapes[0] if (shapes[0][name], shapes[1][name]) == rows)


def columns_in_use(batch: GraphBatch) -> list[Tensor | None]:
    """The features each client's nodes use; None if features are dense."""
    rows = batch.rows
    if rows.columns is None:
        return [None] * batch.num_clients
    parts = torch.split(rows.columns, list(rows.columns_by_client))
    return [part.cpu() - k * batch.num_features for k, part in enumerate(parts)]


class ServerEnd:
    """The server's ends, and their state for each client."""

    def __init__(self, links: Chain, trip: Trip) -> None:
        self._links, self._trip = links, trip
        self._memories: dict[int, list[Memory]] = {}
        self._received: dict[int, list[Message]] = {}
        self._sent: dict[int, list[Message]] = {}

    def send(self, message: Message, client_id: int, round_index: int) -> Message:
        """The message as sent to a client."""
        trip = replace(self._trip, client_id=client_id, round_index=round_index)
        memories = self._memories.setdefault(client_id, [{} for _ in self._links])
        self._sent[client_id] = []
        for place, link in enumerate(self._links):
            self._sent[client_id].append(message)
            message, memories[place] = link.to_client(message, memories[place], trip)
        self._received[client_id] = _arrivals(self._links, message, trip)
        return message

    def receive(self, message: Message, client_id: int, round_index: int) -> Message:
        """A client's update as decoded."""
        trip = replace(self._trip, client_id=client_id, round_index=round_index)
        memories = list(self._memories[client_id])
        for place, link in reversed(list(enumerate(self._links))):
            here = replace(trip, received=self._received[client_id][place], sent=self._sent[client_id][place])
            message, memories[place] = link.at_server(message, memories[place], here)
        self._memories[client_id] = memories
        return message

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, by name."""
        return {f"{k}.{name}": value for k, parts in self._memories.items() for name, value in _flat(parts).items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores what `tensors` held."""
        clients = {int(name.partition(".")[0]) for name in tensors}
        self._memories = {k: _parts(tree.part_of(tensors, str(k)), len(self._links)) for k in clients}


class ClientEnd:
    """One client's ends. Like a worker, it keeps the state after the last two rounds in which it trained."""

    def __init__(self, links: Chain, trip: Trip) -> None:
        self._links, self._trip = links, trip
        self._received: list[Message] = []
        self._memories: dict[int, list[Memory]] = {0: [{} for _ in links]}

    def receive(self, message: Message, round_index: int) -> Message:
        """The server's message as decoded."""
        self._received = _arrivals(self._links, message, replace(self._trip, round_index=round_index))
        return self._received[0]

    def send(self, message: Message, round_index: int, last_known: int) -> Message:
        """The update as sent, continuing from ``last_known``, the last round the server received."""
        trip = replace(self._trip, round_index=round_index)
        start = max(known for known in self._memories if known <= last_known)
        memories = list(self._memories[start])
        for place, link in enumerate(self._links):
            here = replace(trip, received=self._received[place])
            message, memories[place] = link.to_server(message, memories[place], here)
        self._memories = {start: self._memories[start], round_index: memories}
        return message

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """The state at the end of a round, by name."""
        return _flat(self._memories[max(known for known in self._memories if known <= round_index)])

    def recall(self, memories: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Restores several rounds: what `tensors` held at each."""
        self._memories = {r: _parts(tensors, len(self._links)) for r, tensors in memories.items()}


class Crossing:
    """Both ends of every client, in one process."""

    def __init__(self, links: Chain, trip: Trip, columns: Mapping[int, Tensor | None]) -> None:
        self._server = ServerEnd(links, trip)
        self._clients = {k: ClientEnd(links, replace(trip, client_id=k, columns=own)) for k, own in columns.items()}

    def down(self, downlink: Message, round_index: int) -> tuple[Message, tuple[int, ...]]:
        """What all clients receive, [K, …], and the bytes sent to each."""
        sizes, arrived = [], []
        for k, client in sorted(self._clients.items()):
            sent = self._server.send({name: value[k : k + 1] for name, value in downlink.items()}, k, round_index)
            sizes.append(tree.num_bytes(sent))
            arrived.append(client.receive(sent, round_index))
        return joined(arrived), tuple(sizes)

    def up(self, uplink: Message, trained: Sequence[int], round_index: int) -> tuple[Message, tuple[int, ...]]:
        """What the server receives, [K, …], and the bytes sent by each."""
        sizes, arrived = [], []
        for place, k in enumerate(trained):
            row = {name: value[place : place + 1] for name, value in uplink.items()}
            sent = self._clients[k].send(row, round_index, round_index - 1)
            sizes.append(tree.num_bytes(sent))
            arrived.append(self._server.receive(sent, k, round_index))
        return joined(arrived), tuple(sizes)

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """The state of both ends at the end of a round, by name."""
        flat = tree.prefixed("server", self._server.tensors())
        for k, client in self._clients.items():
            flat |= tree.prefixed(f"client.{k}", client.tensors(round_index))
        return flat

    def load(self, tensors: Mapping[str, Tensor], round_index: int) -> None:
        """Restores what `tensors` held."""
        self._server.load(tree.part_of(tensors, "server"))
        for k, client in self._clients.items():
            client.recall({round_index: tree.part_of(tensors, f"client.{k}")})


def joined(messages: Sequence[Message]) -> Message:
    """Several clients' messages as one."""
    return {name: torch.cat([message[name] for message in messages]) for name in (messages[0] if messages else {})}


def _arrivals(links: Chain, message: Message, trip: Trip) -> list[Message]:
    """The message after each link's `at_client`; the first is what the client receives."""
    found: list[Message] = []
    for link in reversed(links):
        message = link.at_client(message, trip)
        found.insert(0, message)
    return found


def _flat(parts: Sequence[Memory]) -> dict[str, Tensor]:
    return {f"{place}.{name}": value for place, part in enumerate(parts) for name, value in part.items()}


def _parts(tensors: Mapping[str, Tensor], count: int) -> list[Memory]:
    return [tree.part_of(tensors, str(place)) for place in range(count)]
