from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    recall_score,
    roc_auc_score,
)
from toys import awkward_federation, ragged_federation, stack

from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Split
from fedspray.data.graph import Graph
from fedspray.data.statistics import node_homophily
from fedspray.errors import InputError
from fedspray.evaluation import selection
from fedspray.evaluation.counting import BUDGETS, CALIBRATION_BINS, COUNT_KEYS, DETAIL_KEYS, Counter
from fedspray.evaluation.metrics import METRICS, Counts, PartCounts, breakdowns
from fedspray.nn.tree import num_bytes


def counted(batch: GraphBatch, logits: torch.Tensor) -> Counts:
    return Counts.from_message(Counter(batch, np.full(batch.num_nodes, np.nan)).count(logits))


def reported(batch: GraphBatch, logits: torch.Tensor, homophily: np.ndarray[Any, Any] | None = None) -> PartCounts:
    """The test part of the report at the end."""
    counter = Counter(batch, np.full(batch.num_nodes, np.nan) if homophily is None else homophily)
    return Counts.from_message({**counter.count(logits), **counter.detail(logits)}).part("test")


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
    assert summary["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, guess))
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
    test = reported(batch, logits)
    assert {name for name, value in test.summary().items() if name in METRICS and value is not None} == set()
    assert set(breakdowns(test)["recall_by_budget"].values()) == {None}
    ordinary = stack(awkward_federation(), ids=[0])  # what clients send is put together, so types are the same
    full = Counter(ordinary, np.full(ordinary.num_nodes, np.nan)).detail(random_logits(ordinary))
    assert {k: (v.dtype, v.shape) for k, v in counter.detail(logits).items()} == {
        k: (v.dtype, v.shape) for k, v in full.items()
    }
    json.dumps([part.summary(), part.by_client(), test.by_client(), breakdowns(test)], allow_nan=False)


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
    truth, scores = batch.labels[batch.test].numpy(), logits[batch.test].softmax(dim=1).numpy()
    expected = np.mean(
        [roc_auc_score(truth == c, scores[:, c]) for c in range(3) if 0 < (truth == c).sum() < len(truth)]
    )
    assert reported(batch, logits).summary()["auc"] == pytest.approx(expected)


def test_accuracy_by_local_homophily() -> None:
    federation = ragged_federation()
    batch = stack(federation, ids=[1])
    homophily = node_homophily(federation.clients[1].graph)
    logits = random_logits(batch)
    detail = breakdowns(reported(batch, logits, homophily))["by_homophily"]
    assert list(detail) == ["0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0", "isolated"]
    right = (logits.argmax(dim=1) == batch.labels).numpy()
    test = federation.clients[1].split.test
    low = test & (homophily < 0.2)
    assert detail["0.0-0.2"]["nodes"] == low.sum()
    assert detail["0.0-0.2"]["accuracy"] == pytest.approx(right[low].mean())
    assert sum(row["nodes"] for row in detail.values()) == test.sum()


def test_selection_rules() -> None:
    validation = {"loss": 0.5, "overall": 0.9, "balanced": 0.7, "macro_f1": 0.6}
    rules = ("loss", "accuracy", "balanced", "macro_f1")
    assert [selection.score(rule, validation) for rule in rules] == [-0.5, 0.9, 0.7, 0.6]
    assert selection.score("loss", {"loss": None}) is None
    with pytest.raises(InputError, match="selection rule 'test'"):
        selection.score("test", validation)
    with pytest.raises(InputError, match="selection rule 'auc'"):  # known at the end only
        selection.check("auc")


def hand_sized(scores: list[float], labels: list[int], client: int = 0) -> PartCounts:
    """Test nodes of one client whose majority class is 0, with these probabilities of class 1."""
    values = np.array(scores)
    logits = torch.from_numpy(np.log(np.stack([1 - values, values], axis=1)))
    classes = np.array([0, *labels])
    graph = Graph.from_arrays(np.ones((len(classes), 1)), np.zeros((2, 0)), classes, num_classes=2)
    train = np.arange(len(classes)) == 0
    owner = Client("a", graph, Split(train, np.zeros_like(train), ~train), np.arange(len(classes)))
    batch = GraphBatch.from_clients([owner], [client], dtype=torch.float64)
    return reported(batch, torch.cat([torch.zeros(1, 2, dtype=torch.float64), logits]))


SCORES = [0.9, 0.8, 0.7, 0.7, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05]
LABELS = [1, 0, 1, 0, 0, 1, 0, 0, 0, 0]


def test_average_precision_by_hand_and_as_in_sklearn() -> None:
    """Members of class 1 are first, third (tied with a fourth) and sixth: (1/1 + 2/4 + 3/6) / 3 = 2/3."""
    counts = hand_sized(SCORES, LABELS)
    sums, members = counts.sums("precision").T
    assert sums[1] / members[1] == pytest.approx(2 / 3)
    truth = np.array(LABELS)
    other = average_precision_score(1 - truth, 1 - np.array(SCORES))
    assert average_precision_score(truth, SCORES) == pytest.approx(2 / 3)
    assert counts.summary()["auprc"] == pytest.approx((2 / 3 + other) / 2)


def test_average_precision_of_clients_weighs_by_members() -> None:
    batch = stack(ragged_federation())
    logits = random_logits(batch)
    owners, scores = batch.rows.client_of[batch.test].numpy(), logits[batch.test].softmax(dim=1).numpy()
    truth = batch.labels[batch.test].numpy()
    by_class = []
    for c in range(3):
        members = [(truth == c) & (owners == k) for k in range(3)]
        known = [(k, m) for k, m in enumerate(members) if m.any()]
        values = [average_precision_score(m[owners == k], scores[owners == k, c]) for k, m in known]
        by_class.append(np.average(values, weights=[m.sum() for _, m in known]))
    assert reported(batch, logits).summary()["auprc"] == pytest.approx(np.mean(by_class))


def test_recall_at_a_budget_of_alerts() -> None:
    """Of ten nodes 1%, 5% and 10% are one alert, which is right; three nodes are sought."""
    found = breakdowns(hand_sized(SCORES, LABELS))["recall_by_budget"]
    assert list(found) == ["1%", "5%", "10%"]
    assert found == pytest.approx(dict.fromkeys(found, 1 / 3))
    assert hand_sized(SCORES, LABELS).summary()["recall_at_budget"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("copies", "found"), [(1, [1, 1, 1]), (6, [1, 3, 6]), (30, [3, 15, 30]), (40, [4, 20, 40]), (60, [6, 30, 60])]
)
def test_budgets_count_nodes_and_share_out_ties(copies: int, found: list[float]) -> None:
    """Of 10·n nodes a budget of 5% is n/2 alerts. The n best are all members, so all alerts within 10% are right."""
    counts = hand_sized(SCORES * copies, LABELS * copies)
    assert counts.sums("alerts") == pytest.approx([*found, 3 * copies])
    assert len(found) == len(BUDGETS)


def test_a_tie_across_the_budget_counts_with_its_share() -> None:
    """20 nodes, all with the same score, 5 of them sought: an alert finds a quarter of one."""
    counts = hand_sized([0.5] * 20, [1] * 5 + [0] * 15)
    assert counts.sums("alerts") == pytest.approx([0.25, 0.25, 0.5, 5])


def test_calibration_error_by_hand_and_from_sklearns_curve() -> None:
    """Confidences 0.9, 0.8, 0.7, 0.7, 0.6, 0.6, 0.7, 0.8, 0.9, 0.95."""
    from sklearn.calibration import calibration_curve

    counts = hand_sized(SCORES, LABELS)
    confidence = np.maximum(SCORES, 1 - np.array(SCORES))
    correct = (np.array(SCORES) > 0.5) == (np.array(LABELS) == 1)
    share, mean = calibration_curve(correct, confidence, n_bins=CALIBRATION_BINS)
    nodes = np.histogram(confidence, np.linspace(0, 1, CALIBRATION_BINS + 1))[0]
    expected = (np.abs(share - mean) * nodes[nodes > 0]).sum() / len(SCORES)
    assert counts.summary()["calibration_error"] == pytest.approx(expected)
    # bins of 1/15 from 0.6, 0.667, 0.733, 0.8, 0.867, 0.933 on: |1.2 - 0|, |2.1 - 2|, |1.6 - 1|, |1.8 - 2|, |0.95 - 1|
    assert expected == pytest.approx((1.2 + 0.1 + 0.6 + 0.2 + 0.05) / 10)


def test_each_client_has_its_own_figures_of_the_report() -> None:
    federation = ragged_federation()
    batch = stack(federation)
    logits = random_logits(batch)
    rows = reported(batch, logits).by_client()
    for k, part in enumerate(torch.split(logits, list(batch.rows.sizes))):
        alone = reported(stack(federation, [k]), part).summary()
        for name, metric in METRICS.items():
            if metric.closing or name in ("overall", "minority", "loss"):
                assert rows[k][name] == pytest.approx(alone[name]), name


def test_what_is_sent_is_listed() -> None:
    batch = stack(ragged_federation())
    counter = Counter(batch, np.full(batch.num_nodes, np.nan))
    assert counter.count(random_logits(batch)).keys() == COUNT_KEYS.keys()
    assert {*counter.detail(random_logits(batch)), "evaluation.round"} == DETAIL_KEYS.keys()
    assert num_bytes(counter.detail(random_logits(batch))) == 3 * (32 * 3 + 440)  # as docs/runs.md says, but the round


def test_every_metric_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text().partition("## Metrics")[2].partition("##")[0]
    assert [name for name in METRICS if f"`{name}`" not in page] == []
