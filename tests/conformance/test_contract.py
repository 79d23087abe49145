"""What every algorithm promises, with every backbone."""

from __future__ import annotations

import pytest
from play import build

from fedspray import algorithms, backbones, testing


@pytest.mark.parametrize("rule", testing.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("backbone", backbones.names())
@pytest.mark.parametrize("name", algorithms.names())
def test_every_rule_holds(name: str, backbone: str, rule: testing.Rule) -> None:
    rule(build(name, backbone, hidden=8, dropout=0.2))


@pytest.mark.parametrize("name", algorithms.names())
def test_everything_is_described(name: str) -> None:
    testing.described(algorithms.find(name))


@pytest.mark.parametrize("name", algorithms.names())
def test_every_preset_runs(name: str) -> None:
    testing.presets_run(algorithms.find(name))
