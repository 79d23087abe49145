"""Membership: whether a node was trained on, from a personal model that was given away.

The attacker has the client's graph with all labels, and asks which nodes were training nodes. It trains a shadow on
another draw of training nodes and finds out, on the shadow, what tells its training nodes better: a small loss, or one
that is small beside another model's, which says how hard the node is (Watson et al., "On the importance of difficulty
calibration in membership inference attacks", ICLR 2022). Nodes that the shadow was trained on are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedspray.attacks._labels import Array
from fedspray.attacks.base import Attack, Finding, Seen
from fedspray.data.federation import Client, Federation
from fedspray.runs.models import PersonalModel
from fedspray.runs.trained_on import TEST, TRAIN

FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Membership(Attack):
    """Tells training nodes from test nodes by their calibrated loss."""

    summary: ClassVar[str] = "which nodes a personal model was trained on, if it was given away"
    needs_shadows: ClassVar[bool] = True

    def findings(self, seen: Seen, truth: Federation) -> list[Finding]:
        """Scores over the nodes of all clients together."""
        clients = [client for client in truth.clients if client.name in seen.models and client.name in seen.shadows]
        if not clients:
            return []
        own = np.concatenate([_losses(seen.models[client.name], client) for client in clients])
        shadow = np.concatenate([_losses(seen.shadows[client.name], client) for client in clients])
        used = np.concatenate([_parts(seen.shadows[client.name], client) for client in clients])
        inside, outside = (np.concatenate([getattr(c.split, part) for c in clients]) for part in ("train", "test"))
        ways = {"loss": (-own, -shadow), "loss beside a shadow model's": (shadow - own, own - shadow)}
        fresh, findings = used != TRAIN, []
        for measure, score, guess in (
            ("AUC", area, 0.5),
            (f"found at {FALSE_ALARMS:.0%} false alarms", found_at, FALSE_ALARMS),
        ):
            rehearsed = {way: score(known[used == TRAIN], known[used == TEST]) for way, (_, known) in ways.items()}
            best = max(rehearsed, key=lambda way: rehearsed[way])
            members, others = (ways[best][0][part & fresh] for part in (inside, outside))
            findings.append(Finding(measure, score(members, others), guess, best))
        return findings


def area(members: Array, others: Array) -> float:
    """The probability that a member scores higher; ties count half."""
    ranked = np.sort(others)
    below, up_to = (np.searchsorted(ranked, members, side=side).sum() for side in ("left", "right"))
    return float((below + up_to) / 2 / max(1, len(members) * len(others)))


def found_at(members: Array, others: Array, false_alarms: float = FALSE_ALARMS) -> float:
    """The share of members above the score that so many others exceed."""
    if not len(members) or not len(others):
        return 0.0
    return float((members > np.quantile(others, 1 - false_alarms, method="higher")).mean())


def _parts(shadow: PersonalModel, client: Client) -> NDArray[np.uint8]:
    """[N]: what each node was to the shadow."""
    assert shadow.trained_on is not None, client
    return shadow.trained_on.parts


def _losses(model: PersonalModel, client: Client) -> Array:
    probabilities = model.predict(client.graph, client.split.train)
    labels = np.where(client.graph.labelled, client.graph.labels, 0)
    found: Array = -np.log(np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, None))
    return found
