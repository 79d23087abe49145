from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from toys import awkward_federation, ragged_federation, stack

from fedspray import algorithms, backbones
from fedspray.algorithms.fedlit import ChannelNet, ClientState, FedLit, ServerState
from fedspray.backbones.base import Backbone, Drop
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Federation, Task
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.nn import edges
from fedspray.nn.channels import Convolution, num_weights, split_edges
from fedspray.nn.optim import AdamState
from fedspray.nn.tree import Message, Params, cast, flatten, part_of
from fedspray.seeds import generator

PUBMED = Task(500, 3)
KINDS = backbones.names()


def lit(backbone: str = "gcn", *, hidden: int = 8, **settings: Any) -> FedLit:
    own = {name: settings.pop(name) for name in ("dropout", "layers", "lr", "init") if name in settings}
    return FedLit(backbone=backbones.make(backbone, hidden=hidden, **own), **settings)


def start(algorithm: Any, batch: GraphBatch) -> tuple[Any, Any]:
    task = Task(batch.num_features, batch.num_classes)
    return cast(algorithm.init_server(task, 0), batch.dtype), algorithm.init_clients(task, batch, 0)


def run(algorithm: Any, batch: GraphBatch, rounds: int = 3) -> tuple[Any, Any, Message]:
    server, client = start(algorithm, batch)
    uplink: Message = {}
    for round_index in range(rounds):
        message = algorithm.broadcast(server, batch.client_ids)
        client, uplink = algorithm.client_update(client, message, batch, round_index)
        server = algorithm.server_update(server, uplink, batch.client_ids)
    return server, client, uplink


def predict(algorithm: Any, server: Any, client: Any, batch: GraphBatch) -> Tensor:
    logits: Tensor = algorithm.predict(client, algorithm.broadcast(server, batch.client_ids), batch)
    return logits


def close(a: Message, b: Message) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], rtol=0, atol=1e-10) for n in a)


@dataclass(frozen=True)
class OneChannel(Backbone):
    """FedLit's network with a single channel, as a backbone for Local and FedAvg."""

    convolution: Convolution = Convolution("gcn")

    @property
    def net(self) -> ChannelNet:
        return ChannelNet(self.convolution, self.hidden, self.layers, 1)

    def shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        return self.net.shapes(task)

    def draw(self, task: Task, generator: torch.Generator) -> Params:
        return self.net.draw(task, generator)

    def embed(self, params: Params, batch: GraphBatch, drop: Drop) -> Tensor | None:
        return self.net.project(params, batch)

    def classify(self, params: Params, hidden: Tensor | None, batch: GraphBatch, drop: Drop) -> Tensor:
        assert hidden is not None
        channels = split_edges(batch, torch.zeros(batch.edges.shape[1], dtype=torch.int64), 1)
        return self.net.logits(params, hidden, channels, batch, drop)


def one_channel(algorithm: FedLit, batch: GraphBatch) -> OneChannel:
    plain = {f.name: getattr(algorithm.backbone, f.name) for f in fields(Backbone)}
    return OneChannel(**plain, convolution=algorithm.network(batch).convolution)


# ---- the limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_type_is_fedavg_on_the_same_network(backbone: str, dropout: float) -> None:
    batch = stack(ragged_federation(sparse=True))
    algorithm = lit(backbone, link_types=1, dropout=dropout)
    server, _, _ = run(algorithm, batch, rounds=5)
    averaged, _, _ = run(algorithms.find("fedavg")(backbone=one_channel(algorithm, batch)), batch, rounds=5)
    assert close(server.gnn, averaged.gnn)


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("reset", [False, True])
def test_one_type_and_no_communication_is_local(backbone: str, reset: bool) -> None:
    batch = stack(ragged_federation(sparse=True))
    algorithm = lit(backbone, link_types=1, share="nothing", reset_optimizer=reset)
    assert algorithm.broadcast(algorithm.init_server(Task(5, 3), 0), (0, 1, 2)) == {}
    server, client, _ = run(algorithm, batch)
    local = algorithms.find("local")(backbone=one_channel(algorithm, batch), reset_optimizer=reset)
    _, alone, _ = run(local, batch)
    assert close(part_of(client.kept, "gnn"), alone.gnn)
    assert torch.allclose(predict(algorithm, server, client, batch), local.predict(alone, {}, batch), atol=1e-10)


def test_a_channel_of_all_edges_is_the_batch() -> None:
    for federation in (ragged_federation(), awkward_federation()):
        batch = stack(federation)
        (channel,) = split_edges(batch, torch.zeros(batch.edges.shape[1], dtype=torch.int64), 1)
        for name in ("gcn_adjacency", "mean_adjacency"):
            ours, whole = getattr(channel, name), getattr(batch, name)
            assert torch.allclose(ours.matrix.to_dense(), whole.matrix.to_dense(), rtol=0, atol=1e-12)
            assert torch.equal(ours.transpose.to_dense(), ours.matrix.to_dense().T)
            assert ours.matrix.crow_indices().dtype == ours.matrix.col_indices().dtype == torch.int32
        pairs = {tuple(pair) for pair in channel.edge_index_with_loops.T.tolist()}
        assert pairs == {tuple(pair) for pair in batch.edge_index_with_loops.T.tolist()}


def test_every_edge_is_in_exactly_one_channel() -> None:
    batch = stack(ragged_federation())
    types = torch.from_numpy(generator(0, "types").integers(0, 3, size=batch.edges.shape[1]))
    found = []
    for channel in split_edges(batch, types, 3, self_loops=False):
        source, target = channel.edge_index_with_loops
        found += [(u, v) for u, v in zip(source.tolist(), target.tolist(), strict=True) if u < v]
        isolated = channel.degrees == 0
        assert not channel.gcn_adjacency.matrix.to_dense()[isolated].any()
        assert torch.isfinite(channel.gcn_adjacency.matrix.values()).all()
    assert sorted(found) == sorted(map(tuple, batch.edges.T.tolist()))
    _, _, uplink = run(lit(), batch, rounds=1)
    owners = batch.rows.client_of[torch.from_numpy(batch.edges[0])]
    assert torch.equal(uplink["type_counts"].sum(dim=1), torch.bincount(owners, minlength=3).double())


# ---- what travels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("link_types", [1, 3])
def test_uploads(link_types: int) -> None:
    batch = stack(ragged_federation())
    server, client, uplink = run(lit(link_types=link_types), batch, rounds=1)
    assert uplink["centres"].shape == (3, link_types, 16)
    assert uplink["type_counts"].shape == (3, link_types)
    assert uplink["gnn.channels.conv2.weight"].shape == (3, link_types, 8, 8)
    assert client.kept == {}
    message = lit(link_types=link_types).broadcast(server, batch.client_ids)
    for name, value in message.items():
        assert name == "order" or (torch.equal(value[0], value[1]) and torch.equal(value[0], value[2]))
    weights = batch.num_train / batch.num_train.sum()
    expected = sum(w * v for w, v in zip(weights, uplink["gnn.project.weight"], strict=True))
    assert torch.allclose(message["gnn.project.weight"][0], expected, rtol=0, atol=1e-12)


def test_bytes_for_pubmed() -> None:
    """W_1 500·64 + 64, four channels of three layers 64·64 + 64, W_out 64·3 + 3, centres 4·128."""
    algorithm = lit(hidden=64)
    message = algorithm.broadcast(algorithm.init_server(PUBMED, 0), (0,))
    assert sum(v.numel() for v in part_of(message, "gnn").values()) == 32_064 + 4 * 3 * 4_160 + 195 == 82_179
    assert message["centres"].numel() == 512
    assert (message["order"].numel(), message["order"].dtype) == (4, torch.int64)


# ---- types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("representation", edges.REPRESENTATIONS)
def test_types_do_not_depend_on_direction_or_length(representation: str) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 4, generator=draw)
    pairs = torch.stack([torch.randint(0, 20, (50,), generator=draw), torch.randint(0, 20, (50,), generator=draw)])
    centres = torch.randn(3, 8, generator=draw)
    vectors = edges.edge_vectors(hidden, pairs, representation)
    assert torch.equal(vectors, edges.edge_vectors(hidden, pairs.flip(0), representation))
    types = edges.assign(vectors, centres)
    assert torch.equal(types, edges.assign(8 * vectors, centres))
    assert torch.equal(types, edges.assign(vectors, centres * torch.tensor([[1.0], [4.0], [0.5]])))
    assert set(types.tolist()) == {0, 1, 2}


def test_symmetric_vectors_do_not_depend_on_the_order_of_nodes() -> None:
    hidden, pairs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1], [2, 5]])
    order = torch.tensor([5, 3, 4, 0, 2, 1])
    renamed = torch.empty_like(hidden)
    renamed[order] = hidden
    assert torch.equal(edges.edge_vectors(hidden, pairs, "sym"), edges.edge_vectors(renamed, order[pairs], "sym"))


def test_means_and_empty_types_by_hand() -> None:
    vectors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    old = torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]])
    centres, counts = edges.mean_by_type(vectors, torch.tensor([0, 0, 2]), old)
    assert centres.tolist() == [[2.0, 0.0], [8.0, 8.0], [0.0, 5.0]]
    assert counts.tolist() == [2.0, 0.0, 1.0]


def test_first_centres() -> None:
    draw = torch.Generator().manual_seed(0)
    planted = torch.tensor([[10.0, 0.0], [0.0, 10.0], [-10.0, 0.0]])
    vectors = planted[torch.randint(0, 3, (90,), generator=draw)] + 0.1 * torch.randn(90, 2, generator=draw)
    for seed in range(5):
        found = edges.first_centres(vectors, 3, seed, 0)
        _, cosines = edges.match(found, planted)
        assert cosines.min() > 0.99
    few = edges.first_centres(vectors[:1].expand(4, -1), 3, 0, 0)  # one different edge, three types
    assert torch.isfinite(few).all()
    assert (few - vectors[0]).abs().max() < 1e-4
    assert not edges.first_centres(vectors[:0], 3, 0, 0).any()


def test_matching_is_one_to_one_and_the_best_of_all() -> None:
    """The largest entry first would pair (0, 0) and leave cos -1 for the rest; together 0.8 + 0.6 is more."""
    reference = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
    centres = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    order, cosines = edges.match(centres, reference)
    assert order.tolist() == [1, 0]  # 0 + 0.8 beats 1 - 0.6
    assert cosines.tolist() == pytest.approx([0.0, 0.8])


def planted_federation() -> tuple[Federation, list[np.ndarray]]:
    """Two link types: inside class 0, and between class 0 and class 1; classes have features of their own."""
    graphs, planted = {}, []
    for k in range(3):
        draw = generator(21, "planted", k)
        labels = np.repeat([0, 1], 20)
        inside, across = draw.integers(0, 20, size=(2, 40 + 20 * k)), draw.integers(0, 20, size=(2, 60 - 10 * k))
        across[1] += 20
        features = 3 * np.eye(6)[labels] + 0.2 * draw.normal(size=(40, 6))
        graph = Graph.from_arrays(features, np.concatenate([inside, across], axis=1), labels, num_classes=2)
        graphs[f"client_{k}"] = graph
        planted.append((graph.labels[graph.edges[0]] != graph.labels[graph.edges[1]]).astype(int))
    return Federation.from_graphs(graphs, name="planted"), planted


@pytest.mark.parametrize("representation", edges.REPRESENTATIONS)
@pytest.mark.parametrize("backbone", ["gcn", "sage", "sgc"])
def test_planted_types_are_found_and_mean_the_same_everywhere(backbone: str, representation: str) -> None:
    federation, planted = planted_federation()
    batch = stack(federation)
    algorithm = lit(backbone, link_types=2, edge_repr=representation)
    server, _, uplink = run(algorithm, batch, rounds=5)
    projected = algorithm.network(batch).project(part_of(algorithm.broadcast(server, batch.client_ids), "gnn"), batch)
    meaning = set()
    for own, truth in zip(edges.client_edges(batch), planted, strict=True):
        types = edges.assign(edges.edge_vectors(projected, own, representation), server.centres).numpy()
        assert adjusted_rand_score(truth, types) > 0.9
        meaning.add(int(np.round(types[truth == 1].mean())))
    assert len(meaning) == 1
    found = json.loads(json.dumps(algorithm.diagnostics(server, uplink)))
    inside, across = np.array(found["type_shares"]).T if meaning == {1} else np.array(found["type_shares"]).T[::-1]
    assert across == pytest.approx([truth.mean() for truth in planted], abs=0.05)
    assert inside[2] > inside[0]
    assert min(found["matching_cosine"]) > 0.9
    assert (found["empty_types"], found["clients_without_type"]) == ([], [0, 0])


# ---- alignment --------------------------------------------------------------------------------------


def permuted(values: Any, order: Tensor) -> dict[str, Tensor]:
    """The channels of all clients in another order: in a message, in weights or in moments."""
    return {
        name: value[:, order] if "channels." in name or name in ("centres", "type_counts") else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("backbone", ["gcn", "sgc"])
def test_matching_undoes_a_permutation_and_moves_the_moments_along(backbone: str) -> None:
    """One client (not the one with most edges, which names them first) names its types otherwise: nothing changes."""
    federation = ragged_federation()
    algorithm, batches = lit(backbone, link_types=3), [stack(federation, [k]) for k in range(3)]
    order = torch.tensor([2, 0, 1])
    states = []
    for planted in (False, True):
        server = cast(algorithm.init_server(federation.task, 0), torch.float64)
        clients = [algorithm.init_clients(federation.task, batch, 0) for batch in batches]
        for round_index in range(3):
            uplinks = []
            for k, batch in enumerate(batches):
                message = algorithm.broadcast(server, (k,))
                clients[k], uplink = algorithm.client_update(clients[k], message, batch, round_index)
                if planted and k == 0:
                    uplink, memory = permuted(uplink, order), clients[k].optimizer
                    moments = AdamState(permuted(memory.first, order), permuted(memory.second, order), memory.step)
                    clients[k] = ClientState({}, moments)
                uplinks.append(uplink)
            joined = {name: torch.cat([uplink[name] for uplink in uplinks]) for name in uplinks[0]}
            server = algorithm.server_update(server, joined, (0, 1, 2))
        states.append((server, clients))
    (plain, plain_clients), (same, same_clients) = states
    assert close(plain.gnn, same.gnn)
    assert torch.allclose(plain.centres, same.centres, rtol=0, atol=1e-10)
    assert not torch.equal(plain.orders[0], same.orders[0])
    for k, batch in enumerate(batches):
        next_round = [
            algorithm.client_update(clients[k], algorithm.broadcast(server, (k,)), batch, 9)[1]
            for server, clients in ((plain, plain_clients), (same, same_clients))
        ]
        assert close(*next_round)


@pytest.mark.parametrize("backbone", KINDS)
def test_renaming_types_everywhere_leaves_predictions(backbone: str) -> None:
    batch, algorithm = stack(ragged_federation()), lit(backbone, link_types=3)
    server, client, _ = run(algorithm, batch)
    order = torch.tensor([1, 2, 0])
    gnn = {name: value[order] if name.startswith("channels.") else value for name, value in server.gnn.items()}
    renamed = replace(server, gnn=gnn, centres=server.centres[order])
    logits = predict(algorithm, server, client, batch)
    assert torch.allclose(logits, predict(algorithm, renamed, client, batch), rtol=0, atol=1e-10)
    wrong = replace(server, gnn=gnn)
    if backbone != "mlp":  # without messages the types do not reach the logits
        assert not torch.allclose(logits, predict(algorithm, wrong, client, batch))


def test_averages_by_hand() -> None:
    """T = 2, centres in the plane. Client 0: 10 training nodes, both types; client 1: 30, type 0 only, named 1."""
    algorithm = lit(link_types=2)
    server = ServerState(
        gnn={"project.weight": torch.zeros(1), "channels.conv1.weight": torch.full((2, 1), -1.0)},
        centres=torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        orders=torch.zeros(0, 2, dtype=torch.int64),
        cosines=torch.zeros(0, 2),
        type_counts=torch.zeros(0, 2),
    )
    uplink = {
        "gnn.project.weight": torch.tensor([[4.0], [8.0]]),
        "gnn.channels.conv1.weight": torch.tensor([[[1.0], [2.0]], [[30.0], [5.0]]]),
        "centres": torch.tensor([[[2.0, 0.0], [0.0, 4.0]], [[0.0, 1.0], [4.0, 0.0]]]),
        "type_counts": torch.tensor([[6.0, 2.0], [0.0, 7.0]]),
        "num_train": torch.tensor([10.0, 30.0]),
    }
    after = algorithm.server_update(server, uplink, (0, 3))
    assert after.gnn["project.weight"].item() == pytest.approx(7)
    # type 0: (10·1 + 30·5) / 40 = 4; type 1: client 0 alone
    assert after.gnn["channels.conv1.weight"].flatten().tolist() == pytest.approx([4, 2])
    assert after.centres.tolist() == [[3.0, 0.0], [0.0, 4.0]]
    assert after.orders.tolist() == [[0, 1], [0, 1], [0, 1], [1, 0]]  # clients 1 and 2 sent nothing
    assert after.type_counts.tolist() == [[6.0, 2.0], [7.0, 0.0]]
    assert algorithm.broadcast(after, (1, 3, 5))["order"].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert algorithm.diagnostics(after, uplink) == {
        "type_shares": [[0.75, 0.25], [1.0, 0.0]],
        "clients_without_type": [0, 1],
        "empty_types": [],
        "matching_cosine": [1.0, 1.0],
    }
    uniform = replace(algorithm, branch_weights="uniform").server_update(server, uplink, (0, 3))
    assert uniform.gnn["channels.conv1.weight"].flatten().tolist() == pytest.approx([3, 2])
    nobody = algorithm.server_update(server, {**uplink, "num_train": torch.zeros(2)}, (0, 3))
    assert nobody.gnn["project.weight"].item() == 0
    assert nobody.gnn["channels.conv1.weight"].flatten().tolist() == [-1, -1]


def test_the_first_reference_is_the_client_with_most_edges() -> None:
    algorithm, batch = lit(link_types=3), stack(ragged_federation())
    server, _, uplink = run(algorithm, batch, rounds=1)
    most = int(uplink["type_counts"].sum(dim=1).argmax())
    assert most == 1
    assert server.orders[most].tolist() == [0, 1, 2]
    assert server.cosines[most].tolist() == pytest.approx([1, 1, 1])


# ---- degenerate clients -----------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["everything", "nothing"])
@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("representation", edges.REPRESENTATIONS)
def test_awkward_clients_stay_finite(share: str, self_loops: bool, representation: str) -> None:
    batch = stack(awkward_federation())
    algorithm = lit(share=share, self_loops=self_loops, edge_repr=representation)
    server, client, uplink = run(algorithm, batch)
    json.dumps(algorithm.diagnostics(server, uplink), allow_nan=False)
    for part in (server, client, uplink):
        assert all(torch.isfinite(value).all() for value in flatten(part).values())
    assert torch.isfinite(predict(algorithm, server, client, batch)).all()


def test_a_client_without_edges_moves_no_channel() -> None:
    """Channels and centres are as if it were not there; W_1 and the output layer do learn from it."""
    federation = awkward_federation()
    algorithm, batch = lit(), stack(federation, [0, 1, 2])
    server, client = start(algorithm, batch)
    _, uplink = algorithm.client_update(client, algorithm.broadcast(server, (0, 1, 2)), batch, 0)
    assert not uplink["type_counts"][1].any()
    everyone = algorithm.server_update(server, uplink, (0, 1, 2))
    others = algorithm.server_update(server, {name: value[[0, 2]] for name, value in uplink.items()}, (0, 2))
    assert torch.allclose(everyone.centres, others.centres)
    for name in server.gnn:
        assert torch.allclose(everyone.gnn[name], others.gnn[name]) == name.startswith("channels.")


def test_no_edges_anywhere() -> None:
    batch, algorithm = stack(awkward_federation(), [1]), lit()
    server, client, uplink = run(algorithm, batch)
    assert not server.centres.any()
    assert torch.isfinite(predict(algorithm, server, client, batch)).all()
    assert algorithm.diagnostics(server, uplink)["empty_types"] == [0, 1, 2, 3]


def test_an_empty_type_stays_as_it_is() -> None:
    """A centre opposite to all edges gets none: it and its channel keep their values, nothing becomes NaN."""
    batch, algorithm = stack(ragged_federation()), lit(link_types=2, lr=1e-4)
    server, client, _ = run(algorithm, batch, rounds=1)
    projected = algorithm.network(batch).project(part_of(algorithm.broadcast(server, (0, 1, 2)), "gnn"), batch)
    vectors = torch.cat([edges.edge_vectors(projected, own) for own in edges.client_edges(batch)])
    lonely = replace(server, centres=torch.stack([server.centres[0], 0 * server.centres[1]]))
    shifted = replace(lonely, gnn={**server.gnn, "project.bias": server.gnn["project.bias"] + 50})
    shifted = replace(shifted, centres=torch.stack([vectors.mean(dim=0) + 50, -torch.ones_like(server.centres[1])]))
    _, uplink = algorithm.client_update(client, algorithm.broadcast(shifted, (0, 1, 2)), batch, 1)
    assert not uplink["type_counts"][:, 1].any()
    after = algorithm.server_update(shifted, uplink, (0, 1, 2))
    assert torch.equal(after.centres[1], shifted.centres[1])
    for name, value in after.gnn.items():
        assert torch.isfinite(value).all()
        if name.startswith("channels."):
            assert torch.equal(value[1], shifted.gnn[name][1])
    assert algorithm.diagnostics(after, uplink)["empty_types"] == [1]


def test_without_loops_untouched_nodes_get_the_bias_alone() -> None:
    batch, algorithm = stack(awkward_federation(), [1]), lit(self_loops=False)
    server, client, _ = run(algorithm, batch)
    assert torch.allclose(predict(algorithm, server, client, batch), server.gnn["out.bias"].expand(8, -1))


# ---- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", KINDS)
@pytest.mark.parametrize("task", [PUBMED, Task(300, 10)])
def test_matched_networks_have_as_many_weights_as_the_backbone(backbone: str, task: Task) -> None:
    algorithm = lit(backbone, hidden=64, match_parameters=True)
    target = num_weights(algorithm.backbone.shapes(task))
    width = algorithm.network(task).hidden
    step = 8 if backbone == "gat" else 1

    def distance(hidden: int) -> int:
        return abs(num_weights(lit(backbone, hidden=hidden).network(task).shapes(task)) - target)

    assert width < 64
    assert distance(width) <= min(distance(width + step), distance(width - step))
    assert distance(width) < (0.25 if backbone == "gat" else 0.06) * target  # 8 heads: widths in steps of 8
    server, _, _ = run(replace(algorithm, backbone=backbones.make(backbone, hidden=16)), stack(ragged_federation()), 1)
    assert all(torch.isfinite(value).all() for value in server.gnn.values())


@pytest.mark.parametrize("backbone", KINDS)
def test_starts_from_glorot_whatever_the_backbone_does(backbone: str) -> None:
    """With U(0, 1) the logits of this network would be in the ten millions."""
    batch = stack(ragged_federation())
    algorithm = lit(backbone, hidden=64, init="uniform01")
    assert predict(algorithm, *start(algorithm, batch), batch).abs().mean() < 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("link_types", 2),
        ("edge_repr", "sym"),
        ("recluster", "round"),
        ("em_steps", 3),
        ("self_loops", False),
        ("branch_weights", "uniform"),
        ("share", "nothing"),
        ("match_parameters", True),
        ("reset_optimizer", True),
        ("local_epochs", 1),
    ],
)
def test_every_setting_changes_something_and_stays_finite(setting: str, value: Any) -> None:
    batch = stack(ragged_federation())
    logits = []
    for algorithm in (lit(), replace(lit(), **{setting: value})):
        server, client, _ = run(algorithm, batch)
        logits.append(predict(algorithm, server, client, batch))
    assert torch.isfinite(logits[1]).all()
    assert not torch.equal(*logits)


def test_the_published_preset_runs() -> None:
    from fedspray.runs.settings import RunSettings

    algorithm, rounds = RunSettings(algorithm="fedlit", preset="published").build()
    assert isinstance(algorithm, FedLit)
    assert (algorithm.self_loops, algorithm.branch_weights, rounds.rounds) == (False, "uniform", 100)
    server, _, _ = run(algorithm, stack(ragged_federation()), rounds=1)
    assert all(torch.isfinite(value).all() for value in server.gnn.values())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"link_types": 0}, "link_types is 0, but must be at least 1"),
        ({"em_steps": 0}, "em_steps is 0, but must be at least 1"),
        ({"edge_repr": "sum"}, "edge_repr is 'sum', but must be one of concat, sym"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        lit(**settings)
    assert str(caught.value) == sentence


def test_a_foreign_module_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"backbone is 'torch.nn:Bilinear', but fedlit has a network of its own"):
        FedLit(backbone=backbones.make("torch.nn:Bilinear"))
