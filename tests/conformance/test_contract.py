"""What every algorithm promises, with every backbone.

`make test` holds every algorithm to all rules with one backbone, and with each other backbone to one rule, another one
for each pair; `make test-slow` does the rest.
"""

from __future__ import annotations

import pytest
from play import build

from fedspray import algorithms, backbones, testing

RULE_BY_RULE = [
    pytest.param(
        name, backbone, rule, marks=[] if backbone == "gcn" or (i + j) % len(testing.RULES) == k else pytest.mark.slow
    )
    for i, name in enumerate(algorithms.names())
    for j, backbone in enumerate(backbones.names())
    for k, rule in enumerate(testing.RULES)
]


@pytest.mark.parametrize(("name", "backbone", "rule"), RULE_BY_RULE)
def test_every_rule_holds(name: str, backbone: str, rule: testing.Rule) -> None:
    rule(build(name, backbone, hidden=8, dropout=0.2))


@pytest.mark.parametrize("name", algorithms.names())
def test_everything_is_described(name: str) -> None:
    testing.described(algorithms.find(name))


@pytest.mark.parametrize("name", algorithms.names())
def test_every_preset_runs(name: str) -> None:
    testing.presets_run(algorithms.find(name))
