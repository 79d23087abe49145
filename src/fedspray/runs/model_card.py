"""The card of a personal model: what a person should know before using it, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedspray.data.minority import NONE, is_minority
from fedspray.evaluation.intervals import wilson

_NODES = {"val": "validation", "test": "test"}


def card(model: Mapping[str, Any]) -> str:
    """Markdown, from what `PersonalModel.meta` says."""
    facts, names = model.get("facts") or {}, model["class_names"] or [str(c) for c in range(model["num_classes"])]
    head = f"# {model['client']}: a personal model, {model['algorithm']} with {model['backbone']}"
    parts = [_FRONT, head, _about(model, facts, names), *([_figures(facts, names)] if facts else []), _FILL_IN, _FILES]
    return "\n\n".join(parts) + "\n"


def _about(model: Mapping[str, Any], facts: Mapping[str, Any], names: list[str]) -> str:
    told = [
        f"It predicts one of {model['num_classes']} classes ({', '.join(names)}) for every node of a graph, from "
        f"{model['num_features']} features of the nodes and from the edges between them. It is client "
        f"{model['client']}'s model of round {model['round']}; sha256 of its weights: `{model['sha256']}`."
    ]
    if facts:
        sizes = [int(np.sum(facts["confusion"][part])) for part in ("train", "val", "test")]
        told.append(
            f"Trained on: {facts['dataset']}, this client's {facts['nodes']:,} nodes and {facts['edges']:,} edges, of "
            "which {:,} nodes were for training, {:,} for validation and {:,} for testing.".format(*sizes)
        )
        if facts["majority"] is not None:
            told.append(
                f"Most of its training nodes are of class {names[facts['majority']]}; all other classes are *minority* "
                "classes here."
            )
    settings = "\n".join(f"| `{name}` | {value} |" for name, value in model["values"].items())
    return "\n\n".join(told) + f"\n\n## Settings\n\n| setting | value |\n|---|---|\n{settings}"


def _figures(facts: Mapping[str, Any], names: list[str]) -> str:
    """Validation and test figures with 95% intervals, and how far confidences can be believed."""
    majority = NONE if facts["majority"] is None else facts["majority"]
    rows = ["| nodes | validation | test |", "|---|---|---|"]
    confusion = {part: np.array(facts["confusion"][part]) for part in _NODES}
    of_minority = is_minority(np.arange(len(names)), majority)
    groups = {"all": np.ones(len(names), bool), "of minority classes": of_minority}
    groups |= {f"of class {name}": np.arange(len(names)) == c for c, name in enumerate(names)}
    for group, chosen in groups.items():
        rows.append(f"| {group} | " + " | ".join(_accuracy(confusion[part], chosen) for part in _NODES) + " |")
    said = (
        "## Figures\n\nAccuracy with a 95% interval (Wilson) and the number of nodes. Validation nodes also chose the "
        "round, so test nodes are the fairer ones.\n\n" + "\n".join(rows)
    )
    precision = [
        f"| {name} | " + " | ".join(_share(matrix[c, c], matrix[:, c].sum()) for matrix in confusion.values()) + " |"
        for c, name in enumerate(names)
    ]
    said += "\n\n| predicted as | right on validation nodes | right on test nodes |\n|---|---|---|\n" + "\n".join(
        precision
    )
    known = facts["calibration"]
    if known is None:
        return said + "\n\nThere were no validation nodes, so confidences are not calibrated."
    errors = [
        f"{_NODES[part]} nodes {_points(known['before'][part])} → {_points(known['after'][part])}" for part in _NODES
    ]
    return said + (
        f"\n\nConfidences are calibrated on {known['nodes']} validation nodes (temperature "
        f"{known['temperature']:.3g}). Mean distance of confidence and accuracy, before → after: {', '.join(errors)}."
    )


def _accuracy(confusion: np.ndarray[Any, Any], classes: np.ndarray[Any, Any]) -> str:
    return _share(np.diagonal(confusion)[classes].sum(), confusion[classes].sum())


def _share(right: float, total: float) -> str:
    if not total:
        return "none"
    found = wilson(right / total, total)
    return f"{100 * found.value:.1f}% ({100 * found.low:.1f} to {100 * found.high:.1f}) of {int(total)}"


def _points(error: float | None) -> str:
    return "none" if error is None else f"{100 * error:.1f} points"


_FRONT = """---
license: # to fill in
library_name: fedspray
---"""

_FILL_IN = """## To fill in

- Licence of the model:
- Licence of the data, and who may use a model of them:
- Whom to ask:
- What it is meant for, and what not:"""

_FILES = """## Files

| file | what |
|---|---|
| `model.safetensors` | the whole model, all that `fedspray predict` needs |
| `trained-on.safetensors` | which nodes it has seen, by hashes of their names: leave it out when you pass the model \
on; then it cannot tell new nodes from old ones |
| `model.json` | settings and figures |
| `schema.toml` | how tables become its features, if it was trained on tables |

```sh
fedspray predict --model . --graph GRAPH.npz --out predictions.csv
```"""
