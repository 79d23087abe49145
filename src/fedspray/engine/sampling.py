"""Training on a part of a large client: some training nodes and sampled neighbours, redrawn every round.

This is an approximation. A node sees only its sampled neighbours, and degrees are those in the
sample, so losses and gradients differ from full batches (the rest of the package is exact). It bounds the memory
and time of training by the sample; evaluation still uses all nodes, without gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from fedspray.algorithms.base import Algorithm
from fedspray.data.batch import GraphBatch
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.seeds import generator


def update_on_sample(
    algorithm: Algorithm[Any, Any], state: Any, message: Message, batch: GraphBatch, seed: int
) -> tuple[Any, Message]:
    """`client_update` on a sample of every client that has more than `sample_nodes` training nodes.

    Smaller clients train on all their nodes. State of training nodes outside the sample stays as it
    was. Facts about the client in the uplink cover the whole client, so averages weigh clients as before.
    """
    seeds = _draw_train(batch, algorithm.sample_nodes, seed)
    if len(seeds) == len(batch.train):
        return algorithm.client_update(state, message, batch, seed)
    drawn = batch.train.cpu()[torch.from_numpy(seeds)].numpy()
    part = batch.part(_sampled_nodes(algorithm, batch, drawn, seed), drawn)
    index = torch.from_numpy(seeds)
    trained, uplink = algorithm.client_update(tree.take_train(state, index), message, part, seed)
    whole = algorithm.state_of_whole(tree.put_train(state, trained, index), state, message, batch)
    return whole, algorithm.uplink_of_whole(uplink, state, message, batch)


def _draw_train(batch: GraphBatch, limit: int, seed: int) -> NDArray[np.int64]:
    """Positions among the training nodes, ascending: all of a small client, ``limit`` of a larger one."""
    chosen = []
    ptr = batch.train_rows.ptr
    for k, start, stop in zip(batch.client_ids, ptr, ptr[1:], strict=False):
        positions = np.arange(start, stop)
        if len(positions) > limit:
            positions = np.sort(generator(seed, "training sample", k).choice(positions, limit, replace=False))
        chosen.append(positions)
    return np.concatenate(chosen)


def _sampled_nodes(
    algorithm: Algorithm[Any, Any], batch: GraphBatch, drawn: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """All nodes of a small client; sampled training nodes and neighbours of a larger one; ascending."""
    large = (batch.num_train > algorithm.sample_nodes).cpu().numpy()
    owners = batch.rows.client_of.cpu().numpy()
    own = drawn[large[owners[drawn]]]
    found = _with_neighbours(batch, own, algorithm.backbone.layers, algorithm.fanout, seed)
    return np.union1d(np.flatnonzero(~large[owners]), found)


def _with_neighbours(
    batch: GraphBatch, nodes: NDArray[np.int64], hops: int, fanout: int, seed: int
) -> NDArray[np.int64]:
    """The nodes, and up to ``fanout`` sampled neighbours of each, ``hops`` times; ascending."""
    adjacency: sp.csr_array = batch.neighbours
    owners, sizes = batch.rows.client_of.cpu().numpy(), np.diff(adjacency.indptr)
    found, frontier = nodes, nodes
    for hop in range(hops):
        reached = []
        for position, k in enumerate(batch.client_ids):  # a client's draws are its own, alone or stacked
            own = frontier[owners[frontier] == position]
            own = own[sizes[own] > 0]
            draws = generator(seed, "neighbour sample", k, hop).random((len(own), fanout))
            places = adjacency.indptr[own, None] + (draws * sizes[own, None]).astype(np.int64)
            reached.append(adjacency.indices[places].ravel())
        frontier = np.setdiff1d(np.concatenate(reached), found)
        found = np.union1d(found, frontier)
    return found.astype(np.int64)
