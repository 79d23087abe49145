"""Class proxies in two dimensions, and the similarity of clients' moves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedspray.files import Json
from fedspray.runs.proxies import ClassProxies

MAX_COSINES = 60_000
"""Numbers in a run's similarity matrices (about 0.4 MB of a page); with more clients, the largest are shown."""

Floats = NDArray[np.float64]


def explore(proxies: ClassProxies, sizes: Sequence[int]) -> Json | None:
    """Everything that the proxy explorer draws; None if all vectors are equal (an ablation without proxies).

    ``sizes`` are the clients', by id. Of the result, ``of`` is their number and ``clients`` are those that are shown;
    of ``planes`` and of both lists in ``similarity``, the first entry is for all classes together and the others for
    one class each.
    """
    own, sent, aligned = (array.numpy().astype(np.float64) for array in (proxies.own, proxies.sent, proxies.aligned))
    ids = proxies.clients.numpy()
    shown = _largest(np.asarray(sizes)[ids], len(aligned))
    own, ids, held = own[shown], ids[shown], proxies.weight.numpy()[shown] > 0
    everything = np.concatenate([own[held], aligned, sent])
    if not held.any() or np.ptp(everything, axis=0).max() == 0:
        return None
    classes = range(len(aligned))
    return {
        "clients": ids.tolist(),
        "of": len(proxies.clients),
        "planes": [
            _plane(own, sent, aligned, held, ids, chosen) for chosen in (list(classes), *([c] for c in classes))
        ],
        "similarity": {
            "moves": _with_mean([similarity(own[:, c] - sent[c], held[:, c]) for c in classes]),
            "proxies": _with_mean([similarity(own[:, c], held[:, c]) for c in classes]),
        },
    }


def _largest(sizes: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """The places of the largest clients, as many as a page can hold, in their order."""
    room = math.isqrt(MAX_COSINES // (2 * (num_classes + 1)))
    return np.sort(np.argsort(-sizes, kind="stable")[:room])


def project(points: Floats) -> tuple[Floats, list[float]]:
    """Points [n, D] in the plane of their two largest principal components [n, 2], and the variance these explain."""
    centred = points - points.mean(axis=0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(points), 2))
    kept = directions[:2] * _signs(directions[:2])
    flat[:, : len(kept)] = centred @ kept.T
    total = float((values**2).sum())
    return flat, [float(value**2 / total) if total else 0.0 for value in values[:2]]


def _plane(
    own: Floats, sent: Floats, aligned: Floats, held: NDArray[np.bool_], ids: NDArray[np.int64], chosen: list[int]
) -> Json:
    """Clients' own vectors of the chosen classes they hold, the aligned ones, and those the round began with."""
    pairs = [(k, c) for c in chosen for k in np.flatnonzero(held[:, c])]
    vectors = [own[k, c] for k, c in pairs]
    flat, explained = project(np.stack([*vectors, *aligned[chosen], *sent[chosen]]))
    return {
        "classes": chosen,
        "own": [
            {
                "client": int(ids[k]),
                "class": c,
                "at": flat[i].tolist(),
                "moved": float(np.linalg.norm(own[k, c] - sent[c])),
            }
            for i, (k, c) in enumerate(pairs)
        ],
        "aligned": flat[len(pairs) : len(pairs) + len(chosen)].tolist(),
        "sent": flat[len(pairs) + len(chosen) :].tolist(),
        "explained": explained,
    }


def _with_mean(matrices: list[list[list[float | None]]]) -> list[list[list[float | None]]]:
    """The matrices after their mean over those that have a value."""
    values = np.array(matrices, dtype=np.float64)  # [C, K, K], None becomes NaN
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    mean = [
        [round(float(s / n), 3) if n else None for s, n in zip(row, tally, strict=True)]
        for row, tally in zip(sums, counts, strict=True)
    ]
    return [mean, *matrices]


def similarity(vectors: Floats, known: NDArray[np.bool_]) -> list[list[float | None]]:
    """[K, K]: cosines of the angles between vectors [K, D]; None if one is unknown or 0."""
    lengths = np.linalg.norm(vectors, axis=1)
    usable = known & (lengths > 0)
    unit = vectors / np.where(usable, lengths, 1.0)[:, None]
    cosines = np.clip(unit @ unit.T, -1, 1)
    return [
        [round(float(cosines[i, j]), 3) if usable[i] and usable[j] else None for j in range(len(vectors))]
        for i in range(len(vectors))
    ]


def _signs(directions: Floats) -> Floats:
    """Singular vectors have an arbitrary sign: makes the largest coordinate positive."""
    largest = np.abs(directions).argmax(axis=1)
    return np.where(directions[np.arange(len(directions)), largest] < 0, -1.0, 1.0)[:, None]
