"""Whether federating helped each client: its model against the one that it would have had alone, on the same nodes.

Some algorithms train Local's model on the way (`Algorithm.alone_logits`); for others ``baseline = "local"`` trains it
beside the run, at no bytes. Counts of nodes come first; differences, intervals and verdicts follow from them. What is
said of a client is from its test nodes, which nothing was chosen on, unless its validation nodes point the other way:
then nothing can be told. A warning is from all validation nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspray.data.federation import Client, Federation
from fedspray.data.minority import NONE, is_minority
from fedspray.evaluation.intervals import paired_difference
from fedspray.files import Json
from fedspray.runs.models import PersonalModel

VERDICTS = {"gain": "helped", "loss": "hurt", "unclear": "unclear"}
_CASES = ("both", "gained", "lost", "neither")


def against_local(
    federation: Federation, models: Mapping[str, PersonalModel], alone: Mapping[str, PersonalModel] | None
) -> dict[str, Json]:
    """By client: on which validation and test nodes its model and the one it would have had alone are right.

    ``alone`` are Local's; None: those that the run's own models know. Clients without one are left out.
    """
    compared = {
        client.name: counted(client, models[client.name], None if alone is None else alone[client.name])
        for client in federation.clients
        if client.name in models
    }
    return {name: counts for name, counts in compared.items() if counts is not None}


def counted(client: Client, model: PersonalModel, alone: PersonalModel | None = None) -> Json | None:
    """The same of one client; None if nobody trained the model that it would have had alone."""
    train = client.split.train
    base = model.predict_alone(client.graph, train) if alone is None else alone.predict(client.graph)
    return None if base is None else _cases(client, model.predict(client.graph, train), base)


def _cases(client: Client, own: NDArray[np.float64], base: NDArray[np.float64]) -> Json:
    labels, majority = client.graph.labels, NONE if client.majority_class is None else client.majority_class
    right, reference = (scores.argmax(axis=1) == labels for scores in (own, base))
    cases = (right & reference, right & ~reference, ~right & reference, ~right & ~reference)
    groups = {"all": np.ones_like(right), "minority": is_minority(labels, majority)}
    return {
        part: {
            group: {name: int((case & nodes & mask).sum()) for name, case in zip(_CASES, cases, strict=True)}
            for group, mask in groups.items()
        }
        for part, nodes in (("val", client.split.val), ("test", client.split.test))
    }


def benefits(seeds: Sequence[Json]) -> Json:
    """What a run's summary says, from the metrics of its seeds: of each client, and of all on validation nodes.

    Empty where nothing was compared. Counts are means over seeds: a node that was tested under several is one piece of
    evidence.
    """
    rows: dict[str, list[Json]] = {}
    for metrics in seeds:
        for name, row in metrics.get("against_local", {}).items():
            rows.setdefault(name, []).append(row)
    if not rows:
        return {}
    every = [row for known in rows.values() for row in known]
    return {
        "clients": {name: of_client(known) for name, known in rows.items()},
        "validation": _estimates(every, "val", len(seeds)),
    }


def of_client(rows: Sequence[Json]) -> Json:
    """By group of nodes, on test nodes; no verdict where validation nodes point the other way."""
    found, checked = _estimates(rows, "test", len(rows)), _estimates(rows, "val", len(rows))
    for group, row in found.items():
        if row is not None:
            row["validation"] = checked[group] and checked[group]["difference"]
            if row["difference"] * (row["validation"] or 0) < 0:
                row["verdict"] = VERDICTS["unclear"]
    return found


def _estimates(rows: Sequence[Json], part: str, repeats: int) -> Json:
    """By group of nodes: the difference, its interval and what it says; None where there are no nodes."""
    found: Json = {}
    for group in ("all", "minority"):
        both, gained, lost, neither = (sum(row[part][group][name] for row in rows) / repeats for name in _CASES)
        size = both + gained + lost + neither
        known = paired_difference(both, gained, lost, neither) if size else None
        found[group] = known and {
            "nodes": round(size),
            "difference": known.value,
            "low": known.low,
            "high": known.high,
            "verdict": VERDICTS[known.verdict],
        }
    return found


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """One for each client."""
    clients = summary.get("benefit", {}).get("clients", {})
    return [sentence(name, row) for name, row in clients.items() if row["all"] is not None]


def sentence(name: str, row: Json) -> str:
    """The sentence for one client with test nodes, from `of_client`."""
    overall, minority = row["all"], row["minority"]
    said, unclear = overall["verdict"], VERDICTS["unclear"]
    verdict = f"{said} whether federating helped" if said == unclear else f"federating {said}"
    rest = "none" if minority is None else f"{minority['verdict']}, {_interval(minority)}"
    return f"{name}: {verdict}, {_interval(overall)}; minority nodes: {rest}."


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """Where the method is behind Local on validation nodes."""
    found = summary.get("benefit", {}).get("validation", {})
    return [
        f"{summary['algorithm']} is behind training alone on the {kind}: {_interval(row)}"
        for row, kind in ((found.get("all"), "validation nodes"), (found.get("minority"), "minority validation nodes"))
        if row is not None and row["difference"] < 0
    ]


def _interval(row: Json) -> str:
    value, low, high = (_points(row[name]) for name in ("difference", "low", "high"))
    found = f"{value} points on {row['nodes']} nodes (95% interval {low} to {high})"
    disagree = row["verdict"] == VERDICTS["unclear"] and row["low"] * row["high"] > 0
    return f"{found}, but {_points(row['validation'])} on validation nodes" if disagree else found


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")
