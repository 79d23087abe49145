"""FedALA, evaluated in another place."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedspray.algorithms.fedala import ClientState, FedALA
from fedspray.data.batch import GraphBatch
from fedspray.nn.tree import Message


@dataclass(frozen=True, kw_only=True)
class Trained(FedALA):
    """What is evaluated is the client's model after its local steps, not its mix with the next global model."""

    def predict(self, client: ClientState, message: Message, batch: GraphBatch) -> Tensor:
        """The client's own model."""
        return self.backbone.logits(client.gnn, batch)
