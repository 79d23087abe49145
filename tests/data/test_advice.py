"""The advisor: what it looks at, by hand; that its file is what the script makes of the results; where it is silent."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from experiments import advisor, advisor_fit
from fedspray import Federation, Graph, build_federation
from fedspray.cli.main import run_command
from fedspray.data import advice
from fedspray.files import read_lines

RESULTS = Path(__file__).parents[2] / "results" / "advisor" / "federations.jsonl"


def two_clients() -> Federation:
    """One whose class means are right about all of its nodes, and one whose own are not, but the other's are."""
    ahead, across = [1.0, 0.0], [0.0, 1.0]
    graphs = {
        "sure": Graph.from_arrays([ahead, ahead, across, across], [[0, 2], [1, 3]], [0, 0, 1, 1]),
        "poor": Graph.from_arrays([ahead, ahead, across], [[0, 0], [1, 2]], [0, 0, 1]),
    }
    return Federation.from_graphs(graphs)


def test_predictors_by_hand() -> None:
    found = advice.predictors(two_clients())
    sure, poor = found["sure"], found["poor"]
    assert sure is not None
    assert poor is not None
    assert poor["labelled nodes (log10)"] == pytest.approx(math.log10(3))
    assert poor["times as many elsewhere (log10)"] == pytest.approx(math.log10(4 / 3))
    assert poor["minority share"] == pytest.approx(1 / 3)
    assert poor["minority nodes elsewhere per own one (log10)"] == pytest.approx(math.log10(3 / 2))
    assert poor["neighbours of a node (log10)"] == pytest.approx(math.log10(1 + 4 / 3))
    assert (poor["majority homophily"], poor["minority homophily"]) == (0.75, 0.0)
    assert sure["right by own class means"] == 1.0
    assert sure["more right by class means elsewhere"] == 0.0
    # halves of poor are nodes 0, 2 and node 1: the first half knows both classes, the second only class 0
    assert poor["right by own class means"] == pytest.approx((1.0 + 0.0) / 2)
    assert poor["more right by class means elsewhere"] == pytest.approx(0.5)


def test_who_has_nothing_to_look_at_gets_no_advice() -> None:
    federation = two_clients()
    alone = replace(federation, clients=federation.clients[:1])
    assert advice.predictors(alone) == {"sure": None}
    assert {each.verdict for each in advice.advise(alone)} == {"no basis"}


def test_outside_of_what_it_knows_there_is_no_advice() -> None:
    known = build_federation("banks", clients=5, nodes=1500, classes=3)
    assert all(each.likely is not None and 0 < each.likely < 1 for each in advice.advise(known))
    few = build_federation("banks", clients=5, nodes=1500, classes=3, features=5)
    told = advice.advise(few)
    assert {each.verdict for each in told} == {"no basis"}
    assert "features" in told[0].why


def test_the_fit_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 3)) * [1, 10, 0.1] + [0, 5, 1]
    helped = values[:, 0] + values[:, 1] / 10 + rng.normal(size=200) > 0
    intercept, weights = advisor_fit.fit(values, helped)
    scaled = (values - values.mean(axis=0)) / values.std(axis=0)
    theirs = LogisticRegression(C=1 / advisor_fit.PENALTY, tol=1e-10, max_iter=1000).fit(scaled, helped)
    ours = values @ weights + intercept
    np.testing.assert_allclose(ours, theirs.decision_function(scaled), atol=1e-4)


def test_the_shipped_file_is_what_the_script_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv",
        ["fit", str(RESULTS), str(RESULTS.with_name("unseen.jsonl")), "--out", str(tmp_path / "advice.json")],
    )
    advisor_fit.main()
    made, shipped = json.loads((tmp_path / "advice.json").read_text()), advice.fitted()
    assert made.keys() == shipped.keys()
    for group in advice.GROUPS:
        assert made["groups"][group]["held_out"] == pytest.approx(shipped["groups"][group]["held_out"])
        assert made["groups"][group]["weights"] == pytest.approx(shipped["groups"][group]["weights"], rel=1e-4)


def test_a_source_that_is_left_out_is_not_fitted_on() -> None:
    """Two sources that say the opposite: each is predicted by the other, and so always wrongly."""
    values = np.tile([[-1.0], [1.0]], (40, 1))
    sources = np.repeat(["a", "b"], 40)
    helped = (values[:, 0] > 0) == (sources == "a")
    likely, within = advisor_fit.held_out(values, helped, sources)
    assert within.all()
    assert advisor_fit.errors(likely, within, helped)["advisor_forced"] == 1.0


def test_a_number_draws_the_same_federation_again() -> None:
    row = next(row for row in read_lines(RESULTS) if row["source"] == "banks")
    assert advisor.again(row) == row


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", "--dataset", "banks", "--nodes", "1200", "--advise", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["advice"]
    assert set(told["clients"]) == {f"bank_0{k}" for k in range(4)}
    assert set(told["clients"]["bank_00"]) == set(told["held_out"]) == {"all", "minority"}
    assert told["clients"]["bank_00"]["minority"]["verdict"] in ("federate", "stay alone", "unclear")
    assert run_command(["inspect", "--dataset", "banks", "--nodes", "1200", "--advise"]) == 0
    assert "is federating likely to help?" in capsys.readouterr().out
