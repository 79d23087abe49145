"""Plain torch modules with given weights, for use outside of this package: what `PersonalModel.to_torch` is made of.

Each is called as PyTorch Geometric's are: ``module(x, edge_index, edge_weight=None)`` with x [N, F], edges in both
directions [2, E], and weights [E]; it gives [N, C].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear map with weight [in, out]."""
    fan_in, fan_out = weight.shape
    made = nn.Linear(fan_in, fan_out, bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        made.weight.copy_(weight.T)
        if bias is not None:
            made.bias.copy_(bias)
    return made


def neighbour_sum(hidden: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
    """Σ_j w_ij h_j."""
    moved = hidden[edge_index[0]]
    if edge_weight is not None:
        moved = moved * edge_weight.to(hidden.dtype)[:, None]
    return torch.zeros_like(hidden).index_add(0, edge_index[1], moved)


def gcn_pass(hidden: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 H."""
    ones = torch.ones_like(hidden[:, :1])
    scale = (neighbour_sum(ones, edge_index, edge_weight) + 1).rsqrt()
    return scale * (neighbour_sum(scale * hidden, edge_index, edge_weight) + scale * hidden)


def mean_pass(hidden: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
    """D^-1 A H; 0 without neighbours."""
    total = neighbour_sum(torch.ones_like(hidden[:, :1]), edge_index, edge_weight)
    return torch.where(total > 0, neighbour_sum(hidden, edge_index, edge_weight) / total.clamp(min=1e-30), 0)


class Affine(nn.Module):
    """X W + b, whatever the edges."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.linear = linear(weight, bias)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in] → [N, out]."""
        found: Tensor = self.linear(x)
        return found


class Stack(nn.Module):
    """Layers one after the other, with an activation between them."""

    def __init__(self, layers: Sequence[nn.Module], activate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self._activate = nn.ModuleList(layers), activate

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, F] → [N, C]."""
        for number, layer in enumerate(self.layers):
            x = layer(self._activate(x) if number else x, edge_index, edge_weight)
        return x


class WithoutWeights(nn.Module):
    """A module of a user's own, (x, edge_index), which is told no weights of edges."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, F] → [N, C]."""
        found: Tensor = self.inner(x, edge_index)
        return found


class UnitRows(nn.Module):
    """Another module on features that are scaled to length 1."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *rest: Tensor | None, **more: Tensor | None) -> Tensor:
        """[N, F] → [N, C]."""
        found: Tensor = self.inner(unit(x), *rest, **more)
        return found


def unit(x: Tensor) -> Tensor:
    """Rows of length 1; rows of zeros stay."""
    lengths = x.double().norm(dim=1, keepdim=True)
    return x * torch.where(lengths > 0, 1 / lengths.clamp(min=1e-300), 0).to(x.dtype)
