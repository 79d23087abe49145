from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys import awkward_federation, ragged_federation

import fedspray
from fedspray.data.statistics import node_homophily
from fedspray.runs import predictions
from fedspray.runs.predictions import TestPredictions


def test_kept_predictions_are_those_the_run_was_judged_by(tmp_path: Path) -> None:
    federation = ragged_federation()
    result = fedspray.run(federation, rounds=4, seeds=(2,), out=tmp_path / "run", algorithm="fedspray-plus")
    kept = TestPredictions.load(tmp_path / "run" / "seed-2" / predictions.FILE)
    metrics = result.seeds[0].metrics
    assert kept.correct.mean() == pytest.approx(metrics["overall"])
    assert kept.correct[kept.minority].mean() == pytest.approx(metrics["minority"])
    for k, client in enumerate(federation.with_split(2).clients):
        own = kept.client == k
        assert own.sum() == metrics["clients"][client.name]["nodes"]
        assert (own & kept.minority).sum() == metrics["clients"][client.name]["minority_nodes"]
        assert np.array_equal(kept.node[own], np.flatnonzero(client.split.test))
        assert np.array_equal(kept.label[own], client.graph.labels[kept.node[own]])
        assert np.array_equal(kept.homophily[own], node_homophily(client.graph)[kept.node[own]], equal_nan=True)


def test_clients_without_labels_have_no_minority(tmp_path: Path) -> None:
    federation = awkward_federation()
    fedspray.run(federation, rounds=2, out=tmp_path / "run", algorithm="local")
    kept = TestPredictions.load(tmp_path / "run" / "seed-0" / predictions.FILE)
    assert kept.majority.tolist()[3] == -1
    assert not (kept.client == 3).any()
