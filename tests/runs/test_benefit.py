from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import ragged_federation

import fedspray
from fedspray.cli.main import run_command
from fedspray.data.federation import Client, Federation, Split
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.evaluation.intervals import paired_difference
from fedspray.runs import benefit
from fedspray.runs.benefit import against_local, benefits, sentences, warnings


class Said:
    """A model that says what it is told: the class of each node; ``alone`` if it knows what a client would have had."""

    def __init__(self, says: list[int], alone: list[int] | None = None) -> None:
        self.says, self.alone = says, alone

    def predict(self, graph: Graph, train: Any = None) -> Any:
        return np.eye(2)[self.says]

    def predict_alone(self, graph: Graph, train: Any = None) -> Any:
        return None if self.alone is None else np.eye(2)[self.alone]


def one_client() -> Federation:
    """Six nodes: 0 and 1 (class 0) are trained on, 2 and 3 validate, 4 (class 0) and 5 (class 1) are test nodes."""
    graph = Graph.from_arrays(np.zeros((6, 1)), np.zeros((2, 0), dtype=int), [0, 0, 0, 1, 0, 1], num_classes=2)
    nodes = np.arange(6)
    split = Split(nodes < 2, np.isin(nodes, [2, 3]), nodes > 3)
    return Federation("one", (Client("a", graph, split, nodes),))


def test_counts_by_hand() -> None:
    """The model is right about 2, 3 and 4, Local about 2 and 5; 3 and 5 are outside the majority class."""
    own, base = Said([0, 0, 0, 1, 0, 0]), Said([0, 0, 0, 0, 1, 1])
    expected = {
        "val": {
            "all": {"both": 1, "gained": 1, "lost": 0, "neither": 0},
            "minority": {"both": 0, "gained": 1, "lost": 0, "neither": 0},
        },
        "test": {
            "all": {"both": 0, "gained": 1, "lost": 1, "neither": 0},
            "minority": {"both": 0, "gained": 0, "lost": 1, "neither": 0},
        },
    }
    models: Any = {"a": own}
    beside: Any = {"a": base}
    assert against_local(one_client(), models, beside) == {"a": expected}
    assert against_local(one_client(), models, None) == {}
    knows: Any = {"a": Said(own.says, base.says)}
    assert against_local(one_client(), knows, None) == {"a": expected}


def row(both: int, gained: int, lost: int, neither: int) -> dict[str, Any]:
    counts = dict(zip(("both", "gained", "lost", "neither"), (both, gained, lost, neither), strict=True))
    none = dict.fromkeys(counts, 0)
    return {part: {"all": counts, "minority": none} for part in ("val", "test")}


def test_verdicts_and_sentences() -> None:
    seed = {"against_local": {"up": row(50, 30, 5, 15), "down": row(50, 5, 30, 15), "same": row(50, 6, 5, 39)}}
    found = benefits([seed])
    assert {name: each["all"]["verdict"] for name, each in found["clients"].items()} == {
        "up": "helped",
        "down": "hurt",
        "same": "unclear",
    }
    up = paired_difference(50, 30, 5, 15)
    assert (found["clients"]["up"]["all"]["low"], found["clients"]["up"]["all"]["high"]) == (up.low, up.high)
    assert found["clients"]["up"]["minority"] is None
    said = sentences({"benefit": found})
    assert len(said) == 3
    assert all(line.startswith(name) for line, name in zip(said, ("up", "down", "same"), strict=True))
    assert "+25.0 points on 100 nodes" in said[0]


@pytest.mark.parametrize(
    ("test", "val", "verdict"),
    [
        ((50, 5, 30, 15), (50, 6, 5, 39), "unclear"),  # clearly behind, but a little ahead on validation nodes
        ((50, 30, 5, 15), (50, 5, 6, 39), "unclear"),
        ((50, 5, 30, 15), (50, 5, 5, 40), "hurt"),  # validation nodes say nothing
        ((50, 5, 30, 15), (0, 0, 0, 0), "hurt"),  # there are none
        ((50, 5, 30, 15), (50, 5, 6, 39), "hurt"),
    ],
)
def test_no_verdict_where_validation_nodes_point_the_other_way(
    test: tuple[int, ...], val: tuple[int, ...], verdict: str
) -> None:
    counts = row(*test) | {"val": row(*val)["val"]}
    found = benefits([{"against_local": {"a": counts}}])
    assert found["clients"]["a"]["all"]["verdict"] == verdict
    assert found["clients"]["a"]["all"]["validation"] == (
        None if sum(val) == 0 else pytest.approx((val[1] - val[2]) / sum(val))
    )
    (said,) = sentences({"benefit": found})
    assert ("on validation nodes" in said) == (verdict == "unclear")


def test_several_seeds_are_no_more_evidence_than_one() -> None:
    once, twice = ({"against_local": {"a": row(5, 3, 1, 1)}} for _ in range(2))
    assert benefits([once, twice]) == benefits([once])
    assert benefits([{}]) == {}


def test_a_warning_is_from_validation_nodes() -> None:
    behind = row(50, 5, 30, 15) | {"test": row(50, 30, 5, 15)["test"]}
    ahead = row(50, 30, 5, 15) | {"test": row(50, 5, 30, 15)["test"]}
    for seed, count in ((behind, 1), (ahead, 0)):
        found = benefits([{"against_local": {"a": seed}}])
        assert len(warnings({"algorithm": "x", "benefit": found})) == count
    assert warnings({"algorithm": "x"}) == []


def test_fedspray2_compares_itself_and_others_are_compared_on_demand() -> None:
    federation = ragged_federation()
    own = fedspray.run(federation, "fedspray2", rounds=3, hidden=4).summary()
    assert set(own["benefit"]["clients"]) == {client.name for client in federation.clients}
    plain = fedspray.run(federation, "fedavg", rounds=3, hidden=4)
    beside = fedspray.run(federation, "fedavg", rounds=3, hidden=4, baseline="local")
    assert "benefit" not in plain.summary()
    assert beside.seeds[0].metrics["models"] == plain.seeds[0].metrics["models"]
    assert beside.seeds[0].metrics["bytes_up"] == plain.seeds[0].metrics["bytes_up"]
    local = fedspray.run(federation, "local", rounds=3, hidden=4).seeds[0].metrics
    for name, counts in beside.seeds[0].metrics["against_local"].items():
        test = counts["test"]["all"]
        assert test["both"] + test["lost"] == round(local["clients"][name]["overall"] * local["clients"][name]["nodes"])


@pytest.mark.parametrize("values", [{"distill_weight": 1.0}, {"safety": "off"}, {"blend": 0.5}])
def test_a_gnn_that_is_not_locals_is_not_called_that(values: dict[str, Any]) -> None:
    assert "benefit" not in fedspray.run(ragged_federation(), "fedspray2", rounds=1, hidden=4, **values).summary()


def test_local_beside_itself_is_the_same() -> None:
    summary = fedspray.run(ragged_federation(), "local", rounds=2, hidden=4, baseline="local").summary()
    assert {each["all"]["difference"] for each in summary["benefit"]["clients"].values()} == {0.0}


def test_another_baseline_is_refused() -> None:
    with pytest.raises(InputError, match=r"^baseline is 'fedavg'"):
        fedspray.run(ragged_federation(), "fedavg", rounds=1, baseline="fedavg")


def test_the_command_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benefit, "against_local", lambda *_: {"bank_00": row(50, 5, 30, 15)})
    flags = ["run", "--dataset", "banks", "--nodes", "200", "--algorithm", "fedspray2", "--rounds", "1", "--out"]
    assert run_command([*flags, str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert "bank_00: federating hurt" in said
    assert "warning: fedspray2 is behind training alone" in said
