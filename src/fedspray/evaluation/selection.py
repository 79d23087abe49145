"""Which round is reported: chosen on validation data, never on test data."""

from __future__ import annotations

from fedspray.errors import unknown
from fedspray.evaluation.metrics import METRICS
from fedspray.files import Json

ACCURACY = "accuracy"
"""The rule of the largest `overall`."""


def rules() -> dict[str, str]:
    """The rules by name: metrics that every round has, `overall` also as ``accuracy``."""
    return {ACCURACY: "overall", **{name: name for name, each in METRICS.items() if not each.closing}}


def check(rule: str) -> None:
    """Refuses a rule that does not exist."""
    if rule not in rules():
        raise unknown("selection rule", rule, rules())


def score(rule: str, validation: Json) -> float | None:
    """How good a round is under a rule: larger is better; None if the validation set is empty."""
    check(rule)
    name = rules()[rule]
    value = METRICS[name].score(validation[name])
    return None if value is None else float(value)
