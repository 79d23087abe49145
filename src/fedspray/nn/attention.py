"""Graph attention (Veličković et al., ICLR 2018) over any set of a batch's edges."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fedspray.data.batch import NodeRows
from fedspray.nn import ops


def attend(
    moved: Tensor, weights: Mapping[str, Tensor], edge_index: Tensor, rows: NodeRows, *, heads: int, slope: float
) -> Tensor:
    """Σ_j α_ij v_j + b with α_ij = softmax_j(leaky_relu(a_s·v_j + a_t·v_i)), for each head apart.

    Shapes: moved (v) [N, out] → [N, out]; edges j → i as edge_index [2, E]; weights ``source`` (a_s) and ``target``
    (a_t) [K, 1, out], ``bias`` [K, out].
    """
    values = moved.view(len(moved), heads, -1)  # [N, heads, width]
    vectors = {name: ops.per_row(weights[name][:, 0], rows).view_as(values) for name in ("source", "target")}
    from_source, at_target = ((values * vectors[name]).sum(dim=2) for name in ("source", "target"))  # [N, heads]
    source, target = edge_index
    scores = functional.leaky_relu(from_source[source] + at_target[target], slope)
    messages = values[source] * _softmax_by_target(scores, target, len(moved))[:, :, None]
    summed = torch.zeros_like(values).index_add(0, target, messages)
    return summed.flatten(1) + ops.per_row(weights["bias"], rows)


def _softmax_by_target(scores: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Softmax of [E, heads] over the edges that end at the same node."""
    highest = scores.new_full((num_nodes, scores.shape[1]), -torch.inf)
    highest = highest.scatter_reduce(0, target[:, None].expand_as(scores), scores.detach(), reduce="amax")
    exponentials = (scores - highest[target]).exp()
    totals = torch.zeros_like(highest).index_add(0, target, exponentials)
    return exponentials / totals[target]
