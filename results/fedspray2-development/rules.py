"""Compares rules for choosing (w, a) on the traces of trace.py: held-out accuracies of the round with the least loss.

python rules.py FOLDER

pairs TOLERANCE: among all pairs within the tolerance of the best overall accuracy, the best minority accuracy.
errors SHARE: as pairs, but the tolerance is this share of the smallest number of errors.
loss TOLERANCE: w with the smallest loss; then a in the same way, among the pairs with this w.
loss+fixed A: w with the smallest loss, this a.
Counts and losses of earlier rounds fade by the third figure.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np


def pick(counts: Any, size: float, tolerance: float) -> int:
    """The place of the best minority accuracy within the tolerance; ties by overall accuracy, then the first."""
    overall, minority = counts[0].ravel(), counts[1].ravel()
    allowed = overall >= overall.max() - tolerance / 100 * size
    best = allowed & (minority == minority[allowed].max())
    return int(np.where(best, overall, -1).argmax())


def chosen(rule: str, value: float, counts: Any, losses: Any, size: float) -> tuple[int, int]:
    """The places of w and a."""
    if rule in ("pairs", "errors"):
        tolerance = value if rule == "pairs" else 100 * value * (1 - counts[0].max() / size)
        return divmod(pick(counts, size, tolerance), counts.shape[2])
    w = int(losses.argmin())
    return w, round(10 * value) if rule == "loss+fixed" else pick(counts[:, w : w + 1], size, value)


def judged(found: Any, rule: str, value: float, fading: float) -> tuple[float, ...]:
    """Held-out overall and minority accuracy in percent, the round, w and a."""
    counts, losses, size, best = np.zeros(found["choice"].shape[1:]), np.zeros(11), 0.0, None
    for index in range(1, len(found["choice"])):
        counts = fading * counts + found["choice"][index - 1]
        losses = fading * losses + found["choice_loss"][index - 1]
        size = fading * size + found["choice_size"][0]
        w, a = chosen(rule, value, counts, losses, size)
        loss = found["choice_loss"][index, w]
        if best is None or loss < best[0]:
            accuracies = 100 * found["held"][index, :, w, a] / found["held_size"]
            best = loss, *accuracies, index + 1, w / 10, a / 10
    assert best is not None
    return best[1:]


RULES = [("pairs", t, f) for t in (0.2, 0.3, 0.4, 0.5, 0.7, 1.0) for f in (0.9, 0.8, 0.5)]
RULES += [("errors", s, f) for s in (0.03, 0.05, 0.07, 0.1) for f in (0.9, 0.8, 0.5)]
RULES += [("loss", t, f) for t in (0.25, 0.5, 0.75) for f in (0.9, 0.5)]
RULES += [("loss+fixed", a, 0.9) for a in (0.0, 0.2, 0.3, 0.4, 0.5)]

if __name__ == "__main__":
    rows: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for path in sorted(Path(sys.argv[1]).glob("*.npz")):
        dataset, backbone, seed, lr = path.stem.split("-")
        found = dict(np.load(path))
        for rule, value, fading in RULES:
            key = (dataset, backbone, lr, rule, str(value), str(fading))
            rows[key].append((seed, *judged(found, rule, value, fading)))
    writer = csv.writer(sys.stdout)
    names = ("overall", "minority", "sum", "round", "w", "a")
    writer.writerow(["dataset", "backbone", "encoder_lr", "rule", "value", "fading", "seeds", *names])
    for key, values in rows.items():
        overall, minority, *rest = np.array([value[1:] for value in values]).mean(axis=0)
        figures = (f"{x:.2f}" for x in (overall, minority, overall + minority, *rest))
        writer.writerow([*key, " ".join(value[0] for value in values), *figures])
