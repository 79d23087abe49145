"""Fits the advisor of `fedspray inspect --advise` on what `experiments.advisor` measured, and says how often it errs.

    python -m experiments.advisor_fit results/advisor/federations.jsonl results/advisor/unseen.jsonl

writes src/fedspray/data/advice.json. Every source of federations (a generator, a data set) is left out once: the advice
on its clients comes from a fit on all others. Beside it stand the errors of "always federate" and "never".
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedspray import files
from fedspray.data import advice
from fedspray.files import Json, read_lines

LEAST = 10
"""Test nodes that a client needs to be counted; with fewer, whether it gained is chance."""
PENALTY = 10.0
GENERATED = ("banks", "blocks")
"""Sources of which as many federations as one likes can be drawn: the errors that users are told are of the others."""
Rows = NDArray[np.float64]


def samples(federations: list[Json], group: str) -> tuple[list[str], Rows, NDArray[np.bool_], NDArray[np.str_]]:
    """Names of the predictors, [n, P] their values, [n] whether federating helped, and [n] the sources."""
    names: list[str] = []
    values, helped, sources = [], [], []
    for federation in {row["number"]: row for row in federations if "clients" in row}.values():
        for client in federation["clients"]:
            known: Json | None = client["predictors"]
            counts = client["test"][group]
            nodes = sum(counts.values())
            if known is None or nodes < LEAST:
                continue
            names = list(known)
            values.append(list(known.values()))
            helped.append((counts["gained"] - counts["lost"]) / nodes >= advice.GAIN)
            sources.append(federation["source"])
    return names, np.array(values), np.array(helped), np.array(sources)


def fit(values: Rows, helped: NDArray[np.bool_]) -> tuple[float, Rows]:
    """Intercept and weights of a logistic regression on standardised values, with an L2 penalty; by Newton's method."""
    mean, spread = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-9)
    inputs = np.column_stack([np.ones(len(values)), (values - mean) / spread])
    weights, ridge = np.zeros(inputs.shape[1]), PENALTY * np.diag([0.0, *np.ones(values.shape[1])])
    for _ in range(50):
        likely = 1 / (1 + np.exp(-inputs @ weights))
        slope = inputs.T @ (likely - helped) + ridge @ weights
        curve = inputs.T @ (inputs * (likely * (1 - likely))[:, None]) + ridge
        weights = weights - np.linalg.solve(curve, slope)
    scaled = weights[1:] / spread
    return float(weights[0] - scaled @ mean), scaled


def held_out(values: Rows, helped: NDArray[np.bool_], sources: NDArray[np.str_]) -> tuple[Rows, NDArray[np.bool_]]:
    """[n]: the probability of help by a fit on all other sources, and whether it lies within what that fit has seen."""
    likely, within = np.zeros(len(values)), np.zeros(len(values), bool)
    for source in np.unique(sources):
        own = sources == source
        intercept, weights = fit(values[~own], helped[~own])
        likely[own] = 1 / (1 + np.exp(-(intercept + values[own] @ weights)))
        low, high = ranges(values[~own])
        within[own] = ((values[own] >= low) & (values[own] <= high)).all(axis=1)
    return likely, within


def ranges(values: Rows) -> tuple[Rows, Rows]:
    """[P] each: the smallest and the largest value that was seen."""
    return values.min(axis=0), values.max(axis=0)


def errors(likely: Rows, within: NDArray[np.bool_], helped: NDArray[np.bool_]) -> Json:
    """How often advice is wrong on clients of sources that it was not fitted on."""
    sure = within & (np.abs(likely - 0.5) >= advice.SURE - 0.5)
    return {
        "clients": len(helped),
        "always_federate": float(1 - helped.mean()),
        "never_federate": float(helped.mean()),
        "advisor_forced": float(((likely >= 0.5) != helped).mean()),
        "advised": int(sure.sum()),
        "advisor": float(((likely >= 0.5) != helped)[sure].mean()) if sure.any() else None,
        "always_federate_where_advised": float(1 - helped[sure].mean()) if sure.any() else None,
    }


def rounded(value: Any) -> Any:
    """Six digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def main() -> None:
    """Fits, prints the errors, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("federations", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path(advice.__file__).with_name("advice.json"))
    options = parser.parse_args()
    federations = [row for file in options.federations for row in read_lines(file)]
    content: Json = {"ranges": {}, "groups": {}}
    for group in advice.GROUPS:
        names, values, helped, sources = samples(federations, group)
        likely, within = held_out(values, helped, sources)
        real = ~np.isin(sources, GENERATED)
        intercept, weights = fit(values, helped)
        by_source = {str(s): errors(*(part[sources == s] for part in (likely, within, helped))) for s in set(sources)}
        content["groups"][group] = {
            "intercept": intercept,
            "weights": dict(zip(names, weights.tolist(), strict=True)),
            "held_out": errors(likely[real], within[real], helped[real]),
            "by_source": dict(sorted(by_source.items())),
        }
        low, high = ranges(values)
        for name, *ends in zip(names, low.tolist(), high.tolist(), strict=True):
            before = content["ranges"].get(name, ends)
            content["ranges"][name] = [min(before[0], ends[0]), max(before[1], ends[1])]
        print(group, json.dumps(rounded(content["groups"][group]["held_out"]), indent=2))
    content["federations"] = sum("clients" in row for row in federations)
    files.write_json(options.out, rounded(content))


if __name__ == "__main__":
    main()
