"""Clusters of clients: the steps that GCFL and GCFL+ share, as functions of the server's state.

A cluster is tested in every round in which members trained, and cut in two if they disagree. The algorithm defines
disagreement and similarity by its settings (`Rules`) and a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedspray.algorithms._cuts import cosines, linkage_cut, minimum_cut, similarity_gap
from fedspray.algorithms._personal import grow
from fedspray.nn import ops
from fedspray.nn.tree import Message, Params, expand, part_of, prefixed

OUTCOMES = ("absent", "warm-up", "small", "young", "agree", "unknown", "gap", "split", "new")
"""The possible outcomes of a cluster's test; docs/algorithms/gcfl.md explains each."""


@dataclass(frozen=True)
class Tests:
    """The last round's test of each cluster."""

    figures: Tensor
    """[M, 3]: δ_mean, δ_max, and the gap; 0 where there is none."""
    outcome: Tensor
    """[M]: index into `OUTCOMES`."""


@dataclass(frozen=True)
class ServerState:
    """M clusters of the K clients seen so far. Other clients belong to cluster 0."""

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


class Rules(Protocol):
    """When a cluster is cut; the settings are explained in `gcfl`."""

    @property
    def threshold(self) -> str: ...
    @property
    def max_ratio(self) -> float: ...
    @property
    def eps1(self) -> float: ...
    @property
    def eps2(self) -> float: ...
    @property
    def min_gap(self) -> float: ...
    @property
    def warmup(self) -> int: ...
    @property
    def pause(self) -> int: ...
    @property
    def min_members(self) -> int: ...


Alike = Callable[["ServerState", Tensor, Tensor], Tensor | None]
"""From the state, the updates [m, P] and ids [m] of a cluster's members to how alike they are, [m, m], 1 at most; None
if that is not known yet."""
Cost = Callable[[Tensor], Tensor] | None
"""From similarities to what a cut between two members costs, [m, m]; None: complete linkage."""


def first_cluster(gnn: Params, norm_memory: int) -> ServerState:
    """All clients in one cluster; ``norm_memory`` norms of each client will be kept."""
    nobody = torch.zeros(0, dtype=torch.int64)
    return ServerState(
        gnn={name: value[None] for name, value in gnn.items()},
        round_index=torch.tensor(0),
        born=torch.tensor([0]),
        parent=torch.tensor([-1]),
        cluster_of=nobody,
        seen=nobody,
        norms=torch.zeros(0, norm_memory),
        norm_counts=nobody,
        tests=Tests(torch.zeros(1, 3), torch.tensor([OUTCOMES.index("absent")])),
    )


def models_for(server: ServerState, client_ids: Sequence[int]) -> Message:
    """Every client gets its cluster's model."""
    if len(server.born) == 1:
        return prefixed("gnn", expand({name: value[0] for name, value in server.gnn.items()}, len(client_ids)))
    clusters = grown(server, client_ids).cluster_of[list(client_ids)]
    return prefixed("gnn", {name: value[clusters] for name, value in server.gnn.items()})


def next_round(server: ServerState, client_ids: Sequence[int]) -> ServerState:
    """The state in which a round's updates are taken in."""
    return grown(replace(server, round_index=server.round_index + 1), client_ids)


def taken_in(
    server: ServerState, message: Message, client_ids: Sequence[int], rules: Rules, alike: Alike, cost: Cost
) -> ServerState:
    """Settles clients that return, tests and cuts every cluster, averages inside the new ones."""
    weights, models = message["num_train"], part_of(message, "gnn")
    ids = torch.tensor(client_ids)
    sent = server.cluster_of[ids]  # the cluster whose model each client got
    updates = torch.cat([(v - server.gnn[name][sent]).flatten(1) for name, v in models.items()], dim=1)
    trained = weights > 0  # a client without training nodes doesn't show where it belongs
    server = _settle(server, updates[trained], ids[trained])
    server = _test_clusters(server, updates[trained], weights[trained], ids[trained], rules, alike, cost)
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


def _test_clusters(
    server: ServerState, updates: Tensor, weights: Tensor, ids: Tensor, rules: Rules, alike: Alike, cost: Cost
) -> ServerState:
    """Tests every cluster once and cuts those whose members disagree."""
    outcomes, figures = [], []
    for cluster in range(len(server.born)):
        rows = (server.cluster_of[ids] == cluster).nonzero()[:, 0]
        rows = rows[ids[rows].argsort()]  # the order of arrival must not decide a cut
        outcome, gap, part = _test(server, cluster, updates[rows], ids[rows], rules, alike, cost)
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
    server: ServerState, cluster: int, updates: Tensor, ids: Tensor, rules: Rules, alike: Alike, cost: Cost
) -> tuple[str, float, Tensor | None]:
    """One cluster's outcome, its gap and, if it should split, a mask of the part with its first member."""
    reason = _why_whole(server, cluster, updates, rules)
    similar = None if reason else alike(server, updates, ids)
    if similar is None:
        return reason or "unknown", 0.0, None
    side = linkage_cut(similar) if cost is None else minimum_cut(cost(similar))
    gap = similarity_gap(similar, side)
    return ("split", gap, side == side[0]) if gap >= rules.min_gap else ("gap", gap, None)


def _why_whole(server: ServerState, cluster: int, updates: Tensor, rules: Rules) -> str | None:
    """Why a cluster isn't cut; None if it should be."""
    if len(updates) == 0:
        return "absent"
    if server.round_index <= rules.warmup:
        return "warm-up"
    if len(updates) < max(2, rules.min_members):
        return "small"
    related = (server.parent == cluster) | (torch.arange(len(server.parent)) == cluster)
    if server.round_index - server.born[related].max() < rules.pause:
        return "young"
    mean_norm, max_norm = _norms(updates)
    disagree = mean_norm < rules.max_ratio * max_norm
    if rules.threshold == "fixed":
        disagree = mean_norm < rules.eps1 and max_norm > rules.eps2
    return None if disagree else "agree"


def record_of(server: ServerState) -> dict[str, Any]:
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


def grown(server: ServerState, client_ids: Sequence[int]) -> ServerState:
    """Adds rows for clients seen for the first time."""
    names = ("cluster_of", "seen", "norms", "norm_counts")
    rows = {name: getattr(server, name) for name in names}
    longer: Any = {name: grow(value, client_ids, value.new_zeros(())) for name, value in rows.items()}
    return replace(server, **longer)


def _split(server: ServerState, cluster: int, leaving: Tensor) -> ServerState:
    """A new cluster with its parent's model; all norms are cleared, since they belong to another model."""
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
    """Assigns clients whose cluster was split in their absence.

    Such a client goes to the cluster whose members' mean update is most similar to its own, as soon as all
    candidate clusters have members present.
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
    """A client's cluster, and the clusters split off from it since the client was last seen."""
    options = [int(server.cluster_of[client])]
    for cluster, (parent, born) in enumerate(zip(server.parent.tolist(), server.born.tolist(), strict=True)):
        if parent in options and born > server.seen[client]:
            options.append(cluster)
    return options
