"""States of algorithms that average the clients' GNNs, as FedAvg does."""

from __future__ import annotations

from dataclasses import dataclass

from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Params, training_only


@dataclass(frozen=True)
class ServerState:
    """The global model θ (of FedPer its shared layers), without a client axis."""

    gnn: Params


@dataclass(frozen=True)
class ClientState:
    """A client that keeps its optimizer only."""

    gnn_optimizer: AdamState = training_only()
