"""FedSpray's released code as a player of the benchmark: what its authors' implementation takes for a round.

    git clone of xbfu/FedSpray, then
    FEDSPRAY_RELEASED=FOLDER fedspray bench --dataset pubmed --backbone sage --algorithm fedspray \\
        --reference benchmarks/released.py

Nothing of that code is here: its modules `client`, `model` and `server` are imported from the folder as they are and
run on the clients of the benchmark. Rounds are told apart by the one line that its server prints in each. Initial
weights and some settings are its own, so accuracies differ from ours; only the time of a round is compared.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedspray import Federation, FedSpray, InputError

VARIABLE = "FEDSPRAY_RELEASED"
GNNS = ("GCN", "SAGE")
"""Classes of the same name here and there."""


@dataclass(frozen=True)
class OneGraph:
    """What the released code expects of a data set: all nodes in one graph."""

    data: Any
    num_node_features: int
    num_classes: int

    def __getitem__(self, index: int) -> Any:
        return self.data


class Released:
    """Its training loop in a thread of its own, which waits after every round."""

    def __init__(self, module: Any, server: Any) -> None:
        self._go, self._over, self._line = threading.Semaphore(0), threading.Semaphore(0), ""
        module.print = self._pause
        threading.Thread(target=self._work, args=(server,), daemon=True).start()

    def round(self) -> dict[str, dict[str, float]]:
        """One round; the loss is that of validation nodes, which is all that it reports."""
        self._go.release()
        self._over.acquire()
        found = {name: float(value) for name, value in re.findall(r"(\w+): *([0-9.]+)", self._line)}
        return {"test": {"loss": found["val_loss"], "overall": found["acc_test"]}}

    def _work(self, server: Any) -> None:
        self._go.acquire()
        server.train(sys.maxsize)

    def _pause(self, line: str) -> None:
        self._line = line
        self._over.release()
        self._go.acquire()


def build(federation: Federation, algorithm: FedSpray, seed: int, dtype: torch.dtype) -> Released:
    """Clients and server of the released code for this federation."""
    folder, backbone = os.environ.get(VARIABLE), type(algorithm.backbone).__name__
    if not folder or not (Path(folder) / "client.py").is_file():
        raise InputError(f"{VARIABLE} is {folder!r}, but must be the folder of a clone of xbfu/FedSpray")
    if backbone not in GNNS or not isinstance(algorithm, FedSpray):
        name = type(algorithm).__name__
        raise InputError(f"the algorithm is {name} with {backbone}, but the released code is FedSpray with GCN or SAGE")
    sys.path.insert(0, folder)
    model, client, server = (importlib.import_module(name) for name in ("model", "client", "server"))
    vars(client)["SAGE"] = getattr(model, backbone)  # the one that its clients use
    torch.manual_seed(seed)
    data, nodes = _one_graph(federation)
    ids, device, own = list(range(federation.num_clients)), torch.device("cpu"), algorithm.backbone
    settings = (own.lr, algorithm.local_epochs, own.hidden, algorithm.distill_weight, algorithm.proxy_dim, device)
    clients = [client.Client(k, data, *nodes[k], *settings) for k in ids]
    train = [parts[0] for parts in nodes]
    return Released(server, server.Server(clients, ids, train, data, own.hidden, device, algorithm.proxy_dim))


def _one_graph(federation: Federation) -> tuple[OneGraph, list[tuple[list[int], ...]]]:
    """All clients side by side, and the training, validation and test nodes of each."""
    features, labels, edges, nodes, start = [], [], [], [], 0
    for client in federation.clients:
        graph, split = client.graph, client.split
        features.append(np.asarray(graph.dense_features(), dtype=np.float32))
        labels.append(graph.labels)
        edges.append(graph.both_directions() + start)
        nodes.append(tuple((np.flatnonzero(m) + start).tolist() for m in (split.train, split.val, split.test)))
        start += graph.num_nodes
    data = SimpleNamespace(
        x=torch.from_numpy(np.concatenate(features)),
        y=torch.from_numpy(np.concatenate(labels).astype(np.int64)),
        edge_index=torch.from_numpy(np.concatenate(edges, axis=1).astype(np.int64)),
        num_nodes=start,
    )
    return OneGraph(data, data.x.shape[1], federation.task.num_classes), nodes
