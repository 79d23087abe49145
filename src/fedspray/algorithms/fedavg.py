"""FedAvg (McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017).

θ ← Σ_k (n_k / Σ n) θ_k, with n_k the client's training nodes and θ_k what E steps from θ on L_k lead to.

Travels down: the GNN. Travels up: the GNN after E steps, and n_k.
Adam's moments stay at the client and are kept across rounds (`reset_optimizer` forgets them).
Both halves are in `_averaging.py`, because many algorithms change only one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspray.algorithms._averaging import AveragingServer, ClientState, ReceivingClients, ServerState

__all__ = ["ClientState", "FedAvg", "ServerState"]


@dataclass(frozen=True, kw_only=True)
class FedAvg(AveragingServer[ClientState], ReceivingClients[ServerState]):
    """Federated averaging of the whole GNN."""

    summary: ClassVar[str] = "one global GNN, averaged by training nodes"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
