"""Whether federating is likely to help a client, from statistics alone: `fedspray inspect --advise`.

A logistic regression for each group of nodes (all, minority) says how likely it is that FedSpray 2 is at least one
point better on a client's test nodes than the model that the client would have had alone. `experiments/advisor_fit.py`
fits it on many small federations and writes `advice.json`: coefficients, the range of every statistic that was seen,
and how often the advice was wrong on data sets that it was not fitted on. Outside that range there is no advice.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.data.statistics import describe
from fedspray.files import Json

GROUPS = ("all", "minority")
SURE = 0.65
"""Advice is given where one of the two answers is at least this likely."""
GAIN = 0.01
"""What counts as help: the gain in accuracy."""

_ROUNDING = 1e-3
"""Ranges are written with a few digits."""


@dataclass(frozen=True)
class Advice:
    """What is said of one client and group of nodes."""

    client: str
    group: str
    likely: float | None
    """The probability of help; None where there is no basis for any."""
    why: str = ""
    """Why there is none."""

    @property
    def verdict(self) -> str:
        """federate, stay alone, unclear, or no basis."""
        if self.likely is None:
            return "no basis"
        return "federate" if self.likely >= SURE else "stay alone" if self.likely <= 1 - SURE else "unclear"


def advise(federation: Federation) -> list[Advice]:
    """For every client, on all nodes and on minority nodes."""
    return [_answer(name, group, values) for name, values in predictors(federation).items() for group in GROUPS]


def predictors(federation: Federation) -> dict[str, Json | None]:
    """By client, what the advisor looks at: counts, homophily, and how well class means tell classes apart.

    None for a client without labels, without homophily, or with nobody else.
    """
    # [C, F] for each client: sums over the labelled nodes of each class, of features that are scaled to length 1
    sums = [_dense(_members(client.graph) @ _unit(client.graph)) for client in federation.clients]
    statistics = describe(federation)
    found: dict[str, Json | None] = {}
    for k, client in enumerate(statistics.clients):
        own, total = np.array(client.label_counts), np.array(statistics.label_counts)
        others = total - own
        homophily = client.majority_homophily, client.minority_homophily
        if not own.sum() or not others.sum() or None in homophily or client.label_divergence is None:
            found[client.name] = None
            continue
        rest = np.arange(len(own)) != own.argmax()
        elsewhere = np.sum([part for place, part in enumerate(sums) if place != k], axis=0)
        alone, taught = _means_tell(federation.clients[k].graph, elsewhere, others)
        found[client.name] = {
            "labelled nodes (log10)": math.log10(own.sum()),
            "times as many elsewhere (log10)": math.log10(others.sum() / own.sum()),
            "minority share": float(own[rest].sum() / own.sum()),
            "minority nodes elsewhere per own one (log10)": math.log10(
                (others[rest].sum() + 1) / (own[rest].sum() + 1)
            ),
            "neighbours of a node (log10)": math.log10(1 + 2 * client.num_edges / client.num_nodes),
            "majority homophily": homophily[0],
            "minority homophily": homophily[1],
            "label divergence": client.label_divergence,
            "classes (log10)": math.log10((total > 0).sum()),
            "features (log10)": math.log10(statistics.num_features),
            "right by own class means": alone,
            "more right by class means elsewhere": taught - alone,
        }
    return found


def _means_tell(graph: Graph, elsewhere: NDArray[np.float64], counts: NDArray[np.int64]) -> tuple[float, float]:
    """Mean recall over classes of the nearest class mean: with means of half of the nodes, for the other half; and with
    the means of all other clients."""
    nodes = np.flatnonzero(graph.labelled)
    features, labels, halves = _unit(graph), graph.labels, (nodes[::2], nodes[1::2])
    right = np.zeros(graph.num_nodes, bool)
    for learnt, asked in (halves, halves[::-1]):
        members = _members(graph)[:, learnt]
        means = _dense(members @ features[learnt])
        right[asked] = _nearest(features[asked], means, np.asarray(members.sum(axis=1)).ravel()) == labels[asked]
    taught = _nearest(features[nodes], elsewhere, counts) == labels[nodes]
    held = [c for c in range(graph.num_classes) if (labels[nodes] == c).any()]
    return tuple(float(np.mean([hits[labels[nodes] == c].mean() for c in held])) for hits in (right[nodes], taught))  # type: ignore[return-value]


def _nearest(features: Any, sums: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.int64]:
    """[n]: the class whose mean is closest; classes without a node are nobody's."""
    means = sums / np.maximum(counts, 1)[:, None]
    scores = 2 * _dense(features @ means.T) - (means**2).sum(axis=1)
    return np.asarray(np.where(counts > 0, scores, -np.inf).argmax(axis=1))


def _members(graph: Graph) -> sp.csr_array:
    """[C, N]: 1 where a node is of a class."""
    nodes = np.flatnonzero(graph.labelled)
    shape = (graph.num_classes, graph.num_nodes)
    return sp.csr_array((np.ones(len(nodes)), (graph.labels[nodes], nodes)), shape=shape)


def _dense(matrix: Any) -> NDArray[np.float64]:
    return np.asarray(matrix.toarray() if sp.issparse(matrix) else matrix, dtype=np.float64)


def _unit(graph: Graph) -> Any:
    """[N, F]: features scaled to length 1."""
    features: Any = graph.features
    squares = features.power(2) if graph.is_sparse else features**2
    lengths = np.sqrt(np.asarray(squares.sum(axis=1), dtype=np.float64)).ravel()
    return sp.diags_array(np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)) @ features


def _answer(client: str, group: str, values: Json | None) -> Advice:
    if values is None:
        return Advice(client, group, None, "it has no labels, or no neighbours with labels, or nobody else has any")
    model = fitted()["groups"][group]
    for name, (low, high) in fitted()["ranges"].items():
        if not low - _ROUNDING <= values[name] <= high + _ROUNDING:
            why = f"{name} is {values[name]:.2g}, but federations that the advisor knows have {low:.2g} to {high:.2g}"
            return Advice(client, group, None, why)
    score = model["intercept"] + sum(weight * values[name] for name, weight in model["weights"].items())
    return Advice(client, group, 1 / (1 + math.exp(-score)))


def caveats() -> list[str]:
    """How often the advice was wrong on real data sets that it was not fitted on."""
    found = []
    for group, words in zip(GROUPS, ("all nodes", "minority nodes"), strict=True):
        known = fitted()["groups"][group]["held_out"]
        told = [f"{100 * known[name]:.0f}%" for name in ("advisor", "always_federate_where_advised")]
        every = [f"{100 * known[name]:.0f}%" for name in ("always_federate", "never_federate")]
        found.append(
            f"{words}: on real data sets that the advisor was not fitted on, its advice was wrong for {told[0]} of "
            f"{known['advised']} clients, where always federating was wrong for {told[1]}; of all {known['clients']} "
            f"clients, always federating was wrong for {every[0]}, never for {every[1]}"
        )
    return found


def to_json(given: list[Advice]) -> Json:
    """For a program: by client and group, and the errors."""
    clients: dict[str, Json] = {}
    for each in given:
        told = {"verdict": each.verdict, "likely": each.likely, **({"why": each.why} if each.why else {})}
        clients.setdefault(each.client, {})[each.group] = told
    return {"clients": clients, "held_out": {group: fitted()["groups"][group]["held_out"] for group in GROUPS}}


@cache
def fitted() -> Json:
    """What `advice.json` says."""
    content: Json = json.loads((Path(__file__).parent / "advice.json").read_text())
    return content
