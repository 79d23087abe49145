"""Keeps what every pair (w, a) gets right in every round, so that rules for choosing pair and round can be compared.

python trace.py FOLDER DATASET BACKBONE ROUNDS SEED[,SEED...] ENCODER_LR

Neither the GNN nor the teacher depends on the choice, so one training serves all rules: see rules.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from develop import federation_of
from replay import Recorded, record
from torch import Tensor
from torch.nn import functional

from fedspray import algorithms
from fedspray.algorithms._shift import SHIFTS
from fedspray.algorithms.fedspray2 import BLENDS
from fedspray.data.batch import GraphBatch
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Params
from fedspray.seeds import stream_key


def counts_of(own: Tensor, taught: Tensor, shares: Tensor, labels: Tensor, minority: Any) -> Any:
    """[2, W, A] right ones of all and of minority nodes, and the summed loss of each blend, [W]."""
    right = np.zeros((2, len(BLENDS), len(SHIFTS)))
    losses = np.zeros(len(BLENDS))
    for i, w in enumerate(BLENDS):
        mixed = (1 - w) * own + w * taught
        losses[i] = functional.cross_entropy(mixed, labels, reduction="sum").item()
        for j, a in enumerate(SHIFTS):
            hit = (mixed - a * shares).argmax(dim=1) == labels
            right[:, i, j] = int(hit.sum()), int((hit & minority).sum())
    return right, losses


def trace(dataset: str, backbone: str, rounds: int, seed: int, lr: float) -> dict[str, Any]:
    """Plays the rounds once."""
    federation = federation_of(dataset, seed)
    batch = GraphBatch.from_clients(federation.clients, range(federation.num_clients))
    record(batch, federation, backbone, rounds, seed)
    algorithm: Any = algorithms.find("fedspray2")(backbone=Recorded(), encoder_lr=lr)

    def fit(params: Params, optimizer: AdamState, *_: Any) -> tuple[Params, AdamState]:
        return {"rounds": params["rounds"] + 1}, optimizer

    object.__setattr__(algorithm, "fit", fit)
    server, state = algorithm.init_server(federation.task, seed), algorithm.init_clients(federation.task, batch, seed)
    kept: dict[str, list[Any]] = {name: [] for name in ("choice", "choice_loss", "held", "held_loss")}
    majority = batch.train_class_counts.argmax(dim=1)
    sizes = {}
    for index in range(1, rounds + 1):
        message = algorithm.broadcast(server, batch.client_ids)
        state, uplink = algorithm.client_update(state, message, batch, stream_key(seed, "round", index))
        server = algorithm.server_update(server, uplink, batch.client_ids)
        message = algorithm.broadcast(server, batch.client_ids)
        with torch.no_grad():
            own, taught = algorithm._both(state, message, batch)
        for half, nodes in (("choice", batch.val), ("held", batch.test)):
            owners, labels = batch.rows.client_of[nodes], batch.labels[nodes]
            minority = labels != majority[owners]
            sizes[half] = [len(nodes), int(minority.sum())]
            right, losses = counts_of(own[nodes], taught[nodes], state.log_shares[owners], labels, minority)
            kept[half].append(right)
            kept[f"{half}_loss"].append(losses)
    return {name: np.array(values) for name, values in kept.items()} | {f"{n}_size": s for n, s in sizes.items()}


if __name__ == "__main__":
    folder, dataset, backbone, rounds, seeds, lr = sys.argv[1:]
    for seed in map(int, seeds.split(",")):
        found = trace(dataset, backbone, int(rounds), seed, float(lr))
        np.savez(Path(folder) / f"{dataset}-{backbone}-{seed}-{lr}.npz", **found)
        print(dataset, backbone, seed, lr, flush=True)
