"""Features of training nodes, from the gradient or the change of the first layer, with few training nodes.

The gradient of a layer's weights is Σ_i x_i δ_iᵀ and that of its bias Σ_i δ_i. A hidden unit that one node alone
activates gives x_i = weights' gradient / bias's (Phong et al., 2017; for ReLU see Geiping et al., 2020), and units of
one node agree with each other, so rows on which several units agree are guessed first. Where none agree, as after
several steps of Adam, the first singular vectors are guessed.

As long as changes are linear in gradients, those of the first layer lie in the span of its inputs (GRAIN, Drencheva et
al., 2025, checks candidates that way; in a GNN an input is a mean over neighbours). "In the span" is how much of a true
row lies there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspray.attacks._labels import Array
from fedspray.attacks.base import Attack, Finding, Seen
from fedspray.data.federation import Client, Federation
from fedspray.nn.tree import Message
from fedspray.seeds import generator

SAME = 0.99
"""Cosine from which two rows count as the same."""
AGREEING = 3
"""Units that must agree on a row."""
SPAN = 1e-4
"""Singular values below this share of the largest count as 0."""


@dataclass(frozen=True)
class Features(Attack):
    """Guesses as many rows of features as there are training nodes."""

    summary: ClassVar[str] = "features of training nodes, from the first layer's gradient or change, with few nodes"
    batches: ClassVar[tuple[int | None, ...]] = (1, 4)
    rounds: ClassVar[int | None] = 1

    def findings(self, seen: Seen, truth: Federation) -> list[Finding]:
        """Scores of the first round, on average over clients."""
        first = seen.exchanges[0] if seen.exchanges else None
        update = first.updates.get(0, {}) if first else {}
        layers = [n for n, v in sorted(update.items()) if v.dim() == 3 and v.shape[1] == truth.task.num_features]
        if first is None or not layers:
            return []
        name, scores = layers[0], []
        for k, client in enumerate(truth.clients):
            wanted = _unit(_rows(client)[client.split.train])
            if k not in first.updates or not np.any(wanted):
                continue
            weights = _change(first.sent[k], first.updates[k], name)
            bias = _change(first.sent[k], first.updates[k], name.removesuffix("weight") + "bias")
            count = len(wanted) * (truth.num_clients if seen.only_sums else 1)
            draw = generator(0, "attack features", k)
            strangers = _unit(_strangers(truth, k))
            chance = strangers[draw.choice(len(strangers), size=min(count, len(strangers)), replace=False)]
            span = _span(weights)
            scores.append(
                [
                    *(_match(wanted, guess) for guess in (reconstructed(weights, bias, count), chance)),
                    *(_inside(rows, span) for rows in (wanted, strangers[: 20 * len(wanted)])),
                ]
            )
        if not scores:
            return []
        cosine, by_chance, inside, strange = np.mean(scores, axis=0).tolist()
        return [Finding("cosine", cosine, by_chance, name), Finding("in the span", inside, strange, name)]


def reconstructed(weights: Array, bias: Array, count: int) -> Array:
    """Up to ``count`` rows of length 1, from the first layer's gradient [F, D] and its bias's [D]."""
    found: list[Array] = []
    if np.any(bias):
        used = np.abs(bias) > 1e-6 * np.abs(bias).max()
        rows = _unit((weights[:, used] / bias[used]).T)
        while len(found) < count and len(rows):
            alike = rows @ rows.T > SAME
            best = alike.sum(axis=1).argmax()
            if alike[best].sum() < AGREEING:
                break
            found.append(rows[alike[best]].mean(axis=0))
            rows = rows[~alike[best]]
    if not found:
        vectors = np.linalg.svd(np.nan_to_num(weights), full_matrices=False)[0].T[:count]
        found = [vector * (1 if vector.sum() >= 0 else -1) for vector in vectors]
    return _unit(np.stack(found))


def _match(wanted: Array, guesses: Array) -> float:
    """The mean cosine of wanted rows with the guesses that fit best, each guess used once."""
    from scipy.optimize import linear_sum_assignment

    cosines = wanted @ guesses.T
    places = linear_sum_assignment(-cosines)
    return float(cosines[places].sum() / len(wanted))


def _span(weights: Array) -> Array:
    left, values, _ = np.linalg.svd(np.nan_to_num(weights), full_matrices=False)
    kept: Array = left[:, values > SPAN * max(values[0], 1e-30)]
    return kept


def _inside(rows: Array, span: Array) -> float:
    return float(np.linalg.norm(rows @ span, axis=1).mean())


def _change(sent: Message, update: Message, name: str) -> Array:
    """What the client changed, or the gradient it sent; nothing if there is no such key."""
    if name not in update:
        return np.zeros(0)
    change = update[name] - sent[name] if name in sent else update[name]
    found: Array = change[0].double().numpy()
    return found


def _strangers(truth: Federation, own: int) -> Array:
    """Rows of other clients' nodes, up to a hundred of each."""
    return np.concatenate([_rows(client)[:100] for k, client in enumerate(truth.clients) if k != own])


def _rows(client: Client) -> Array:
    return np.asarray(client.graph.dense_features(), dtype=np.float64)


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Array = rows / np.where(lengths > 0, lengths, 1)
    return found
