"""Which round is reported: chosen on validation data, never on test data."""

from __future__ import annotations

from fedspray.errors import unknown
from fedspray.evaluation.metrics import Json

RULES = {
    "loss": "smallest pooled validation loss",
    "accuracy": "largest pooled validation accuracy",
    "balanced": "largest mean of the validation accuracies of majority and of minority nodes",
}


def score(rule: str, validation: Json) -> float | None:
    """How good a round is under a rule: larger is better; None if the validation set is empty."""
    if rule not in RULES:
        raise unknown("selection rule", rule, RULES)
    if rule == "loss":
        return None if validation["loss"] is None else -float(validation["loss"])
    value = validation["overall" if rule == "accuracy" else "balanced"]
    return None if value is None else float(value)
