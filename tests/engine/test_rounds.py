from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from traceback import walk_tb
from typing import Any

import pytest
import torch
from toys import Fragile, ragged_federation

from fedspray import algorithms, backbones
from fedspray.algorithms.adafgl import AdaFGL
from fedspray.algorithms.base import Algorithm
from fedspray.algorithms.fedavg import FedAvg
from fedspray.data.batch import GraphBatch
from fedspray.engine.local import LocalEngine, single_blocks
from fedspray.engine.rounds import Answers, Progress, choose_clients, run_rounds, start
from fedspray.engine.worker import Request
from fedspray.errors import InputError, RunStopped
from fedspray.experiment import RoundSettings
from fedspray.nn import tree
from fedspray.nn.tree import Message


def go(
    algorithm: Algorithm[Any, Any],
    settings: RoundSettings,
    *,
    single: bool = False,
    engine: LocalEngine | None = None,
    progress: Progress | None = None,
) -> tuple[Progress, list[dict[str, Any]], LocalEngine]:
    federation = ragged_federation(sparse=True)
    blocks = single_blocks(federation) if single else None
    engine = engine or LocalEngine(federation, [algorithm] * 3, 0, blocks=blocks, dtype=torch.float64)
    progress = progress or start(algorithm, federation.task, 0, torch.float64)
    records: list[dict[str, Any]] = []
    done = run_rounds(algorithm, engine, settings, 0, progress, on_record=records.append, on_round=lambda _: None)
    return done, records, engine


def fedavg(**settings: Any) -> FedAvg:
    return FedAvg(backbone=backbones.make("gcn", hidden=8), **settings)


@dataclass(frozen=True, kw_only=True)
class Poisoned(FedAvg):
    """FedAvg in which client 0 sends NaN."""

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        state, uplink = super().client_update(client, message, batch, seed)
        if 0 in batch.client_ids:
            uplink["gnn.conv1.bias"][batch.client_ids.index(0)] = torch.nan
        return state, uplink


def test_a_record_for_every_round_and_the_best_by_validation_loss() -> None:
    progress, records, _ = go(fedavg(), RoundSettings(rounds=6))
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    losses = [record["val"]["loss"] for record in records]
    assert progress.best_round == 1 + losses.index(min(losses))
    best = records[progress.best_round - 1]
    kept = {name: progress.detail["test"][name] for name in best["test"]}
    assert kept == best["test"]  # the kept snapshot is the model of that round
    assert progress.detail["best_round"] == progress.best_round


@pytest.mark.parametrize("rule", ["accuracy", "balanced"])
def test_other_selection_rules(rule: str) -> None:
    progress, records, _ = go(fedavg(), RoundSettings(rounds=6, selection=rule))
    scores = [record["val"]["overall" if rule == "accuracy" else "balanced"] for record in records]
    assert progress.best_round == 1 + scores.index(max(scores))


def test_bytes_are_those_of_the_messages() -> None:
    """GCN 5 → 8 → 3: 5·8+8+8·3+3 = 75 weights of 8 bytes; up there is n_train too."""
    _, records, _ = go(fedavg(), RoundSettings(rounds=2))
    assert records[0]["bytes_down_by_client"] == [600, 600, 600]
    assert records[0]["bytes_up_by_client"] == [608, 608, 608]
    assert records[0]["bytes_up"] == 3 * 608


@pytest.mark.parametrize("name", ["fedspray", "fedavg", "local"])
def test_blocks_do_not_change_results(name: str) -> None:
    algorithm = algorithms.find(name)(backbone=backbones.make("gcn"))
    stacked, records, _ = go(algorithm, RoundSettings(rounds=4))
    alone, other, _ = go(algorithm, RoundSettings(rounds=4), single=True)
    assert stacked.best_round == alone.best_round
    for a, b in zip(records, other, strict=True):
        assert a["val"]["loss"] == pytest.approx(b["val"]["loss"], abs=1e-10)


def test_participation_is_a_seeded_share() -> None:
    settings = RoundSettings(rounds=5, participation=0.67)
    progress, records, _ = go(fedavg(), settings, single=True)
    drawn = [record["trained"] for record in records]
    assert all(len(ids) == 2 for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 1
    assert all(record["evaluated"] == [0, 1, 2] for record in records)
    assert all(record["failed"] == {} for record in records)  # also in the first, where others have nothing to do
    again, _, _ = go(fedavg(), settings, single=True)
    assert tree.flatten(progress.server)["gnn.conv1.weight"].equal(tree.flatten(again.server)["gnn.conv1.weight"])
    assert choose_clients((0, 1, 2), settings, 0, 1) == set(drawn[0])


def test_a_failing_client_is_named_and_the_round_goes_on() -> None:
    algorithm = Fragile(backbone=backbones.make("gcn", hidden=8))
    progress, records, engine = go(algorithm, RoundSettings(rounds=5, min_clients=1))
    assert records[1]["failed"] == {"client_01": "OSError: the disk of client 1 is full"}
    assert records[1]["trained"] == [0, 2]
    assert records[3]["trained"] == [0]
    assert records[2]["trained"] == [0, 1, 2]  # it is back in the next round
    assert engine.blocks == [[0], [1], [2]]  # a block with a failure is taken apart
    assert progress.round_index == 5


def test_a_failing_client_is_found_among_blocks_trained_at_the_same_time() -> None:
    algorithm = Fragile(backbone=backbones.make("gcn", hidden=8))
    blocks = [[0, 1], [2]]
    engine = LocalEngine(
        ragged_federation(sparse=True), [algorithm] * 3, 0, blocks=blocks, dtype=torch.float64, threads=2
    )
    _, records, _ = go(algorithm, RoundSettings(rounds=5, min_clients=1), engine=engine)
    assert [record["trained"] for record in records] == [[0, 1, 2], [0, 2], [0, 1, 2], [0], [0, 1, 2]]
    assert engine.blocks == [[0], [1], [2]]


def test_a_client_that_failed_is_as_it_was_before() -> None:
    """Client 1 misses round 2: with only its data, that is the same as a run of one round less."""
    algorithm = Fragile(backbone=backbones.make("gcn", hidden=8))
    _, _, engine = go(algorithm, RoundSettings(rounds=3, min_clients=1))
    steps = {k: engine.tensors(5)[f"worker{k}.state.gnn_optimizer.step"].item() for k in range(3)}
    assert steps == {0: 15.0, 1: 10.0, 2: 15.0}  # 5 steps in each round that it took part in


def test_too_few_clients_stop_the_run_where_it_was() -> None:
    algorithm = Fragile(backbone=backbones.make("gcn", hidden=8))
    with pytest.raises(RunStopped, match="round 4: 1 of 3 clients trained"):
        go(algorithm, RoundSettings(rounds=5))


@dataclass(frozen=True, kw_only=True)
class Mistaken(FedAvg):
    """FedAvg with a mistake in its code."""

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        return super().client_update(client.gnn, message, batch, seed)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mistake_in_the_code_is_told_once_with_its_line_and_cause(threads: int) -> None:
    federation, algorithm = ragged_federation(sparse=True), Mistaken(backbone=backbones.make("gcn", hidden=8))
    blocks = [[0, 1], [2]]
    engine = LocalEngine(federation, [algorithm] * 3, 0, blocks=blocks, dtype=torch.float64, threads=threads)
    with pytest.raises(RunStopped) as caught:
        go(algorithm, RoundSettings(rounds=2), engine=engine)
    text, cause = str(caught.value), caught.value.__cause__
    assert "all 3 clients: AttributeError: " in text
    assert text.count("AttributeError") == 1
    assert isinstance(cause, AttributeError)
    frames = list(walk_tb(cause.__traceback__))
    (line,) = [number for frame, number in frames if frame.f_code.co_filename == __file__]
    assert text.endswith(f" (test_rounds.py, line {line})")
    assert not any(frame.f_locals for frame, _ in frames)  # nor any tensor of a client


def test_different_reasons_are_told_one_by_one() -> None:
    with pytest.raises(RunStopped) as caught:
        go(Fragile(backbone=backbones.make("gcn", hidden=8)), RoundSettings(rounds=5))
    assert [f"client_0{k}: OSError: the disk of client {k} is full" in str(caught.value) for k in (1, 2)] == [True] * 2


def test_an_update_that_is_not_finite_is_not_averaged() -> None:
    progress, records, _ = go(Poisoned(backbone=backbones.make("gcn", hidden=8)), RoundSettings(rounds=2))
    assert records[0]["failed"] == {"client_00": "NotFinite: gnn.conv1.bias is not finite after local training"}
    assert all(torch.isfinite(value).all() for value in tree.flatten(progress.server).values())


@dataclass(frozen=True, kw_only=True)
class Absent(FedAvg):
    """FedAvg in which client 1 fails in the exchange of round 4, the one that evaluates round 3."""

    def client_update(self, client: Any, message: Message, batch: GraphBatch, seed: int) -> tuple[Any, Message]:
        from fedspray.seeds import stream_key

        if seed == stream_key(0, "round", 4) and 1 in batch.client_ids:
            raise OSError("away")
        return super().client_update(client, message, batch, seed)


def test_a_client_that_missed_the_best_round_reports_the_model_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 3 is made the best one; client 1 was away when it was evaluated."""
    from fedspray.evaluation import selection

    scores = iter([1.0, 2.0, 3.0, 0.0, 0.0])
    monkeypatch.setattr(selection, "score", lambda *_: next(scores))
    algorithm = Absent(backbone=backbones.make("gcn", hidden=8))
    settings = RoundSettings.__new__(RoundSettings)
    for name, value in {"rounds": 5, "participation": 1.0, "min_clients": 1, "selection": "loss"}.items():
        object.__setattr__(settings, name, value)
    progress, records, _ = go(algorithm, settings)
    assert progress.best_round == 3
    assert records[2]["evaluated"] == [0, 2]
    rounds = {k: row["round"] for k, row in progress.detail["clients"].items()}
    assert rounds == {"0": 3, "1": 2, "2": 3}
    assert progress.detail["clients"]["1"]["loss"] == pytest.approx(records[1]["clients"]["1"]["test"]["loss"])


def test_a_model_that_is_not_finite_is_a_failure_not_a_crash() -> None:
    algorithm = algorithms.find("local")(backbone=backbones.make("gcn", lr=1e300))
    with pytest.raises(RunStopped, match="predictions that are not"):
        go(algorithm, RoundSettings(rounds=3))


def test_a_round_that_the_server_lost_is_done_again_to_the_same_bits() -> None:
    """The workers have trained round 4; the server only remembers round 3 and asks for round 4 again."""
    algorithm = algorithms.find("fedspray")(backbone=backbones.make("gcn"))
    kept: list[Progress] = []
    federation = ragged_federation(sparse=True)
    engine = LocalEngine(federation, [algorithm] * 3, 0, dtype=torch.float64)
    begin = start(algorithm, federation.task, 0, torch.float64)
    settings = RoundSettings(rounds=6)

    def stop_after_four(progress: Progress) -> None:
        kept.append(progress)
        if progress.round_index == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rounds(algorithm, engine, settings, 0, begin, on_record=lambda _: None, on_round=stop_after_four)
    resumed, _, _ = go(algorithm, settings, engine=engine, progress=kept[2])
    straight, _, _ = go(algorithm, settings)
    assert resumed.detail == straight.detail
    for name, value in tree.flatten(straight.server).items():
        assert torch.equal(value, tree.flatten(resumed.server)[name])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"participation": 0.0}, "participation is 0.0"),
        ({"participation": 1.5}, "participation is 1.5"),
        ({"min_clients": 0}, "min_clients is 0"),
        ({"patience": -1}, "patience is -1"),
    ],
)
def test_bad_round_settings_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        RoundSettings(**values)
    assert str(caught.value).startswith(sentence)


class Scripted(LocalEngine):
    """An engine whose clients report these sums of validation losses, by round; None: a client does not answer."""

    losses: list[tuple[float | None, ...]]

    def exchange(self, request: Request, downlink: Message, train_ids: Set[int]) -> Answers:
        answers = super().exchange(request, downlink, train_ids)
        if not request.evaluate or request.round_index == 1:
            return answers
        said = self.losses[request.round_index - 2]
        here = [k for k, loss in enumerate(said) if loss is not None]
        counts = {name: value[here] for name, value in answers.counts.items()}
        counts["evaluation.loss"][:, 1] = torch.tensor([said[k] for k in here], dtype=torch.float64)
        return replace(answers, counts=counts, evaluated=tuple(here))


@pytest.mark.parametrize(
    ("losses", "reported", "best"),
    [
        # away in rounds 2 and 4, client 1 counts with 40 and with 30: pooled are 45, 45, 34 and 35 ninths
        ([(3, 40, 2), (3, None, 2), (2, 30, 2), (3, None, 2)], [5, 1, 34 / 9, 1], 3),
        # and here 45, 43 and 44 ninths: what the others win while it is away counts
        ([(3, 40, 2), (2, None, 1), (2, 40, 2)], [5, 3 / 5, 44 / 9], 2),
        # nobody knows what round 1 was to client 1
        ([(3, None, 2), (3, 40, 2), (3, 41, 2)], [1, 5, 46 / 9], 2),
        ([(3, 40, 2), (3, 39, 2), (3, 41, 2)], [5, 44 / 9, 46 / 9], 2),
    ],
)
def test_rounds_are_compared_on_the_same_clients(losses: Any, reported: list[float], best: int) -> None:
    """The clients have 3, 4 and 2 validation nodes."""
    engine = Scripted(ragged_federation(sparse=True), [fedavg()] * 3, 0, dtype=torch.float64)
    engine.losses = losses
    progress, records, _ = go(fedavg(), RoundSettings(rounds=len(losses)), engine=engine)
    assert [record["val"]["loss"] for record in records] == pytest.approx(reported)  # of those who answered
    assert progress.best_round == best


def test_one_client_alone_fedavg_is_local() -> None:
    from fedspray.data.federation import Federation

    whole = ragged_federation()
    federation = Federation("one", whole.clients[1:2])
    results = []
    for name in ("fedavg", "local"):
        algorithm = algorithms.find(name)(backbone=backbones.make("gcn"))
        engine = LocalEngine(federation, [algorithm], 0, dtype=torch.float64)
        begin = start(algorithm, federation.task, 0, torch.float64)
        records: list[dict[str, Any]] = []
        run_rounds(
            algorithm,
            engine,
            RoundSettings(rounds=4),
            0,
            begin,
            on_record=records.append,
            on_round=lambda _: None,
        )
        results.append([record["val"]["loss"] for record in records])
    assert results[0] == pytest.approx(results[1], abs=1e-12)


@pytest.mark.parametrize(
    ("patience", "losses", "trained", "best"),
    [
        # round 2 is the best; rounds 3 and 4 are not, which the server learns while round 5 is trained
        (2, [5, 4, 4.5, 4.2, 4.1, 1], 5, 2),
        # the last round is evaluated all the same, and may be the best
        (2, [5, 4, 4.5, 4.2, 3, 1], 5, 5),
        # an equal loss is no better one
        (2, [5, 4, 4, 4, 9, 1], 5, 2),
        (1, [5, 5, 1, 1], 3, 3),
        (3, [5, 4, 4.5, 4.2, 3.9, 3.8], 6, 6),
        (0, [5, 6, 6, 6, 6, 6], 6, 1),
        (6, [5, 6, 6, 6, 6, 6], 6, 1),
    ],
)
def test_patience_ends_a_run(patience: int, losses: list[float], trained: int, best: int) -> None:
    engine = Scripted(ragged_federation(sparse=True), [fedavg()] * 3, 0, dtype=torch.float64)
    engine.losses = [(0, 9 * loss, 0) for loss in losses]
    progress, records, _ = go(fedavg(), RoundSettings(rounds=len(losses), patience=patience), engine=engine)
    assert progress.round_index == trained
    assert [record["round"] for record in records] == [*range(1, trained + 1)]
    assert progress.best_round == best
    assert {row["round"] for row in progress.detail["clients"].values()} == {best}


def test_a_run_that_patience_ends_is_the_beginning_of_a_longer_one() -> None:
    """A big step overshoots at once: the best round is early, so that the end is too."""
    algorithm = FedAvg(backbone=backbones.make("gcn", hidden=8, lr=0.3))
    whole, all_records, _ = go(algorithm, RoundSettings(rounds=30))
    short, records, _ = go(algorithm, RoundSettings(rounds=30, patience=15))
    assert whole.best_round is not None
    assert whole.best_round + 16 == short.round_index == len(records) < 30
    timed = ("seconds", "cpu_seconds")
    assert [{k: v for k, v in each.items() if k not in timed} for each in records] == [
        {k: v for k, v in each.items() if k not in timed} for each in all_records[: len(records)]
    ]
    assert {**short.detail, "closing": 0} == {**whole.detail, "closing": 0}


def test_patience_does_not_end_the_first_of_two_stages() -> None:
    """Round 1 is the best of all; rounds 7 and 8 are the first two of the second stage."""
    algorithm = AdaFGL(backbone=backbones.make("gcn", hidden=8), extractor_rounds=6)
    engine = Scripted(ragged_federation(sparse=True), [algorithm] * 3, 0, dtype=torch.float64)
    engine.losses = [(0, loss, 0) for loss in range(1, 21)]
    progress, _, _ = go(algorithm, RoundSettings(rounds=20, patience=2), engine=engine)
    assert progress.round_index == 9
