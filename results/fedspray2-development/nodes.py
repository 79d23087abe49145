"""Keeps what the GNN and the teacher say of every validation node in every round, for safety.py.

python nodes.py FOLDER DATASET[+HARM] BACKBONE ROUNDS SEED[,SEED...]

Harms make data on which a teacher is of little use, from data on which it is:

contrary: every client has its own names for the classes, so that nobody's labels agree.
one: the first client alone has other names.
weak: two classes, one of them rare, and ten noisy features.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from develop import federation_of
from replay import Recorded, record

from fedspray import Federation, algorithms
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client
from fedspray.data.graph import UNLABELLED, Graph
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Params
from fedspray.seeds import generator, stream_key


def renamed(client: Client, names: Any) -> Client:
    """The client with class c called names[c]."""
    labels = client.graph.labels
    return replace(
        client, graph=replace(client.graph, labels=np.where(labels == UNLABELLED, UNLABELLED, names[labels]))
    )


def weakened(federation: Federation, seed: int) -> Federation:
    """Two classes (the rarer ones are class 1, about a fifth of the nodes), ten features with as much noise."""
    labels = np.concatenate([c.graph.labels for c in federation.clients])
    counts = np.bincount(labels[labels != UNLABELLED], minlength=federation.task.num_classes)
    order = np.argsort(counts)
    rare = np.zeros(len(counts), dtype=np.int64)
    rare[order[np.cumsum(counts[order]) <= 0.25 * counts.sum()]] = 1
    rng = generator(seed, "weak")
    mixing = rng.normal(size=(federation.task.num_features, 10))
    clients = []
    for client in federation.clients:
        x = client.graph.dense_features()
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9) @ mixing
        x = (x + x.std() * rng.normal(size=x.shape)).astype(np.float32)
        own = np.where(client.graph.labels == UNLABELLED, UNLABELLED, rare[client.graph.labels])
        graph = Graph.from_arrays(x, client.graph.both_directions(), own, num_classes=2)
        clients.append(replace(client, graph=graph))
    return replace(federation, clients=tuple(clients))


def harmed(name: str, seed: int) -> Federation:
    """A federation, and what was done to it."""
    dataset, _, harm = name.partition("+")
    federation = federation_of(dataset, seed)
    if harm == "weak":
        return weakened(federation, seed)
    num_classes = federation.task.num_classes
    names = [np.roll(np.arange(num_classes), k) if harm == "contrary" else np.arange(num_classes) for k in range(99)]
    if harm == "one":
        names[0] = np.roll(names[0], 1)
    clients = tuple(
        renamed(c, names[k % num_classes if harm == "contrary" else k]) for k, c in enumerate(federation.clients)
    )
    return replace(federation, clients=clients)


def trace(name: str, backbone: str, rounds: int, seed: int) -> dict[str, Any]:
    """Plays the rounds once."""
    federation = harmed(name, seed)
    batch = GraphBatch.from_clients(federation.clients, range(federation.num_clients))
    record(batch, federation, backbone, rounds, seed)
    algorithm: Any = algorithms.find("fedspray2")(backbone=Recorded())

    def fit(params: Params, optimizer: AdamState, *_: Any) -> tuple[Params, AdamState]:
        return {"rounds": params["rounds"] + 1}, optimizer

    object.__setattr__(algorithm, "fit", fit)
    server, state = algorithm.init_server(federation.task, seed), algorithm.init_clients(federation.task, batch, seed)
    nodes = torch.cat([batch.val, batch.test])
    owners = batch.rows.client_of[nodes]
    said: list[list[Any]] = [[], []]
    for index in range(1, rounds + 1):
        message = algorithm.broadcast(server, batch.client_ids)
        state, uplink = algorithm.client_update(state, message, batch, stream_key(seed, "round", index))
        server = algorithm.server_update(server, uplink, batch.client_ids)
        with torch.no_grad():
            both = algorithm._both(state, algorithm.broadcast(server, batch.client_ids), batch)
        for kept, part in zip(said, both, strict=True):
            kept.append(part[nodes].to(torch.float16).numpy())
    labels = batch.labels[nodes]
    return {
        "own": np.stack(said[0]),
        "taught": np.stack(said[1]),
        "labels": labels.numpy(),
        "owners": owners.numpy(),
        "minority": (labels != batch.train_class_counts.argmax(dim=1)[owners]).numpy(),
        "held": np.arange(len(nodes)) >= len(batch.val),
        "shares": state.log_shares.numpy(),
    }


if __name__ == "__main__":
    folder, name, backbone, rounds, seeds = sys.argv[1:]
    for seed in map(int, seeds.split(",")):
        np.savez(Path(folder) / f"{name}-{backbone}-{seed}.npz", **trace(name, backbone, int(rounds), seed))
        print(name, backbone, seed, flush=True)
