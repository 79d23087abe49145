from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys import awkward_federation, ragged_federation

import fedspray
from fedspray.data.statistics import node_homophily
from fedspray.evaluation.counting import bucket_of
from fedspray.runs import nodes
from fedspray.runs.nodes import NodeTable


@pytest.mark.parametrize("algorithm", ["fedspray-plus", "fedspray2"])
def test_kept_nodes_are_those_the_run_was_judged_by(algorithm: str, tmp_path: Path) -> None:
    federation = ragged_federation()
    result = fedspray.run(federation, rounds=4, seeds=(2,), out=tmp_path / "run", algorithm=algorithm)
    kept = NodeTable.load(tmp_path / "run" / "seed-2" / nodes.FILE)
    metrics = result.seeds[0].metrics
    assert kept.correct[kept.test].mean() == pytest.approx(metrics["overall"])
    assert kept.correct[kept.test & kept.minority].mean() == pytest.approx(metrics["minority"])
    for k, client in enumerate(federation.with_split(2).clients):
        own, tested = kept.client == k, kept.test & (kept.client == k)
        assert tested.sum() == metrics["clients"][client.name]["nodes"]
        assert (tested & kept.minority).sum() == metrics["clients"][client.name]["minority_nodes"]
        # By class, then by homophily, then by index: the order is known, so which node is which is known.
        graph, buckets = client.graph, bucket_of(node_homophily(client.graph))
        order = sorted(np.flatnonzero(graph.labelled), key=lambda i: (graph.labels[i], buckets[i], i))
        assert kept.label[own].tolist() == graph.labels[order].tolist()
        assert kept.bucket[own].tolist() == buckets[order].tolist()
        right = result.models[client.name].predict(graph, client.split.train).argmax(axis=1) == graph.labels
        assert kept.test[own].tolist() == client.split.test[order].tolist()
        assert kept.correct[own].tolist() == (right & client.split.test)[order].tolist()


def test_clients_without_labels_have_no_minority(tmp_path: Path) -> None:
    federation = awkward_federation()
    fedspray.run(federation, rounds=2, out=tmp_path / "run", algorithm="local")
    kept = NodeTable.load(tmp_path / "run" / "seed-0" / nodes.FILE)
    assert kept.majority.tolist()[3] == -1
    assert not (kept.client == 3).any()
