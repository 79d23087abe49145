"""A control for FedLit: the same network and averaging, but each edge's type is drawn at random and says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedspray.algorithms.fedlit import FedLit
from fedspray.data.batch import GraphBatch
from fedspray.nn.edges import client_edges
from fedspray.seeds import torch_generator


@dataclass(frozen=True, kw_only=True)
class RandomTypes(FedLit):
    """FedLit without its link types: drawn once for each client, the same in every round and run."""

    summary: ClassVar[str] = "FedLit with link types drawn at random, a control"

    def find_types(
        self, projected: Tensor, centres: Tensor, batch: GraphBatch, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Drawn types, centres that match themselves only, and edges of each type."""
        drawn = self._draw(batch)
        counts = torch.stack([torch.bincount(types, minlength=self.link_types) for types in drawn])
        itself = torch.eye(self.link_types, centres.shape[2]).expand_as(centres)
        return torch.cat(drawn), itself.to(centres.dtype), counts.to(centres.dtype)

    def assign_types(self, projected: Tensor, centres: Tensor, batch: GraphBatch) -> Tensor:
        """The same types again."""
        return torch.cat(self._draw(batch))

    def _draw(self, batch: GraphBatch) -> list[Tensor]:
        return [
            torch.randint(self.link_types, (own.shape[1],), generator=torch_generator(0, "random types", client))
            for client, own in zip(batch.client_ids, client_edges(batch), strict=True)
        ]
