"""Link types: clustering the edges of each client by what their two ends look like."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedspray.data.batch import GraphBatch
from fedspray.seeds import torch_generator

REPRESENTATIONS = ("concat", "sym")
"""`concat`: [h_u | h_v] with u < v, as published. `sym`: [h_u + h_v | |h_u - h_v|], which no order of nodes changes."""

MAX_SAMPLE, LLOYD_STEPS, NOISE, TINY = 20_000, 5, 1e-6, 1e-12


def client_edges(batch: GraphBatch) -> list[Tensor]:
    """[2, E_k] for each client: its undirected edges, as rows of the batch."""
    owner = np.searchsorted(batch.rows.ptr, batch.edges[0], side="right") - 1
    ends = np.cumsum(np.bincount(owner, minlength=batch.num_clients))
    edges = torch.from_numpy(batch.edges).to(batch.device)
    return [edges[:, a:b] for a, b in pairwise([0, *ends.tolist()])]


def edge_vectors(hidden: Tensor, edges: Tensor, representation: str = "concat") -> Tensor:
    """e [E, 2H] from the representations of the ends: hidden [N, H], edges [2, E] in either direction."""
    low, high = torch.minimum(*edges), torch.maximum(*edges)
    if representation == "concat":  # one gather puts both halves where they belong
        return hidden[torch.stack([low, high], dim=1).view(-1)].view(len(low), 2 * hidden.shape[1])
    one, other = hidden[low], hidden[high]
    return torch.cat([one + other, (one - other).abs()], dim=1)


def assign(vectors: Tensor, centres: Tensor) -> Tensor:
    """[E]: the type whose centre [T, 2H] has the largest cosine with each vector [E, 2H]."""
    # The length of a vector is the same factor for all types.
    return (vectors @ _unit(centres).T).argmax(dim=1)


def mean_by_type(vectors: Tensor, types: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """New centres [T, 2H], the old one for an empty type, and the number of edges of each type [T]."""
    counts = torch.bincount(types, minlength=len(centres)).to(vectors.dtype)
    sums = torch.zeros_like(centres).index_add(0, types, vectors)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres), counts


def first_centres(vectors: Tensor, num_types: int, seed: int, client_id: int) -> Tensor:
    """Centres [T, 2H] to begin with: k-means++ and a few of Lloyd's steps on a sample of the edges.

    With fewer different vectors than types some are taken again, with a little noise. Without edges: zeros.
    """
    if len(vectors) == 0:
        return vectors.new_zeros(num_types, vectors.shape[1])
    stream, device, vectors = torch_generator(seed, "link types", client_id), vectors.device, vectors.cpu()
    sample = vectors[torch.randperm(len(vectors), generator=stream)[:MAX_SAMPLE]]
    centres = [sample[0]]
    distance = (sample - centres[0]).square().sum(dim=1)
    while len(centres) < num_types:
        if distance.max() > TINY:
            centres.append(sample[torch.multinomial(distance, 1, generator=stream)[0]])
        else:
            again = sample[torch.randint(len(sample), (1,), generator=stream)[0]]
            noise = torch.randn(again.shape, generator=stream, dtype=torch.float64).to(again.dtype)
            centres.append(again + NOISE * noise)
        distance = torch.minimum(distance, (sample - centres[-1]).square().sum(dim=1))
    found = torch.stack(centres)
    for _ in range(LLOYD_STEPS):
        # |e - m|² without |e|², which is the same for all types; k columns instead of a table of differences.
        nearest = (found.square().sum(dim=1) - 2 * sample @ found.T).argmin(dim=1)
        found, _ = mean_by_type(sample, nearest, found)
    return found.to(device)


def match(centres: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs centres [T, 2H] with a reference [T, 2H] one to one, so that the cosines add up to the most.

    Returns:
        order [T]: which of ``centres`` belongs to each reference; and the cosines of the pairs [T].
    """
    cosines = _unit(reference) @ _unit(centres).T
    order = torch.from_numpy(linear_sum_assignment(-cosines.double().numpy())[1])
    return order, cosines.gather(1, order[:, None])[:, 0]


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.square().sum(dim=1, keepdim=True).sqrt().clamp(min=TINY)
