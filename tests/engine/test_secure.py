"""Secure sums: the arithmetic, what the server can and cannot find out, and that nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import permuted_federation, ragged_federation

import fedspray
from fedspray import algorithms, backbones, links
from fedspray.algorithms.fedavg import FedAvg
from fedspray.algorithms.fedspray import FedSpray
from fedspray.data.batch import GraphBatch
from fedspray.engine.collector import Collector, added
from fedspray.engine.local import LocalEngine
from fedspray.engine.member import Member
from fedspray.engine.secure import NotOpened, Unsafe, pair_mask, words_of
from fedspray.engine.sums import LocalIdentity, by_class
from fedspray.engine.worker import Request
from fedspray.errors import InputError
from fedspray.evaluation.metrics import Counts
from fedspray.links import _masks
from fedspray.links._masks import Words
from fedspray.links.secure_sum import SecureSum
from fedspray.messages import combine, fates
from fedspray.nn.tree import Message
from fedspray.seeds import stream_key

SUMMABLE = [
    name
    for name in algorithms.names()
    if all(key.fate != "each" for key in fates(algorithms.find(name).uplink).values()) and name != "local"
]


class Table:
    """Clients and a server around one table: everything that crosses it can be looked at and changed."""

    def __init__(self, count: int, **given: int) -> None:
        self.link = SecureSum(**{"clients": 2, **given})
        known: dict[int, Ed25519PublicKey] = {}
        identities = {k: LocalIdentity(k, known) for k in range(count)}
        self.members = {k: Member(k, self.link, identities[k], "a run") for k in range(count)}
        self.collector = Collector(self.link, range(count), self.ask)
        self.away: dict[str, set[int]] = {}
        """Who does not answer a step."""
        self.change: Callable[[str, int, Message], Message] = lambda step, k, message: message
        """What a server that lies says to a client."""
        self.seen: dict[str, dict[int, Message]] = {}

    def ask(self, step: str, messages: Mapping[int, Message]) -> Mapping[int, Message]:
        gone = self.away.get(step, set())
        self.seen[step] = {
            k: self.members[k].handle(step, self.change(step, k, message))
            for k, message in messages.items()
            if k not in gone
        }
        return self.seen[step]

    def masked(self, vectors: Mapping[int, Words], label: str = "round 1") -> dict[int, Words]:
        self.collector.prepare()
        enclosed = self.collector.enclosed(())
        return {k: words_of(self.members[k].masked(label, enclosed, own)) for k, own in vectors.items()}

    def total(self, vectors: Mapping[int, Words], label: str = "round 1") -> Words:
        return self.collector.open(self.masked(vectors, label))


def draw(count: int, length: int = 50, seed: int = 0) -> dict[int, Words]:
    rng = np.random.default_rng(seed)
    return {k: rng.integers(0, 2**64, length, dtype=np.uint64) for k in range(count)}


# ---- arithmetic -----------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=5), st.integers(8, 40))
def test_numbers_survive_to_half_a_step(values: list[float], bits: int) -> None:
    tensor = torch.tensor([values], dtype=torch.float64)
    assert torch.allclose(_masks.from_fixed(_masks.to_fixed("x", tensor, bits, 3), bits), tensor[0], atol=2.0**-bits)


@pytest.mark.parametrize("value", [2.0**31 / 3, -(2.0**40), float("nan"), float("inf")])
def test_numbers_whose_sum_could_wrap_around_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="3 clients with 32"):
        _masks.to_fixed("w", torch.tensor([[value]]), 32, 3)
    _masks.to_fixed("w", torch.tensor([[2.0**31 / 3 - 100]]), 32, 3)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.data())
def test_the_sum_is_exact_whoever_is_lost(count: int, data: st.DataObject) -> None:
    table, vectors = Table(count), draw(count, 9)
    threshold = 2 * count // 3 + 1
    lost = data.draw(st.sets(st.integers(0, count - 1), max_size=count - max(2, threshold)))
    silent = set(list(range(count))[: count - len(lost) - max(2, threshold)]) - lost
    table.away = {"unmask": silent}
    kept = {k: own for k, own in vectors.items() if k not in lost}
    assert (table.total(kept) == added(kept.values())).all()


@pytest.mark.parametrize("step", ["keys", "shares", "confirm", "unmask"])
def test_too_few_are_left(step: str) -> None:
    table = Table(4, clients=3)
    table.away = {step: {0, 1}}
    with pytest.raises((NotOpened, Unsafe)):
        table.total(draw(4))


def test_new_keys_are_made_when_they_are_used_up_or_somebody_was_lost() -> None:
    table = Table(4, key_rounds=2)
    numbers = []
    for index, lost in enumerate([set(), set(), set(), {3}, set()]):
        vectors = {k: own for k, own in draw(4, seed=index).items() if k not in lost}
        assert (table.total(vectors, f"round {index}") == added(vectors.values())).all()
        numbers.append(table.members[0].session)
    assert numbers == [1, 1, 2, 2, 3]


# ---- what the server can find out ----------------------------------------------------------------------


def test_what_the_server_has_adds_up_to_nothing_but_the_sum() -> None:
    """The server's own side, played by hand: all secrets that it can put together from shares, for every subset."""
    table, vectors = Table(5), draw(5, 200)
    sent = table.masked(vectors)
    del sent[4]  # lost, or late
    table.collector.open(sent)
    shares = {k: message["shares"][0].numpy().tobytes() for k, message in table.seen["unmask"].items()}
    secrets = [_masks.join_secret({k + 1: s[16 * j : 16 * j + 16] for k, s in shares.items()}) for j in range(5)]
    keys = {k: message["keys"][0].numpy().tobytes() for k, message in table.seen["keys"].items()}
    digest = table.members[0]._known().digest
    lost = _masks.key_from(secrets[4])
    bare = {}
    for k, words in sent.items():
        own = _masks.stream(_masks.derived(secrets[k], b"own mask"), 200)
        bare[k] = words - own + pair_mask(lost, keys[k], (4, k), digest, 1, 200)
    for size in range(1, 5):
        for chosen in itertools.combinations(bare, size):
            seen = added(bare[k] for k in chosen)
            meant = added(vectors[k] for k in chosen)
            assert (seen == meant).all() == (size == 4)
            assert size == 4 or (seen != meant).all()


def test_an_answer_that_comes_late_stays_hidden() -> None:
    """The server opens a sum without client 4 and so learns its pairwise masks; its own mask is still there."""
    table, vectors = Table(5), draw(5, 200)
    sent = table.masked(vectors)
    late = sent.pop(4)
    table.collector.open(sent)
    shares = {k: message["shares"][0].numpy().tobytes() for k, message in table.seen["unmask"].items()}
    private = _masks.key_from(_masks.join_secret({k + 1: s[64:80] for k, s in shares.items()}))
    keys = {k: message["keys"][0].numpy().tobytes() for k, message in table.seen["keys"].items()}
    digest = table.members[0]._known().digest
    masks = [pair_mask(private, keys[k], (4, k), digest, 1, 200) for k in range(4)]
    assert (late - added(masks) != vectors[4]).all()


def test_masked_numbers_look_random() -> None:
    """Zeros of one client, masked: bytes are uniform (χ² of 255 degrees of freedom: mean 255, deviation 22.6)."""
    sent = Table(3).masked({k: np.zeros(20_000, dtype=np.uint64) for k in range(3)})
    for words in sent.values():
        counts = np.bincount(words.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * 22.6


def test_one_round_is_opened_for_one_list_of_clients_only() -> None:
    """Two sums of the same numbers, over lists that differ by one client, would give that client's numbers away."""
    table, vectors = Table(5), draw(5)
    assert table.total(vectors, "round 7") is not None
    fewer = {k: own for k, own in vectors.items() if k != 4}
    with pytest.raises(Unsafe, match="7 was added up"):
        table.total(fewer, "round 7")
    assert (table.total(vectors, "round 7") == added(vectors.values())).all()
    assert table.total(fewer, "round 8") is not None


def test_masks_are_used_once() -> None:
    table, vectors = Table(3), draw(3)
    table.masked(vectors)
    with pytest.raises(Unsafe, match="was masked before"):
        table.members[0].masked("round 2", table.collector.enclosed(()), vectors[1])


# ---- a server that lies ---------------------------------------------------------------------------------


def with_other(name: str, value: Any, only: int = 0) -> Callable[[str, int, Message], Message]:
    return lambda step, k, message: {**message, name: value} if k == only and name in message else message


def test_two_lists_for_one_sum() -> None:
    """Client 0 is told that client 3 was lost and the others that it was not: no list has enough signatures."""
    table = Table(4)
    table.change = with_other("survivors", torch.tensor([[0, 1, 2]]))
    with pytest.raises(InvalidSignature):
        table.total(draw(4))


def test_keys_that_are_not_the_clients_own() -> None:
    table = Table(3)
    table.change = with_other("2.keys", torch.zeros(1, 32 * 12, dtype=torch.uint8))
    with pytest.raises(InvalidSignature):
        table.total(draw(3))


def test_letters_that_were_changed() -> None:
    table = Table(3)
    table.change = with_other("letter.2", torch.zeros(1, 100, dtype=torch.uint8))
    with pytest.raises(InvalidTag):
        table.total(draw(3))


def test_shares_are_given_to_one_list_of_clients() -> None:
    table = Table(4)
    table.collector.prepare()
    everything = {f"{k}.{name}": part for k, own in table.seen["keys"].items() if k for name, part in own.items()}
    with pytest.raises(Unsafe, match="asked for twice"):
        table.members[1].handle("shares", everything)
    with pytest.raises(Unsafe, match="keys of session 1 are asked for"):
        table.members[1].handle("keys", {"number": torch.tensor([1])})


@pytest.mark.parametrize(("trainers", "error"), [([0, 1], Unsafe), ([0, 1, 2], None), ([], None)])
def test_updates_of_too_few_clients_are_not_added(trainers: list[int], error: type[Exception] | None) -> None:
    table, vectors = Table(4, clients=3), draw(4)
    table.collector.prepare()
    enclosed = table.collector.enclosed(trainers)
    sent = {k: words_of(table.members[k].masked("round 1", enclosed, own)) for k, own in vectors.items()}
    if error is None:
        table.collector.open(sent)
        return
    with pytest.raises(error, match="updates of 2 clients"):
        table.collector.open(sent)


# ---- runs ------------------------------------------------------------------------------------------------


def engine_of(algorithm: Any, *chain: str) -> LocalEngine:
    federation = ragged_federation(sparse=True).with_split(0)
    return LocalEngine(federation, [algorithm] * 3, 0, links=links.chain(chain, algorithm.uplink))


@pytest.mark.parametrize("name", SUMMABLE)
def test_every_aggregate_is_the_plain_one(name: str) -> None:
    algorithm = algorithms.find(name)(backbone=backbones.make("gcn", hidden=8))
    task, everyone = ragged_federation().task, frozenset(range(3))
    plain, secure = engine_of(algorithm), engine_of(algorithm, "secure-sum holders=1")
    server = algorithm.init_server(task, 0)
    for round_index in (1, 2, 3):
        down = algorithm.broadcast(server, (0, 1, 2))
        mine, other = (each.exchange(Request(round_index), down, everyone) for each in (plain, secure))
        assert other.sums is not None
        assert not other.uplink
        assert not other.counts
        wanted = combine(algorithm.uplink, mine.uplink)
        assert wanted.keys() == other.sums.combined.keys()
        for key, value in wanted.items():
            assert other.sums.combined[key].dtype == value.dtype
            assert torch.allclose(other.sums.combined[key], value, rtol=1e-6, atol=1e-6), key
        counted, added = Counts.from_message(mine.counts), Counts.of_sums(other.sums.counts)
        for part in ("train", "val", "test"):
            mine_told, other_told = counted.part(part).summary(), added.part(part).summary()
            assert other_told.pop("recall") == mine_told.pop("recall")
            assert other_told == pytest.approx(mine_told, abs=1e-8)
        server = algorithm.server_update(server, wanted, (0, 1, 2))


def test_nothing_that_the_server_saw_is_a_clients_own() -> None:
    """Every message of an exchange, byte by byte: no 8 numbers in a row of an update, as sent or as fixed point."""
    algorithm = FedAvg(backbone=backbones.make("gcn", hidden=8))
    plain, secure = engine_of(algorithm), engine_of(algorithm, "secure-sum")
    down = algorithm.broadcast(algorithm.init_server(ragged_federation().task, 0), (0, 1, 2))
    rows = plain.exchange(Request(1), down, frozenset(range(3))).uplink
    secure.exchange(Request(1), down, frozenset(range(3)))
    sums = secure._sums
    assert sums is not None
    steps = [step for step, _, _ in sums.seen]
    assert steps == [step for step in ("keys", "shares", "sum", "confirm", "unmask") for _ in range(3)]
    heard = b"".join(value.numpy().tobytes() for _, _, message in sums.seen for value in message.values())
    weight = rows["num_train"].view(-1, 1, 1)
    for value in (rows["gnn.conv1.weight"], rows["gnn.conv1.weight"].double() * weight):
        for part in (value.numpy(), np.rint(value.double().numpy() * 2.0**32).astype(np.int64)):
            assert not any(row[:8].tobytes() in heard for client in part for row in client)


def run(algorithm: Any, **given: Any) -> Any:
    return fedspray.run(ragged_federation(sparse=True), algorithm, rounds=5, hidden=8, progress=False, **given)


@dataclass(frozen=True, kw_only=True)
class Fragile(FedAvg):
    """FedAvg whose client 1 fails in round 3."""

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        if seed == stream_key(0, "round", 3) and 1 in batch.client_ids:
            raise OSError("the disk is full")
        return super().client_update(client, message, batch, seed)


def test_a_run_says_that_figures_of_clients_are_theirs(tmp_path: Any) -> None:
    plain, secure = run("fedspray"), run("fedspray", link=["secure-sum holders=1"], out=tmp_path / "run")
    (mine,), (other,) = plain.seeds, secure.seeds
    for name in ("overall", "minority", "minority_client_mean", "macro_f1", "auc", "recall_at_budget", "best_round"):
        assert other.metrics[name] == pytest.approx(mine.metrics[name], abs=1e-8), name
    assert other.metrics["sums_only"] is True
    assert (other.metrics["clients"], other.proxies, len(secure.per_client)) == ({}, None, 0)
    assert all(record["clients"] == {} == record["diagnostics"] for record in other.records)
    assert "sums_only" not in mine.metrics
    assert other.metrics["bytes_up"] > mine.metrics["bytes_up"]


def test_a_client_that_fails_is_left_out_of_the_sum() -> None:
    """With six clients five suffice; the others go on as without masks."""
    federation = permuted_federation(60)
    found = [
        fedspray.run(federation, Fragile(backbone=backbones.make("gcn", hidden=8)), rounds=4, link=link, progress=False)
        for link in ((), ("secure-sum",))
    ]
    for mine, other in zip(*(each.seeds[0].records for each in found), strict=True):
        assert (mine["trained"], list(mine["failed"])) == (other["trained"], list(other["failed"]))
        assert other["val"]["overall"] == mine["val"]["overall"]
    assert found[1].seeds[0].records[2]["trained"] == [0, 2, 3, 4, 5]


def test_too_many_failures_stop_the_run() -> None:
    with pytest.raises(fedspray.RunStopped, match="secure-sum needs 3"):
        run(Fragile(backbone=backbones.make("gcn", hidden=8)), link=["secure-sum"])


def test_vectors_of_a_class_that_one_client_has_do_not_leave() -> None:
    algorithm = FedSpray(backbone=backbones.make("gcn", hidden=8))
    plain, secure = engine_of(algorithm), engine_of(algorithm, "secure-sum holders=3")
    down = algorithm.broadcast(algorithm.init_server(ragged_federation().task, 0), (0, 1, 2))
    rows = plain.exchange(Request(1), down, frozenset(range(3))).uplink
    held = (rows["class_ratios"] > 0).sum(dim=0)
    sums = secure.exchange(Request(1), down, frozenset(range(3))).sums
    assert sums is not None
    assert 0 < (held < 3).sum() < len(held)  # the clients differ in their classes
    assert (sums.combined["class_ratios"][held < 3] == 0).all()
    assert (sums.combined["class_proxies"][held < 3] == 0).all()
    assert (sums.combined["class_ratios"][held == 3] > 0).all()
    assert by_class(algorithm.uplink, rows) == {"class_proxies", "class_ratios"}


@pytest.mark.parametrize(
    ("algorithm", "chain", "sentence"),
    [
        ("gcfl", ["secure-sum"], "client's gnn"),
        ("ditto", ["secure-sum"], "client's distance"),
        ("fedavg", ["used-rows", "secure-sum"], "combined with used-rows"),
        ("fedavg", ["compress", "secure-sum"], "secure-sum cannot"),
        ("fedavg", ["secure-sum", "noise sigma=1"], "noise comes after"),
        ("fedavg", ["secure-sum clients=1"], "clients is 1"),
        ("fedavg", ["secure-sum bits=60"], "bits is 60"),
    ],
)
def test_refused(algorithm: str, chain: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        links.chain(chain, algorithms.find(algorithm).uplink)
    assert sentence in str(caught.value)


def test_a_baseline_is_refused() -> None:
    with pytest.raises(InputError, match="baseline is 'local'"):
        run("fedavg", link=["secure-sum"], baseline="local")
