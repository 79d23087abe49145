"""Compares ways of staying with Local, on the traces of nodes.py: held-out accuracies of the reported round.

python safety.py FOLDER > safety.csv

pair: how (w, a) is chosen. errors: the rule without safety. floor: the same, among pairs that are behind the GNN alone
on neither metric. floor3: nor by their loss. loss: w with the smallest loss, then a by the same rule.
alone: what a client does that is clearly behind its own GNN on its own validation nodes: -: nothing; now: it uses the
GNN of the round; kept: its GNN of the round with the smallest validation loss so far; kept*: the same, and the round
is reported whose models have the smallest loss, instead of the smallest loss of the blend. z: how many standard errors
"clearly" is.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLENDS = torch.arange(11) / 10
SHIFTS = torch.arange(8) / 10


class Trace:
    """One training, and what every pair gets right in every round."""

    def __init__(self, path: Path) -> None:
        found = np.load(path)
        self.own, self.taught = (torch.from_numpy(found[name]).float() for name in ("own", "taught"))
        self.labels, self.owners, self.minority, self.held, shares = (
            torch.from_numpy(found[name]) for name in ("labels", "owners", "minority", "held", "shares")
        )
        self.shares = shares[self.owners]
        self.num_clients = len(shares)
        self.val = ~self.held
        self.right, self.losses = [], []
        for own, taught in zip(self.own, self.taught, strict=True):
            mixed = [(1 - w) * own + w * taught for w in BLENDS]
            right = [[self.hit(m - a * self.shares) for a in SHIFTS] for m in mixed]
            self.right.append(torch.stack([torch.stack(row) for row in right]))  # [W, A, n]
            self.losses.append(torch.stack([self.loss(m) for m in mixed]))  # [W, n]
        self.size, self.minority_size = int(self.val.sum()), int((self.val & self.minority).sum())

    def hit(self, scores: Tensor) -> Tensor:
        """Which nodes the scores get right."""
        return scores.argmax(dim=1) == self.labels

    def loss(self, scores: Tensor) -> Tensor:
        """The loss of each node."""
        return torch.nn.functional.cross_entropy(scores, self.labels, reduction="none")

    def per_client(self, values: Tensor) -> Tensor:
        """Sums over the clients' nodes."""
        return torch.zeros(self.num_clients).index_add(0, self.owners, values.float())

    def accuracies(self, right: Tensor) -> list[float]:
        """On all and on minority held-out nodes, in percent."""
        return [100 * float(right[part].float().mean()) for part in (self.held, self.held & self.minority)]


def pick(rule: str, counts: Tensor, losses: Tensor, size: float) -> tuple[int, int]:
    """The places of w and a; counts [2, W, A], losses [W]."""
    name, _, share = rule.partition(" ")
    tolerance = float(share or 0.05)
    overall, minority = counts.flatten(1)
    within = torch.ones_like(overall, dtype=torch.bool)
    if name in ("loss",):
        within = (torch.arange(len(BLENDS)) == losses.argmin()).repeat_interleave(len(SHIFTS))
    if name in ("floor", "floor3"):
        within = within & (overall >= overall[0]) & (minority >= minority[0])
    if name == "floor3":
        within = within & (losses <= losses[0]).repeat_interleave(len(SHIFTS))
    top = overall[within].max()
    allowed = within & (overall >= top - tolerance * (size - top))
    best = allowed & (minority == minority[allowed].max())
    place = int(torch.where(best, overall, torch.tensor(-1.0)).argmax())
    return divmod(place, len(SHIFTS))


def judged(trace: Trace, rule: str, alone: str, z: float, fading: float = 0.5) -> Any:
    """The reported round: its loss, which nodes it gets right, its number, w, a, the share of clients alone."""
    blend_alone = not alone.endswith("*")
    alone = alone.rstrip("*")
    counts, losses, size = torch.zeros(2, 11, 8), torch.zeros(11), 0.0
    kept = torch.full((trace.num_clients,), 1e9)
    kept_scores = trace.own[0].clone()
    best, alones = None, torch.zeros(trace.num_clients, dtype=torch.bool)
    w, a = 5, 0
    for t in range(1, len(trace.own)):
        before = trace.right[t - 1]
        own_loss = trace.per_client(trace.losses[t - 1][0] * trace.val)
        better = own_loss < kept
        kept = torch.where(better, own_loss, kept)
        kept_scores = torch.where(better[trace.owners, None], trace.own[t - 1], kept_scores)
        counted = torch.stack([before[:, :, trace.val].sum(2), before[:, :, trace.val & trace.minority].sum(2)]).float()
        counts = fading * counts + counted
        losses = fading * losses + trace.losses[t - 1][:, trace.val].sum(1)
        size = fading * size + trace.size
        reference = trace.own[t - 1] if alone == "now" else kept_scores
        local, mine = trace.hit(reference), before[w, a]  # the pair that was received
        w, a = pick(rule, counts, losses, size)
        if alone != "-":
            verdicts = torch.zeros(trace.num_clients)
            for part in (trace.val, trace.val & trace.minority):
                gap = trace.per_client((mine.float() - local.float()) * part)
                margin = z * trace.per_client((mine != local) & part).sqrt() + 1e-9
                verdicts += (gap > margin).float() - (gap < -margin).float()
            alones = verdicts < 0
        scores = (1 - BLENDS[w]) * trace.own[t] + BLENDS[w] * trace.taught[t]
        shifted = scores - SHIFTS[a] * trace.shares
        own = trace.own[t] if alone == "now" else kept_scores
        if not blend_alone:
            scores = torch.where(alones[trace.owners, None], own, scores)
        shifted = torch.where(alones[trace.owners, None], own, shifted)
        loss = float(trace.loss(scores)[trace.val].mean())
        if best is None or loss < best[0]:
            best = loss, trace.hit(shifted), t + 1, w / 10, a / 10, float(alones.float().mean())
    return best


def local(trace: Trace) -> tuple[Tensor, int]:
    """Which nodes Local gets right in its own best round, and the round."""
    losses = [float(loss[0][trace.val].mean()) for loss in trace.losses]
    return trace.right[int(np.argmin(losses))][0, 0], int(np.argmin(losses)) + 1


def hurt(trace: Trace, right: Tensor, reference: Tensor) -> Any:
    """Clients whose held-out nodes say, at two standard errors, that they are worse off than with Local."""
    gap = trace.per_client((right.float() - reference.float()) * trace.held)
    spread = trace.per_client((right != reference) & trace.held)
    mgap = trace.per_client((right.float() - reference.float()) * (trace.held & trace.minority))
    mspread = trace.per_client((right != reference) & trace.held & trace.minority)
    return int((gap < -2 * spread.sqrt() - 1e-9).sum()), int((mgap < -2 * mspread.sqrt() - 1e-9).sum())


WAYS = [(rule, "-", 0.0) for rule in ("errors", "floor", "floor3", "loss")]
WAYS += [("floor3", "now", 1.0), ("floor3", "kept*", 1.0), *(("floor3", "kept", z) for z in (0.5, 1.0, 2.0))]

if __name__ == "__main__":
    rows: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for path in sorted(Path(sys.argv[1]).glob(sys.argv[2] if len(sys.argv) > 2 else "*.npz")):
        dataset, backbone, seed = path.stem.rsplit("-", 2)
        trace = Trace(path)
        reference, when = local(trace)
        rows[dataset, backbone, "local", "", ""].append((seed, *trace.accuracies(reference), when, 0, 0, 0, 0, 0))
        for rule, kind, z in WAYS:
            _, right, *rest = judged(trace, rule, kind, z)
            rows[dataset, backbone, rule, kind, str(z)].append(
                (seed, *trace.accuracies(right), *rest, *hurt(trace, right, reference))
            )
    writer = csv.writer(sys.stdout)
    names = ("overall", "minority", "round", "w", "a", "alone", "hurt", "hurt_minority")
    writer.writerow(["dataset", "backbone", "pair", "alone", "z", "seeds", *names])
    for key, values in rows.items():
        figures = (f"{x:.2f}" for x in np.array([value[1:] for value in values]).mean(axis=0))
        writer.writerow([*key, " ".join(value[0] for value in values), *figures])
