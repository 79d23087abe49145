from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, recall_score, roc_auc_score
from toys import awkward_federation, ragged_federation, stack

from fedspray.data.batch import GraphBatch
from fedspray.data.statistics import node_homophily
from fedspray.errors import InputError
from fedspray.evaluation import selection
from fedspray.evaluation.counting import Counter
from fedspray.evaluation.metrics import Counts, detail_summary


def counted(batch: GraphBatch, logits: torch.Tensor) -> Counts:
    return Counts.from_message(Counter(batch, np.full(batch.num_nodes, np.nan)).count(logits))


def random_logits(batch: GraphBatch) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch.num_nodes, batch.num_classes, generator=generator, dtype=torch.float64)


def test_pooled_metrics_equal_sklearn() -> None:
    batch = stack(ragged_federation())
    logits = random_logits(batch)
    summary = counted(batch, logits).part("test").summary()
    truth, guess = batch.labels[batch.test].numpy(), logits[batch.test].argmax(dim=1).numpy()
    assert summary["overall"] == pytest.approx(accuracy_score(truth, guess))
    assert summary["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    assert summary["recall"] == pytest.approx(list(recall_score(truth, guess, average=None)))
    expected_loss = torch.nn.functional.cross_entropy(logits[batch.test], batch.labels[batch.test])
    assert summary["loss"] == pytest.approx(expected_loss.item())


def test_minority_nodes_are_those_outside_the_majority_of_the_training_labels() -> None:
    federation = ragged_federation()
    batch = stack(federation)
    logits = random_logits(batch)
    summary = counted(batch, logits).part("test").summary()
    correct = total = 0
    per_client = []
    for k, client in enumerate(federation.clients):
        start = batch.rows.ptr[k]
        nodes = np.flatnonzero(client.split.test & (client.graph.labels != client.majority_class))
        hits = (logits[start + nodes].argmax(dim=1).numpy() == client.graph.labels[nodes]).sum()
        correct, total = correct + hits, total + len(nodes)
        if len(nodes):
            per_client.append(hits / len(nodes))
    assert summary["minority"] == pytest.approx(correct / total)
    assert summary["minority_client_mean"] == pytest.approx(np.mean(per_client))


def test_sums_come_first() -> None:
    """One client has 1 of 1 right, the other 1 of 9: pooled 2/10, not the mean (1 + 1/9)/2."""
    confusion = np.zeros((2, 3, 2, 2), dtype=np.int64)
    confusion[0, 2, 0, 0] = 1
    confusion[1, 2, 1] = [8, 1]
    counts = Counts(confusion, np.ones((2, 3)), np.array([0, 0]))
    summary = counts.part("test").summary()
    assert summary["overall"] == pytest.approx(0.2)
    assert summary["overall_client_mean"] == pytest.approx((1 + 1 / 9) / 2)
    assert summary["minority"] == pytest.approx(1 / 9)
    assert summary["majority"] == pytest.approx(1)
    assert summary["balanced"] == pytest.approx((1 + 1 / 9) / 2)


def test_empty_sets_are_none_and_json_has_no_nan() -> None:
    batch = stack(awkward_federation(), ids=[3])  # no labels at all
    counter = Counter(batch, np.full(batch.num_nodes, np.nan))
    logits = random_logits(batch)
    part = Counts.from_message(counter.count(logits)).part("val")
    assert part.summary()["overall"] is None
    assert part.summary()["loss"] is None
    assert part.by_client()[0]["minority"] is None
    detail = detail_summary(counter.detail(logits))
    assert detail["auc"] is None
    json.dumps([part.summary(), part.by_client(), detail], allow_nan=False)


def test_counts_of_singles_add_up_to_those_of_the_stack() -> None:
    federation = ragged_federation()
    batch = stack(federation)
    logits = random_logits(batch)
    together = counted(batch, logits)
    alone = [
        counted(stack(federation, [k]), part) for k, part in enumerate(torch.split(logits, list(batch.rows.sizes)))
    ]
    assert np.array_equal(together.confusion, np.concatenate([counts.confusion for counts in alone]))
    assert np.allclose(together.loss, np.concatenate([counts.loss for counts in alone]))


def test_auc_of_one_client_equals_sklearn() -> None:
    batch = stack(ragged_federation(), ids=[1])
    logits = random_logits(batch)
    detail = detail_summary(Counter(batch, np.full(batch.num_nodes, np.nan)).detail(logits))
    truth = batch.labels[batch.test].numpy()
    scores = logits[batch.test].softmax(dim=1).numpy()
    expected = np.mean(
        [roc_auc_score(truth == c, scores[:, c]) for c in range(3) if 0 < (truth == c).sum() < len(truth)]
    )
    assert detail["auc"] == pytest.approx(expected)


def test_accuracy_by_local_homophily() -> None:
    federation = ragged_federation()
    batch = stack(federation, ids=[1])
    homophily = node_homophily(federation.clients[1].graph)
    logits = random_logits(batch)
    detail = detail_summary(Counter(batch, homophily).detail(logits))["by_homophily"]
    assert list(detail) == ["0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0", "isolated"]
    right = (logits.argmax(dim=1) == batch.labels).numpy()
    test = federation.clients[1].split.test
    low = test & (homophily < 0.2)
    assert detail["0.0-0.2"]["nodes"] == low.sum()
    assert detail["0.0-0.2"]["accuracy"] == pytest.approx(right[low].mean())
    assert sum(row["nodes"] for row in detail.values()) == test.sum()


def test_selection_rules() -> None:
    validation = {"loss": 0.5, "overall": 0.9, "balanced": 0.7}
    assert [selection.score(rule, validation) for rule in ("loss", "accuracy", "balanced")] == [-0.5, 0.9, 0.7]
    assert selection.score("loss", {"loss": None}) is None
    with pytest.raises(InputError, match="unknown selection rule 'test'"):
        selection.score("test", validation)
