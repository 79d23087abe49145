from __future__ import annotations

import numpy as np
import pytest

from fedspray.evaluation.counting import BUCKET_NAMES
from fedspray.evaluation.intervals import paired_difference
from fedspray.report import findings
from fedspray.report.card import Card, Tally, count_card, make_card
from fedspray.report.methods import Contender, SeedRun
from fedspray.runs.nodes import NodeTable

# Six nodes in the order of client, class and local homophily; class 0 is the majority of both clients.
COUNTS = np.zeros((2, 3, len(BUCKET_NAMES)), dtype=np.int64)
COUNTS[0, 0, 4] = 1  # place 0
COUNTS[0, 1, 0] = 2  # places 1 and 2
COUNTS[0, 1, 1] = 1  # place 3
COUNTS[0, 2, 5] = 1  # place 4: without neighbours
COUNTS[1, 1, 0] = 1  # place 5


def nodes(majority: int = 0, **tested: bool) -> NodeTable:
    """A table in which the nodes at these places were tested, and predicted rightly or not: ``n1=True``."""
    test, correct = np.zeros(6, dtype=np.bool_), np.zeros(6, dtype=np.bool_)
    for name, right in tested.items():
        test[int(name[1:])], correct[int(name[1:])] = True, right
    return NodeTable(("a", "b"), COUNTS, np.array([majority, 0]), test, correct)


def method(label: str, **seeds: NodeTable | None) -> Contender:
    runs = [SeedRun(int(name[1:]), "", {}, [], value, None) for name, value in seeds.items()]
    return Contender(label, ({"algorithm": label, "backbone": "gcn"},), tuple(runs))


# Nodes 0 and 4 are tested under both seeds.
OWN = method(
    "own",
    s0=nodes(n1=True, n3=False, n4=True, n0=True, n5=True),
    s1=nodes(n4=True, n0=False, n2=True),
)
BASE = method(
    "base",
    s0=nodes(n5=False, n0=True, n4=False, n3=True, n1=True),
    s1=nodes(n4=True, n0=True, n2=False),
)


@pytest.fixture
def card() -> Card:
    made = make_card(OWN, BASE, num_clients=2, num_classes=3)
    assert made is not None
    return made


def test_counts_by_hand(card: Card) -> None:
    assert card.seeds == (0, 1)
    # Minority at client 0: node 1 both; 3 lost; 4 gained under seed 0 and both under seed 1; 2 gained.
    assert card.cell("minority", 0) == Tally(nodes=4, both=2, gained=2, lost=1, neither=0)
    assert card.cell("minority", 1) == Tally(nodes=1, both=0, gained=1, lost=0, neither=0)
    assert card.cell() == Tally(nodes=5, both=2, gained=3, lost=1, neither=0)
    # Node 0 is of the majority class: right under both with seed 0, lost with seed 1.
    assert card.cell("majority") == Tally(nodes=1, both=1, gained=0, lost=1, neither=0)
    assert card.cell(None).tests == 8


def test_cells_by_class_and_homophily(card: Card) -> None:
    assert card.cell("minority", 0, 1, 0) == Tally(nodes=2, both=1, gained=1, lost=0, neither=0)  # nodes 1 and 2
    assert card.cell("minority", 0, 1, 1) == Tally(nodes=1, both=0, gained=0, lost=1, neither=0)  # node 3
    assert card.cell("minority", 0, 2, 5) == Tally(nodes=1, both=1, gained=1, lost=0, neither=0)  # node 4, isolated
    assert card.cell("minority", 0, 2, 0) == Tally(0, 0, 0, 0, 0)
    assert card.cell("minority", 0, 2, 0).difference is None


def test_differences_are_those_of_the_counts(card: Card) -> None:
    difference = card.cell().difference
    assert difference == paired_difference(2, 3, 1, 0, size=5)
    assert difference is not None
    assert difference.value == pytest.approx(5 / 6 - 3 / 6)
    accuracy, reference = card.cell().accuracy, card.cell().reference_accuracy
    assert accuracy is not None
    assert reference is not None
    assert (accuracy.value, reference.value) == pytest.approx((5 / 6, 3 / 6))


def test_only_common_seeds_and_common_nodes_count() -> None:
    other = method("base", s1=nodes(n2=True), s7=nodes(n1=True))
    card = make_card(OWN, other, 2, 3)
    assert card is not None
    assert card.seeds == (1,)
    assert card.cell(None) == Tally(nodes=1, both=1, gained=0, lost=0, neither=0)
    assert make_card(OWN, method("base", s7=nodes(n1=True)), 2, 3) is None
    assert make_card(OWN, method("base", s0=None), 2, 3) is None
    assert make_card(OWN, method("base", s1=nodes(n5=True)), 2, 3) is None


def test_a_node_whose_group_changes_with_the_split_is_one_of_all_nodes() -> None:
    own = method("own", s0=nodes(n0=True, n1=True), s1=nodes(majority=1, n0=True, n1=False))
    card = make_card(own, None, 2, 3)
    assert card is not None
    assert card.cell("minority") == Tally(nodes=2, both=2, gained=0, lost=0, neither=0)  # 1, then 0
    assert card.cell("majority") == Tally(nodes=2, both=1, gained=0, lost=0, neither=1)  # 0, then 1
    assert card.cell(None) == Tally(nodes=2, both=3, gained=0, lost=0, neither=1)


def test_minority_nodes_alone_have_their_sentence() -> None:
    card = make_card(method("own", s0=nodes(n1=True, n3=True)), None, 2, 3)
    assert card is not None
    sentence = findings.headline([card], ["a", "b"])
    assert sentence == "own is right about 100.0% of minority nodes (95% interval 34.2 to 100.0)."
    card = make_card(method("own", s0=nodes(n0=True)), None, 2, 3)
    assert card is not None
    assert findings.headline([card], ["a", "b"]) == "own: there is no minority test node."


def test_without_a_reference_the_card_holds_accuracies() -> None:
    card = make_card(OWN, None, 2, 3)
    assert card is not None
    assert card.cell() == Tally(nodes=5, both=5, gained=0, lost=0, neither=1)


def counted(label: str, *rounds: tuple[int, int]) -> Contender:
    """A method of which counts are known: for each seed its best round and its last. Client b is absent at seed 1."""
    a = {"nodes": 10, "overall": 0.8, "minority_nodes": 4, "minority": 0.5}  # 8 right, 2 of them minority
    b = {"nodes": 6, "overall": 0.5, "minority_nodes": 0, "minority": None}
    runs = [
        SeedRun(
            i,
            "",
            {"best_round": best, "rounds": last, "clients": {"a": a} if i == 1 else {"a": a, "b": b}},
            [],
            None,
            None,
        )
        for i, (best, last) in enumerate(rounds)
    ]
    return Contender(label, ({"algorithm": label, "backbone": "gcn"},), tuple(runs))


def test_counts_alone_give_a_line_for_each_organisation() -> None:
    card = count_card(counted("own", (3, 5), (3, 5)), ["a", "b"])
    assert card.coarse
    assert card.cell("minority", 0) == Tally(nodes=4, both=4, gained=0, lost=0, neither=4)  # 2 of 4, twice
    assert card.cell("majority", 0) == Tally(nodes=6, both=12, gained=0, lost=0, neither=0)
    assert card.cell("minority", 1).accuracy is None
    assert card.cell(None, 1) == Tally(nodes=6, both=3, gained=0, lost=0, neither=3)  # it answered once
    sentence = findings.headline([card], ["a", "b"])
    assert sentence.startswith("own is right about 50.0% of minority nodes (95% interval ")


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([(3, 5)], ["only 1 seed"]),
        ([(5, 5)], ["only 1 seed", "the last round of own was still the best,"]),
        ([(5, 5), (3, 5)], ["only 2 seeds", "still the best under 1 of 2 seeds"]),
        ([(3, 5)] * 5, []),
        ([(5, 5)] * 5, ["still the best under 5 of 5 seeds"]),
    ],
)
def test_the_headline_carries_its_caution(rounds: list[tuple[int, int]], said: list[str]) -> None:
    caution = findings.caution([counted("own", *rounds), counted("other", *rounds)], "own")
    assert all(words in caution for words in said)
    assert (caution == "") == (not said)
    assert "own" in caution or (5, 5) not in rounds


def large_card(label: str, client_counts: list[tuple[int, int, int, int]]) -> Card:
    """A card with one cell per client: both, gained, lost, neither; as many majority nodes, all right in both."""
    counts = np.zeros((3, len(client_counts), 2, 6, 5), dtype=np.int64)
    for k, row in enumerate(client_counts):
        counts[0, k, 1, 0] = (sum(row), *row)
        counts[1, k, 0, 4] = (100, 100, 0, 0, 0)
    counts[2] = counts[0] + counts[1]
    return Card(label, "local", (0,), counts)


def test_the_sentence_names_winners_and_losers() -> None:
    good = large_card("good", [(40, 40, 0, 20), (50, 0, 0, 50), (30, 0, 15, 55)])
    bad = large_card("bad", [(40, 0, 0, 60), (50, 0, 0, 50), (30, 0, 30, 40)])
    assert good.verdicts() == {"gain": [0], "loss": [2], "unclear": [1]}
    sentence = findings.headline([bad, good], ["a", "b", "c"])
    assert sentence.startswith("good helps minority nodes most: +8.3 points (95% interval ")  # (40 - 15) / 300
    assert "against local. Clear gains at 1 of 3 clients (a +40.0), clear losses at 1 (c −15.0)." in sentence
    assert "Majority nodes: 0.0 points" in sentence
    assert findings.line(bad, ["a", "b", "c"]).startswith("−10.0 points")
    assert findings.where(good) == "The largest clear gain is at homophily 0.0–0.2 (+8.3, 300 nodes)."


def test_the_sentence_does_not_praise_what_is_unclear() -> None:
    same = large_card("same", [(5, 1, 1, 3), (5, 0, 0, 5)])
    sentence = findings.headline([same], ["a", "b"])
    assert sentence.startswith("No method clearly helps minority nodes: same comes closest with 0.0 points")
    assert "The difference is not clear at either client." in sentence
    assert findings.where(same) == "The difference is not clear at any level of local homophily."
