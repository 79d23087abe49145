"""Tries many variants with the GNNs of one run: with λ1 = 0 they are Local's, whatever the teacher and the choice do.

    python replay.py DATASET BACKBONE ROUNDS SEED[,SEED...] NAME=ALGORITHM[,SETTING=VALUE...] ...

A row is the one that `develop.py` would write for the same variant, and goes to the same file.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from develop import federation_of, parsed, write_row
from torch import Tensor

from fedspray import algorithms, backbones
from fedspray.backbones.base import Backbone, Drop
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation, Task
from fedspray.data.statistics import node_homophily
from fedspray.evaluation.counting import Counter
from fedspray.evaluation.metrics import Counts
from fedspray.evaluation.selection import score
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Params
from fedspray.seeds import stream_key

RULES = ("loss",)
"""How the round is chosen. For some rows of trials.csv "accuracy", "balanced" and "last" were here, too."""

RECORDING: list[Tensor] = []
"""The GNNs' logits after each round, [R + 1] × [N, C]."""


@dataclass(frozen=True)
class Recorded(Backbone):
    """A backbone whose only weight is the number of rounds that it was trained for."""

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """The number of rounds."""
        return {"rounds": (1,)}

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        """Nothing."""
        return None

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        """What was recorded."""
        rounds = params["rounds"][batch.rows.client_of, 0].long()
        first = int(rounds[0])
        if bool((rounds == first).all()):
            return RECORDING[first]
        return torch.stack(RECORDING)[rounds, torch.arange(len(rounds))]

    def init_params(self, task: Task, batch: GraphBatch, seed: int, *, common: bool = True) -> Params:
        """No rounds yet."""
        return {"rounds": torch.zeros(batch.num_clients, 1)}


def record(batch: GraphBatch, federation: Federation, backbone: str, rounds: int, seed: int) -> None:
    """Trains Local and keeps its logits."""
    local: Any = algorithms.find("local")(backbone=backbones.make(backbone))
    state = local.init_clients(federation.task, batch, seed)
    RECORDING[:] = [local.predict(state, {}, batch)]
    for index in range(1, rounds + 1):
        state, _ = local.client_update(state, {}, batch, stream_key(seed, "round", index))
        RECORDING.append(local.predict(state, {}, batch))


def play(algorithm: Any, batch: GraphBatch, federation: Federation, counter: Counter, rounds: int, seed: int) -> Any:
    """The rounds of `fedspray run` without an engine; returns the record of the round that each rule chooses."""

    def fit(params: Params, optimizer: AdamState, *_: Any) -> tuple[Params, AdamState]:
        return {"rounds": params["rounds"] + 1}, optimizer

    object.__setattr__(algorithm, "fit", fit)
    ids = batch.client_ids
    server, state = algorithm.init_server(federation.task, seed), algorithm.init_clients(federation.task, batch, seed)
    best: dict[str, tuple[float, Any]] = {}
    for index in range(1, rounds + 1):
        message = algorithm.broadcast(server, ids)
        state, uplink = algorithm.client_update(state, message, batch, stream_key(seed, "round", index))
        server = algorithm.server_update(server, uplink, ids)
        message = algorithm.broadcast(server, ids)
        with torch.no_grad():
            given = (state, message, batch)
            counts = Counts.from_message(counter.count(algorithm.predict(*given), algorithm.loss_logits(*given)))
        found = {part: counts.part(part).summary() for part in ("val", "test")}
        made = {"round": index, "diagnostics": algorithm.diagnostics(server, uplink), **found}
        scores = {rule: score(rule, found["val"]) or 0.0 for rule in RULES} | (
            {"last": index} if len(RULES) > 1 else {}
        )
        for rule, value in scores.items():
            if rule not in best or value > best[rule][0]:
                best[rule] = value, made
    return {rule: made for rule, (_, made) in best.items()}


def main(dataset: str, backbone: str, rounds: int, seeds: list[int], variants: list[str]) -> None:
    """Runs every variant with every seed."""
    for seed in seeds:
        federation = federation_of(dataset, seed)
        batch = GraphBatch.from_clients(federation.clients, range(federation.num_clients))
        homophily = [node_homophily(client.graph) for client in federation.clients]
        counter = Counter(batch, np.concatenate(homophily))
        record(batch, federation, backbone, rounds, seed)
        for text in variants:
            name, rest = text.split("=", 1)
            kind, *given = rest.split(",")
            began = time.process_time()
            algorithm = algorithms.find(kind)(backbone=Recorded(), **parsed(given))
            found = play(algorithm, batch, federation, counter, rounds, seed)
            for rule, made in found.items():
                label = name if rule == "loss" else f"{name} [round by {rule}]"
                write_row((label, dataset, backbone, seed, rounds, kind, given), made, time.process_time() - began)


if __name__ == "__main__":
    dataset, backbone, rounds, seeds, *variants = sys.argv[1:]
    main(dataset, backbone, int(rounds), [int(seed) for seed in seeds.split(",")], variants)
