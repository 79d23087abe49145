"""Cutting a group of clients in two where they are least alike: similarities, cuts, and what a cut is worth."""

from __future__ import annotations

import torch
from torch import Tensor


def cosines(updates: Tensor) -> Tensor:
    """[m, P] → [m, m]; an update of 0 is similar to nothing, itself included."""
    directions = updates / updates.norm(dim=1, keepdim=True).clamp(min=1e-12)
    products: Tensor = directions @ directions.T
    return products.clamp(-1, 1)


def minimum_cut(weights: Tensor) -> Tensor:
    """One side of Stoer and Wagner's global minimum cut of a complete graph with these weights: [m, m] → bool [m]."""
    import networkx as nx

    values = weights.tolist()
    graph = nx.complete_graph(len(values))
    nx.set_edge_attributes(graph, {(i, j): values[i][j] for i, j in graph.edges}, "weight")
    _, (side, _) = nx.stoer_wagner(graph)
    return torch.isin(torch.arange(len(weights)), torch.tensor(side))


def linkage_cut(similarities: Tensor) -> Tensor:
    """The last merge of agglomerative clustering with complete linkage: [m, m] → bool [m]."""
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    distances = squareform(1 - similarities.double().numpy(), checks=False)
    labels = torch.from_numpy(cut_tree(linkage(distances, "complete"), n_clusters=2)[:, 0])
    return labels == labels[0]


def similarity_gap(similarities: Tensor, part: Tensor) -> float:
    """Mean similarity of the pairs inside the two parts minus that of the pairs across."""
    same = part[:, None] == part[None, :]
    pairs = torch.ones_like(same).triu(diagonal=1)
    inside, across = similarities[same & pairs], similarities[~same & pairs]
    return float((inside.mean() if len(inside) else 1.0) - across.mean())
