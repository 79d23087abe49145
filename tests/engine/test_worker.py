"""What a worker on a machine of its own needs beyond the loop: late answers, repeated requests, restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from toys import ragged_federation, worker_of

from fedspray import algorithms, backbones
from fedspray.engine.worker import Request, Worker
from fedspray.nn.tree import Message
from fedspray.seeds import torch_generator


def make_worker(algorithm: str = "fedspray") -> Worker:
    federation = ragged_federation()
    made = algorithms.find(algorithm)(backbone=backbones.make("gcn", hidden=4))
    return worker_of(made, federation, [1])


def downlink(worker: Worker, round_index: int) -> Message:
    """Another message in every round, the same for every worker."""
    federation = ragged_federation()
    server = worker.algorithm.init_server(federation.task, 0)
    message = worker.algorithm.broadcast(server, [1])
    noise = torch_generator(round_index, "noise")
    return {name: value.double() + torch.rand(value.shape, generator=noise) for name, value in message.items()}


def ask(worker: Worker, round_index: int, **more: Any) -> tuple[Message, Message]:
    request = Request(round_index, evaluate=round_index > 1, best_round=1 if round_index > 2 else None)
    return worker.handle(replace(request, **more), downlink(worker, round_index))


def same(a: Message, b: Message) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_late_round_is_forgotten() -> None:
    late, never = make_worker(), make_worker()
    for worker in (late, never):
        ask(worker, 1)
    ask(late, 2)  # the answer comes too late: the server still knows round 1
    answers = [ask(worker, 3, from_round=1) for worker in (late, never)]
    assert all(same(a, b) for a, b in zip(*answers, strict=True))
    assert late.rounds == [1, 3]
    assert not same(ask(make_worker(), 3)[0], answers[0][0])  # round 1 does matter


@pytest.mark.parametrize("misses_the_evaluation", [False, True])
def test_the_closing_exchanges_can_be_asked_for_again(misses_the_evaluation: bool) -> None:
    worker = make_worker()
    for round_index in (1, 2):
        ask(worker, round_index)

    def close() -> tuple[Message, Message]:
        if not misses_the_evaluation:
            ask(worker, 3, train=False)
        return worker.handle(Request(4, train=False, evaluate=False, best_round=1, detail=True), {})

    first = close()
    assert same(first[1], close()[1])
    assert worker.memory_at(2).round_index == 2
    assert first[1]["evaluation.round"].tolist() == [1]


def test_both_memories_survive_a_restart() -> None:
    worker, reborn = make_worker(), make_worker()
    for round_index in (1, 2, 3):
        ask(worker, round_index)
    reborn.recall({round_index: worker.tensors(round_index) for round_index in worker.rounds})
    assert reborn.rounds == worker.rounds == [2, 3]
    for round_index in (3, 4):  # the lost round again, and the next one
        expected, answer = ask(worker, round_index), ask(reborn, round_index)
        assert all(same(a, b) for a, b in zip(expected, answer, strict=True))


def test_the_loss_is_that_of_the_loss_logits() -> None:
    """FedSpray 2 shifts its decisions: the counts are those of the shifted ones, the loss is not."""
    worker = make_worker("fedspray2")
    message = {**downlink(worker, 2), "shift": torch.ones(1, dtype=torch.float64)}
    _, counts = worker.handle(Request(2, train=False), message)
    given = (worker.memory_at(2).state, message, worker.batch)
    nodes, labels = worker.batch.val, worker.batch.labels[worker.batch.val]
    blend, shifted = worker.algorithm.loss_logits(*given), worker.algorithm.predict(*given)
    assert blend is not None
    losses = [functional.cross_entropy(logits[nodes], labels, reduction="sum") for logits in (blend, shifted)]
    assert counts["evaluation.loss"][0, 1] == pytest.approx(losses[0].item())
    assert losses[0].item() != pytest.approx(losses[1].item())
    right = int((shifted[nodes].argmax(dim=1) == labels).sum())
    assert int(counts["evaluation.confusion"][0, 1].diagonal().sum()) == right
