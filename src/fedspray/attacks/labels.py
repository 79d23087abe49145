"""Label distributions from updates.

- Where class counts or shares weigh a mean by class, they are the distribution; with noise, their mean over rounds.
- The gradient of an output layer's bias, summed over training nodes, is the difference of predicted and true class
  counts (Wainakh et al., "User-level label leakage from gradients", 2022). In the first round all predictions are about
  softmax(bias), so with n the number of training nodes the counts are n · softmax(bias) - gradient.
- Where weights travel, a client's drift (the sum over rounds of what it changed in the output layer, or in all weights
  if it does not send that) goes with its labels. How is learned from the others, as if they worked with the server:
  ridge regression, leaving the client out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedspray.attacks._labels import Array, as_shares, scored, true_shares
from fedspray.attacks.base import Attack, Finding, Seen
from fedspray.data.federation import Federation
from fedspray.messages import fates, key_of
from fedspray.nn.tree import Message


@dataclass(frozen=True)
class Labels(Attack):
    """Guesses how many of a client's training nodes are of each class."""

    summary: ClassVar[str] = "each client's label distribution, from its updates"

    def findings(self, seen: Seen, truth: Federation) -> list[Finding]:
        """Scores of the best way that what is sent allows."""
        ids = range(truth.num_clients)
        exchanges = [each for each in seen.exchanges if set(ids) <= set(each.updates)]
        if not exchanges or not exchanges[0].updates[0]:
            return []
        first, declared = exchanges[0].updates[0], seen.run.algorithm.uplink
        shares, mean = true_shares(truth)
        weights = [key.weight for key in fates(declared).values() if key.weight in first]
        by_class = [name for name in weights if name is not None and first[name].dim() == 2]
        classes, gradients = truth.task.num_classes, [n for n in first if n.startswith("gradient.")]
        biases = [n for n in gradients if n.endswith("bias") and first[n].shape[1:] == (classes,)]
        if by_class:
            name = by_class[0]
            rows = [[each.updates[k][name][0].double().numpy() for each in exchanges] for k in ids]
            return scored(as_shares(np.mean(rows, axis=1), mean), truth, name)
        if biases:
            counts = [[_counts(exchanges[0].sent[k], exchanges[0].updates[k], name) for name in biases] for k in ids]
            return scored(as_shares(np.mean(counts, axis=1), mean), truth, " and ".join(biases))
        last = [n for n, v in first.items() if n in exchanges[0].sent[0] and v.dim() > 1 and v.shape[-1] == classes]
        moved = last or [n for n in first if not key_of(declared, n).kind.whole]
        drift = np.stack([sum(_changes(each.sent[k], each.updates[k], moved) for each in exchanges) for k in ids])
        source = f"drift of {'the output layer' if last else 'all weights'}"
        guess, usual = _left_out(drift, shares)
        return scored(as_shares(guess, mean), truth, source, usual)


def _counts(sent: Message, update: Message, name: str) -> Array:
    bias = sent[f"encoder.{name.partition('.')[2]}"][0].double()
    expected = update["num_train"].reshape(-1)[0].double() * bias.softmax(dim=0)
    found: Array = (expected - update[name][0].double()).numpy()
    return found


def _changes(sent: Message, update: Message, names: list[str]) -> Array:
    parts: Iterator[torch.Tensor] = (update[n] - sent[n] if n in sent else update[n] for n in names)
    return torch.cat([part.flatten().double() for part in parts]).numpy()


def _left_out(features: Array, shares: Array) -> tuple[Array, Array]:
    """Each client's shares, [K, C], predicted from its row by what the other clients' rows teach, and their mean.

    Nothing here may know all clients' labels together: with those of the others they give the client's own.
    """
    guesses, means = [], []
    for k in range(len(features)):
        rows, known = np.delete(features, k, axis=0), np.delete(shares, k, axis=0)
        centre, mean = rows.mean(axis=0), known.mean(axis=0)
        rows = rows - centre
        gram = rows @ rows.T
        ridge = 0.1 * np.trace(gram) / max(1, len(rows)) + 1e-12
        taught = np.linalg.solve(gram + ridge * np.eye(len(rows)), known - mean)
        guesses.append(mean + (features[k] - centre) @ rows.T @ taught)
        means.append(mean)
    return np.stack(guesses), np.stack(means)
