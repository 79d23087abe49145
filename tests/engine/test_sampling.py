from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from toys import ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.api import run
from fedspray.data.federation import Federation, Task
from fedspray.data.graph import Graph
from fedspray.engine import sampling
from fedspray.errors import InputError
from fedspray.federate import build_federation
from fedspray.nn import ops, tree


def make(name: str = "fedspray", **values: Any) -> Any:
    return algorithms.find(name)(backbone=backbones.make("gcn", hidden=4), **values)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_sample_of_everything_is_the_exact_update(sparse: bool) -> None:
    federation = ragged_federation(sparse=sparse)
    batch = stack(federation)
    for name in ("fedspray", "fedspray2", "fedavg"):
        exact, sampled = make(name), make(name, sample_nodes=100)
        server = tree.cast(exact.init_server(federation.task, 0), torch.float64)
        message = exact.broadcast(server, range(3))
        state = exact.init_clients(federation.task, batch, 0)
        expected = tree.flatten(exact.client_update(state, message, batch, 5)[0])
        found = tree.flatten(sampling.update_on_sample(sampled, state, message, batch, 5)[0])
        assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.parametrize("sparse", [False, True])
def test_a_part_is_the_induced_subgraph(sparse: bool) -> None:
    batch = stack(ragged_federation(sparse=sparse))
    nodes = np.array([0, 2, 3, 10, 11, 12, 24, 28])
    part = batch.part(nodes, np.array([2, 11, 28]))
    assert part.rows.ptr == (0, 3, 6, 8)
    assert part.train.tolist() == [1, 4, 7]
    assert part.labels.tolist() == batch.labels[nodes].tolist()
    expected = batch.neighbours.toarray()[np.ix_(nodes, nodes)]
    assert np.array_equal(part.neighbours.toarray(), expected)
    weight = torch.randn(3, 5, 2, dtype=torch.float64)
    assert torch.allclose(ops.feature_linear(part.rows, weight), ops.feature_linear(batch.rows, weight)[nodes])
    assert torch.allclose(
        ops.feature_linear(part.train_rows, weight), ops.feature_linear(batch.rows, weight)[[2, 11, 28]]
    )


def test_only_drawn_nodes_change_and_clients_keep_their_weight() -> None:
    federation = ragged_federation(sparse=True)
    batch = stack(federation)
    algorithm = make(node_proxy_start="kept", sample_nodes=2, fanout=1)
    message = algorithm.broadcast(tree.cast(algorithm.init_server(federation.task, 0), torch.float64), range(3))
    state = algorithm.init_clients(federation.task, batch, 0)
    trained, uplink = sampling.update_on_sample(algorithm, state, message, batch, 5)
    changed = (trained.node_proxies != state.node_proxies).any(dim=1)
    sizes = batch.train_rows.sizes
    assert [int(part.sum()) for part in changed.split(sizes)] == [min(2, size) for size in sizes]
    assert torch.equal(uplink["num_train"], batch.num_train)


def test_what_is_taken_is_put_back_where_it_was() -> None:
    federation = ragged_federation()
    batch = stack(federation)
    algorithm = make(node_proxy_start="kept")
    state = algorithm.init_clients(federation.task, batch, 0)
    count = len(batch.train)
    for index in (torch.arange(count).flip(0), torch.arange(0, count, 2), torch.tensor([count - 1, 0])):
        taken = tree.take_train(state, index)
        assert torch.equal(taken.node_proxies, state.node_proxies[index])
        back = tree.flatten(tree.put_train(state, taken, index))
        assert all(torch.equal(back[name], leaf) for name, leaf in tree.flatten(state).items())


def test_neighbours_are_neighbours_and_a_client_alone_draws_the_same() -> None:
    federation = ragged_federation()
    batch = stack(federation)
    nodes = np.array([1, 12, 25])
    found = sampling._with_neighbours(batch, nodes, 1, 2, 7)
    reachable = np.flatnonzero(batch.neighbours.toarray()[nodes].any(axis=0))
    assert set(found) <= set(nodes) | set(reachable)
    alone = stack(federation, ids=[1])
    start = batch.rows.ptr[1]
    own = sampling._with_neighbours(alone, np.array([12 - start]), 1, 2, 7)
    assert [start + i for i in own] == [i for i in found if start <= i < batch.rows.ptr[2]]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", algorithms.names())
def test_a_client_is_updated_the_same_whoever_shares_its_block(name: str, sparse: bool) -> None:
    """They have 4, 6 and 2 training nodes: the second is sampled, the others are trained on all they have."""
    federation = ragged_federation(sparse=sparse)
    batch, algorithm = stack(federation), make(name, sample_nodes=4, fanout=1)
    assert batch.train_rows.sizes == (4, 6, 2)
    message = algorithm.broadcast(tree.cast(algorithm.init_server(federation.task, 0), torch.float64), range(3))
    state = algorithm.init_clients(federation.task, batch, 0)
    trained, uplink = sampling.update_on_sample(algorithm, state, message, batch, 5)
    for k, together in enumerate(tree.split(trained, batch)):
        own = {key: value[k : k + 1] for key, value in message.items()}
        alone = stack(federation, ids=[k])
        begin = algorithm.init_clients(federation.task, alone, 0)
        single, sent = sampling.update_on_sample(algorithm, begin, own, alone, 5)
        expected, found = tree.flatten(single), tree.flatten(together)
        assert all(torch.allclose(found[key], value, atol=1e-10) for key, value in expected.items())
        assert all(torch.allclose(uplink[key][k], value[0], atol=1e-10) for key, value in sent.items())


@pytest.mark.parametrize("weighting", ["train", "all"])
def test_blends_and_weights_are_those_of_the_whole_client(weighting: str) -> None:
    federation = ragged_federation()
    batch = stack(federation)
    exact, sampled = (make("fedspray-plus", weighting=weighting, sample_nodes=limit, fanout=1) for limit in (0, 2))
    message = exact.broadcast(tree.cast(exact.init_server(federation.task, 0), torch.float64), range(3))
    state = exact.init_clients(federation.task, batch, 0)
    _, expected = exact.client_update(state, message, batch, 5)
    _, found = sampling.update_on_sample(sampled, state, message, batch, 5)
    assert expected["blend_counts"].any()
    for key in ("num_train", "blend_counts"):
        assert torch.equal(found[key], expected[key])


def test_the_gradient_of_a_sample_stands_for_the_whole_client() -> None:
    """Features alike and no edges: every training node of a class has the same gradient."""
    graph = Graph.from_arrays(np.ones((10, 2)), np.zeros((2, 0)), np.ones(10), num_classes=3)
    batch = stack(Federation.from_graphs({"a": graph}))
    exact, sampled = (make("fedspray2", encoder_dropout=0.0, sample_nodes=limit) for limit in (0, 2))
    message = exact.broadcast(tree.cast(exact.init_server(Task(2, 3), 0), torch.float64), [0])
    state = exact.init_clients(Task(2, 3), batch, 0)
    _, expected = exact.client_update(state, message, batch, 5)
    _, found = sampling.update_on_sample(sampled, state, message, batch, 5)
    assert expected["num_val"] == 3
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], value) for name, value in expected.items())


def test_training_on_samples_learns() -> None:
    federation = build_federation("banks", clients=2, nodes=3_000)
    sampled = run(federation, algorithm="fedspray", rounds=15, sample_nodes=200).seeds[0].metrics
    exact = run(federation, algorithm="fedspray", rounds=15).seeds[0].metrics
    assert sampled["overall"] > exact["overall"] - 0.05
    assert sampled["models"] != exact["models"]


@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithm_runs_on_samples(name: str) -> None:
    result = run(ragged_federation(sparse=True), algorithm=name, rounds=2, sample_nodes=2, fanout=1, hidden=4)
    assert result.seeds[0].metrics["failures"] == 0


def test_bad_samples_are_refused() -> None:
    with pytest.raises(InputError, match="sample_nodes is -1, but must be at least 0"):
        make(sample_nodes=-1)
