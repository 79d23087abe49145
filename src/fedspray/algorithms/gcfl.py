"""GCFL (Xie, Ma, Xiong and Yang, "Federated graph classification over non-IID graphs", NeurIPS 2021), for nodes.

Clients whose updates pull in different directions are put into different clusters; every cluster c has a
model θ_c of its own. With Δ_k = θ_k - θ_c, each round and cluster (m members that trained):

    δ_mean = ‖ (1/m) Σ_k Δ_k ‖        δ_max = max_k ‖Δ_k‖        ρ = δ_mean / δ_max
    test:    ρ < 0.3 (auto), or δ_mean < ε1 and δ_max > ε2 (fixed)
    cut:     global minimum cut of the members, joined with weights relu(cos(Δ_i, Δ_j)) + 1e-9
    accept:  mean cos inside the two parts - mean cos across them ≥ 0.3
    average: θ_c ← Σ_{k in c} (n_k / n_c) θ_k    with the new clusters

Travels down: the model of the client's cluster. Travels up: the GNN after E steps, and n_k.
docs/algorithms/gcfl.md says why the published thresholds on norms cannot work with Adam, and lists all differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspray.algorithms._averaging import ReceivingClients
from fedspray.algorithms._cuts import cosines, linkage_cut, minimum_cut, similarity_gap
from fedspray.algorithms._personal import grow
from fedspray.backbones.base import setting
from fedspray.data.federation import Task
from fedspray.errors import InputError
from fedspray.messages import TRAIN_NODES, WEIGHTS, Declared, each
from fedspray.nn import ops
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed
from fedspray.seeds import torch_generator

OUTCOMES = ("absent", "warm-up", "small", "young", "agree", "unknown", "gap", "split", "new")
"""What a round's test of a cluster can end with; docs/algorithms/gcfl.md explains each."""

_CLUSTERS = "the server compares the clients' updates to find clusters, and averages inside them"


@dataclass(frozen=True)
class Tests:
    """The last round's test of each cluster."""

    figures: Tensor
    """[M, 3]: δ_mean, δ_max, and the gap; 0 where there is none."""
    outcome: Tensor
    """[M]: index into `OUTCOMES`."""


@dataclass(frozen=True)
class ServerState:
    """M clusters of the K clients that were heard of. A client that was not belongs to cluster 0."""

    gnn: Params
    """The clusters' models, [M, …]."""
    round_index: Tensor
    """[]: rounds so far."""
    born: Tensor
    """[M]: the round in which a cluster was split off."""
    parent: Tensor
    """[M]: the cluster that it was split off from; -1 for the first."""
    cluster_of: Tensor
    """[K]."""
    seen: Tensor
    """[K]: the last round in which a client's update said where it belongs."""
    norms: Tensor
    """[K, d]: a client's last norms (GCFL+), the newest last; d is 0 for GCFL."""
    norm_counts: Tensor
    """[K]: how many of them there are."""
    tests: Tests


@dataclass(frozen=True, kw_only=True)
class GCFL(ReceivingClients[ServerState]):
    """FedAvg inside clusters of clients whose updates agree."""

    summary: ClassVar[str] = "one GNN for each cluster; clusters split where updates disagree"
    citation: ClassVar[str] = "Xie, Ma, Xiong and Yang, NeurIPS 2021"
    uplink: ClassVar[Declared] = {
        "gnn.*": each("the GNN after local training", _CLUSTERS, WEIGHTS),
        "num_train": each("number of training nodes", _CLUSTERS, TRAIN_NODES),
    }
    downlink: ClassVar[dict[str, str]] = {"gnn.*": "the GNN of the client's cluster"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "published": {
            "threshold": "fixed",
            "cut": "cos+1",
            "min_gap": -2.0,
            "pause": 0,
            "layers": 3,
            "lr": 0.001,
            "weight_decay": 0.0005,
            "local_epochs": 1,
            "rounds": 200,
        },
    }

    threshold: str = setting(
        "auto",
        "a cluster is cut if ρ < max_ratio (auto), or if δ_mean < eps1 and δ_max > eps2 (fixed)",
        choices=("auto", "fixed"),
    )
    max_ratio: float = setting(0.3, "auto: a cluster with ρ = δ_mean/δ_max below this is cut")
    eps1: float = setting(0.05, "fixed: a cluster is cut only if δ_mean is below this (ε1)")
    eps2: float = setting(0.1, "fixed: a cluster is cut only if δ_max is above this (ε2)")
    min_gap: float = setting(0.3, "a cut counts if similarity inside its parts exceeds that across by this; -2: always")
    warmup: int = setting(20, "no cut in the first rounds, this many")
    pause: int = setting(10, "no cut of a cluster that came out of a cut fewer rounds ago than this")
    min_members: int = setting(3, "no cut of a cluster of which fewer clients trained")
    cut: str = setting(
        "relu",
        "minimum cut of relu(cos), minimum cut of cos+1, or complete linkage of cos (complete)",
        choices=("relu", "cos+1", "complete"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_ratio", "eps1", "eps2", "warmup", "pause", "min_members"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 0")

    def init_server(self, task: Task, seed: int) -> ServerState:
        """One cluster, with the draw that FedAvg and Local start from."""
        gnn = self.backbone.draw(task, torch_generator(seed, "backbone"))
        nobody = torch.zeros(0, dtype=torch.int64)
        return ServerState(
            gnn={name: value[None] for name, value in gnn.items()},
            round_index=torch.tensor(0),
            born=torch.tensor([0]),
            parent=torch.tensor([-1]),
            cluster_of=nobody,
            seen=nobody,
            norms=torch.zeros(0, self.norm_memory),
            norm_counts=nobody,
            tests=Tests(torch.zeros(1, 3), torch.tensor([OUTCOMES.index("absent")])),
        )

    @property
    def norm_memory(self) -> int:
        """How many norms of each client the server remembers (d)."""
        return 0

    def broadcast(self, server: ServerState, client_ids: Sequence[int]) -> Message:
        """Every client gets its cluster's model."""
        if len(server.born) == 1:
            return prefixed("gnn", expand({name: value[0] for name, value in server.gnn.items()}, len(client_ids)))
        clusters = _grown(server, client_ids).cluster_of[list(client_ids)]
        return prefixed("gnn", {name: value[clusters] for name, value in server.gnn.items()})

    def server_update(self, server: ServerState, message: Message, client_ids: Sequence[int]) -> ServerState:
        """Settles clients that return, tests and cuts every cluster, averages inside the new ones."""
        server = _grown(replace(server, round_index=server.round_index + 1), client_ids)
        weights, models = message["num_train"], part_of(message, "gnn")
        ids = torch.tensor(client_ids)
        sent = server.cluster_of[ids]  # the cluster whose model each client got
        updates = torch.cat([(v - server.gnn[name][sent]).flatten(1) for name, v in models.items()], dim=1)
        trained = weights > 0  # who has nothing to train on says nothing about where it belongs
        server = self.remember_norms(server, message, ids)
        server = _settle(server, updates[trained], ids[trained])
        server = self._test_clusters(server, updates[trained], weights[trained], ids[trained])
        now = server.cluster_of[ids]
        gnn = {}
        for name, value in models.items():
            # θ_c + Σ p_k Δ_k: a client that was moved here got another model than θ_c
            moved = value + (server.gnn[name][now] - server.gnn[name][sent])
            gnn[name] = server.gnn[name].clone()
            for cluster in set(now[trained].tolist()):
                rows = now == cluster
                gnn[name][cluster] = ops.weighted_mean(moved[rows], weights[rows])
        return replace(server, gnn=gnn)

    def remember_norms(self, server: ServerState, message: Message, ids: Tensor) -> ServerState:
        """GCFL compares updates themselves, not their norms over time."""
        return server

    def similarities(self, server: ServerState, updates: Tensor, ids: Tensor) -> Tensor | None:
        """[m, m]: how alike these clients are, 1 at most; None if that cannot be said yet."""
        return cosines(updates)

    def cut_weights(self, similarities: Tensor) -> Tensor:
        """[m, m]: what a cut between two clients costs."""
        # with cos+1 unrelated clients are tied together, and the cheapest cut is nearly always a single client
        return similarities.clamp(min=0) + 1e-9 if self.cut == "relu" else (similarities + 1).clamp(min=0)

    def _test_clusters(self, server: ServerState, updates: Tensor, weights: Tensor, ids: Tensor) -> ServerState:
        """Tests every cluster once and cuts those whose members disagree."""
        outcomes, figures = [], []
        for cluster in range(len(server.born)):
            rows = (server.cluster_of[ids] == cluster).nonzero()[:, 0]
            rows = rows[ids[rows].argsort()]  # the order of arrival must not decide a cut
            outcome, gap, part = self._test(server, cluster, updates[rows], ids[rows])
            outcomes.append(outcome)
            figures.append([*_norms(updates[rows]), gap])
            if part is not None:
                # the part with more training nodes stays, and with it absent members until they return
                leaves = part if weights[rows[part]].sum() < weights[rows[~part]].sum() else ~part
                server = _split(server, cluster, ids[rows[leaves]])
        new = len(server.born) - len(outcomes)
        outcomes += ["new"] * new
        figures += [[0.0, 0.0, 0.0]] * new
        codes = torch.tensor([OUTCOMES.index(outcome) for outcome in outcomes])
        return replace(server, tests=Tests(torch.tensor(figures, dtype=updates.dtype), codes))

    def _test(
        self, server: ServerState, cluster: int, updates: Tensor, ids: Tensor
    ) -> tuple[str, float, Tensor | None]:
        """One cluster's outcome, its gap and, if it is to be split, the part that holds its first member, as a mask."""
        reason = self._why_whole(server, cluster, updates)
        alike = None if reason else self.similarities(server, updates, ids)
        if alike is None:
            return reason or "unknown", 0.0, None
        side = linkage_cut(alike) if self.cut == "complete" else minimum_cut(self.cut_weights(alike))
        gap = similarity_gap(alike, side)
        return ("split", gap, side == side[0]) if gap >= self.min_gap else ("gap", gap, None)

    def _why_whole(self, server: ServerState, cluster: int, updates: Tensor) -> str | None:
        """Why a cluster need not be cut; None if it should be."""
        if len(updates) == 0:
            return "absent"
        if server.round_index <= self.warmup:
            return "warm-up"
        if len(updates) < max(2, self.min_members):
            return "small"
        related = (server.parent == cluster) | (torch.arange(len(server.parent)) == cluster)
        if server.round_index - server.born[related].max() < self.pause:
            return "young"
        mean_norm, max_norm = _norms(updates)
        disagree = mean_norm < self.max_ratio * max_norm
        if self.threshold == "fixed":
            disagree = mean_norm < self.eps1 and max_norm > self.eps2
        return None if disagree else "agree"

    def diagnostics(self, server: ServerState, message: Message) -> dict[str, Any]:
        """Clusters, and the figures and outcome of each one's test."""
        outcomes = [OUTCOMES[code] for code in server.tests.outcome.tolist()]
        record: dict[str, Any] = {
            "clusters": [(server.cluster_of == c).nonzero()[:, 0].tolist() for c in range(len(outcomes))],
            "outcome": outcomes,
            "delta_mean": [],
            "delta_max": [],
            "rho": [],
            "gap": [],
        }
        for outcome, (mean_norm, max_norm, gap) in zip(outcomes, server.tests.figures.tolist(), strict=True):
            tested = outcome not in ("absent", "new")
            record["delta_mean"].append(mean_norm if tested else None)
            record["delta_max"].append(max_norm if tested else None)
            record["rho"].append(mean_norm / max_norm if max_norm > 0 else None)
            record["gap"].append(gap if outcome in ("gap", "split") else None)
        return record


def _norms(updates: Tensor) -> tuple[float, float]:
    """δ_mean and δ_max; 0 if nobody trained."""
    if len(updates) == 0:
        return 0.0, 0.0
    return float(updates.mean(dim=0).norm()), float(updates.norm(dim=1).max())


# ---- bookkeeping of clusters ------------------------------------------------------------------------


def _grown(server: ServerState, client_ids: Sequence[int]) -> ServerState:
    """Room for clients that are heard of for the first time."""
    names = ("cluster_of", "seen", "norms", "norm_counts")
    rows = {name: getattr(server, name) for name in names}
    longer: Any = {name: grow(value, client_ids, value.new_zeros(())) for name, value in rows.items()}
    return replace(server, **longer)


def _split(server: ServerState, cluster: int, leaving: Tensor) -> ServerState:
    """A new cluster with its parent's model; all norms are forgotten, as they belong to another model."""
    cluster_of = server.cluster_of.clone()
    cluster_of[leaving] = len(server.born)
    return replace(
        server,
        gnn={name: torch.cat([value, value[cluster : cluster + 1]]) for name, value in server.gnn.items()},
        born=torch.cat([server.born, server.round_index[None]]),
        parent=torch.cat([server.parent, torch.tensor([cluster])]),
        cluster_of=cluster_of,
        norm_counts=torch.zeros_like(server.norm_counts),
    )


def _settle(server: ServerState, updates: Tensor, ids: Tensor) -> ServerState:
    """Decides where clients belong whose cluster was split in their absence.

    Such a client goes to the cluster whose members' mean update is most similar to its own, as soon as all
    clusters in question have members at hand.
    """
    cluster_of, seen = server.cluster_of.clone(), server.seen.clone()
    options = [_options(server, k) for k in ids.tolist()]
    settled = torch.tensor([len(option) == 1 for option in options], dtype=torch.bool)
    known = cluster_of[ids].where(settled, -1)
    for k, option, update in zip(ids.tolist(), options, updates, strict=True):
        if len(option) > 1:
            if not torch.isin(torch.tensor(option), known).all():
                continue
            means = [updates[known == cluster].mean(dim=0) for cluster in option]
            cluster_of[k] = option[int(cosines(torch.stack([update, *means]))[0, 1:].argmax())]
        seen[k] = server.round_index
    return replace(server, cluster_of=cluster_of, seen=seen)


def _options(server: ServerState, client: int) -> list[int]:
    """A client's cluster, and what was split off from it since the client was seen."""
    options = [int(server.cluster_of[client])]
    for cluster, (parent, born) in enumerate(zip(server.parent.tolist(), server.born.tolist(), strict=True)):
        if parent in options and born > server.seen[client]:
            options.append(cluster)
    return options
