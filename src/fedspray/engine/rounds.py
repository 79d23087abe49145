"""The one training loop: the server's side of every engine.

In round r the server sends what round r-1 produced; the clients evaluate that model, train, and answer.
So the record of a round is complete one exchange later, and one closing exchange follows the last round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Task
from fedspray.engine.worker import Request
from fedspray.errors import RunStopped, located
from fedspray.evaluation import selection
from fedspray.evaluation.metrics import Counts, PartCounts, breakdowns
from fedspray.experiment import RoundSettings
from fedspray.files import Json
from fedspray.links.base import Link
from fedspray.messages import Declared, combine, not_finite
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.seeds import generator


@dataclass(frozen=True)
class Sums:
    """What the server learns from an exchange if it sees only sums over clients."""

    combined: Message
    """What the algorithm's server step receives."""
    counts: Message
    """Sums of `Counts.summands`, without a client axis."""
    best: Message
    """The same of the best model so far, at the same clients; and how many of them have one, as ``known``."""


@dataclass(frozen=True)
class Answers:
    """What came back from the clients in one exchange."""

    uplink: Message
    """What the algorithm sent, [len(trained), …]."""
    trained: tuple[int, ...]
    counts: Message
    """Evaluation counts, [len(evaluated), …]."""
    evaluated: tuple[int, ...]
    failures: dict[int, str] = field(default_factory=dict)
    """Clients that did not answer, and why."""
    bytes_down: tuple[int, ...] | None = None
    """Bytes sent to each client, if links changed them; None: those of the messages."""
    bytes_up: tuple[int, ...] | None = None
    """The same for each of `trained`."""
    sums: Sums | None = None
    """Replaces `uplink` and `counts` if a protocol gives only sums."""
    errors: dict[int, Exception] = field(default_factory=dict)
    """The exceptions behind `failures`, of clients in this process."""

    def without(self, refused: Mapping[int, str]) -> Answers:
        """Without the updates of some rows, whose clients failed for that reason."""
        if not refused:
            return self
        kept = [row for row in range(len(self.trained)) if row not in refused]
        failures = self.failures | {self.trained[row]: reason for row, reason in refused.items()}
        return replace(
            self,
            uplink={name: value[kept] for name, value in self.uplink.items()},
            trained=tuple(self.trained[row] for row in kept),
            failures=dict(sorted(failures.items())),
            bytes_up=None if self.bytes_up is None else tuple(self.bytes_up[row] for row in kept),
        )


class Engine(Protocol):
    """Carries messages between the server and its clients."""

    client_ids: tuple[int, ...]
    client_names: tuple[str, ...]
    """In the order of `client_ids`."""

    def exchange(self, request: Request, downlink: Message, train_ids: Set[int]) -> Answers:
        """Sends every client its row of ``downlink`` and collects the answers."""


Sent = Callable[[Sequence[int]], Message]
"""What these clients were sent, row by row."""


@dataclass(frozen=True)
class Progress:
    """A run's progress on the server: with the engine's state, this is a checkpoint."""

    server: Any
    round_index: int = 0
    """The last trained round."""
    best_round: int | None = None
    best_score: float | None = None
    validation: Json = field(default_factory=dict)
    """By client: its last validation counts, used in rounds it misses."""
    pending: Json = field(default_factory=dict)
    """The record of `round_index`, still without its evaluation."""
    detail: Json = field(default_factory=dict)
    """Set when the run is over: all metrics of the reported round."""


def start(algorithm: Algorithm[Any, Any], task: Task, seed: int, dtype: torch.dtype) -> Progress:
    """The beginning of a run."""
    return Progress(tree.cast(algorithm.init_server(task, seed), dtype))


def run_rounds(
    algorithm: Algorithm[Any, Any],
    engine: Engine,
    settings: RoundSettings,
    seed: int,
    progress: Progress,
    *,
    on_record: Callable[[Json], None],
    on_round: Callable[[Progress], None],
    on_exchange: Callable[[Request, Message, Answers], None] = lambda *_: None,
    links: Sequence[Link] = (),
) -> Progress:
    """Trains from ``progress`` to the end.

    Args:
        algorithm: the server's.
        engine: reaches the clients.
        settings: rounds, participation, selection.
        seed: the run's.
        progress: where to start: `start`, or a checkpoint.
        on_record: gets every round's record once it is complete.
        on_round: called after every round, when a checkpoint may be written.
        on_exchange: called with the request, the message and the answers, before they are used.
        links: what messages pass; some have a say in how they are combined, and in the record.
    """
    while not _is_over(progress, settings, algorithm.first_comparable_round):
        round_index = progress.round_index + 1
        chosen = choose_clients(engine.client_ids, settings, seed, round_index)
        request = Request(round_index, train=True, evaluate=round_index > 1, best_round=progress.best_round)
        began, cpu_began = time.perf_counter(), time.process_time()
        downlink = algorithm.broadcast(progress.server, engine.client_ids)
        answers = engine.exchange(request, downlink, chosen)
        on_exchange(request, downlink, answers)
        if round_index > 1:
            progress = _evaluated(engine, progress, answers, settings, on_record)
        sent = _by_client(engine, downlink)
        answers = _screened(algorithm.uplink, links, sent, answers)
        _check_enough(engine, answers, chosen, settings, round_index)
        combined = _combined(algorithm.uplink, links, sent, answers)
        server = algorithm.server_update(progress.server, combined, answers.trained)
        pending = {
            **_told(engine, round_index, downlink, answers, links),
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,
            "diagnostics": {} if answers.sums else algorithm.diagnostics(server, answers.uplink),
        }
        progress = replace(progress, server=server, round_index=round_index, pending=pending)
        on_round(progress)
    if progress.detail:
        return progress
    downlink = algorithm.broadcast(progress.server, engine.client_ids)
    closing = Request(progress.round_index + 1, train=False, best_round=progress.best_round)
    answers = engine.exchange(closing, downlink, frozenset())
    on_exchange(closing, downlink, answers)
    progress = _evaluated(engine, progress, answers, settings, on_record)
    bytes_evaluation, (down, _) = tree.num_bytes(answers.counts), _travelled(engine, downlink, answers)
    last = Request(progress.round_index + 2, train=False, evaluate=False, best_round=progress.best_round, detail=True)
    answers = engine.exchange(last, {}, frozenset())
    travelled = {"bytes_down": sum(down), "bytes_evaluation": bytes_evaluation + tree.num_bytes(answers.counts)}
    return replace(progress, detail={**_final(engine, answers, progress), "closing": travelled})


def _is_over(progress: Progress, settings: RoundSettings, first_comparable: int) -> bool:
    """Whether all rounds are trained, or the last `patience` evaluated ones were no better than an earlier one."""
    evaluated, best = progress.round_index - 1, max(progress.best_round or 0, first_comparable - 1)
    impatient = 0 < settings.patience <= evaluated - best
    return impatient or progress.round_index >= settings.rounds


def _screened(declared: Declared, links: Sequence[Link], sent: Sent, answers: Answers) -> Answers:
    """Without updates that are not finite, or that a link refuses."""
    if answers.uplink and not_finite(answers.uplink) is not None:
        found: dict[int, str] = {}
        for row in range(len(answers.trained)):
            key = not_finite({name: value[row : row + 1] for name, value in answers.uplink.items()})
            if key is not None:
                found[row] = f"{key} of its update is not finite"
        answers = answers.without(found)
    for link in links:
        if answers.uplink:
            answers = answers.without(link.faults(declared, answers.uplink, sent(answers.trained)))
    return answers


def _combined(declared: Declared, links: Sequence[Link], sent: Sent, answers: Answers) -> Message:
    """As declared, or as the first link that has a way of its own says; with secure sums it is done already."""
    if answers.sums:
        return answers.sums.combined
    own = [link for link in links if type(link).combine is not Link.combine]
    if not own:
        return combine(declared, answers.uplink)
    return own[0].combine(declared, answers.uplink, sent(answers.trained))


def _by_client(engine: Engine, downlink: Message) -> Sent:
    rows = {k: row for row, k in enumerate(engine.client_ids)}
    return lambda ids: {name: value[[rows[k] for k in ids]] for name, value in downlink.items()}


def choose_clients(client_ids: Sequence[int], settings: RoundSettings, seed: int, round_index: int) -> Set[int]:
    """Who trains in a round: a seeded draw of the `participation` share."""
    if settings.participation == 1:
        return frozenset(client_ids)
    count = max(1, round(settings.participation * len(client_ids)))
    drawn = generator(seed, "participation", round_index).choice(len(client_ids), size=count, replace=False)
    return frozenset(client_ids[i] for i in drawn)


def _evaluated(
    engine: Engine, progress: Progress, answers: Answers, settings: RoundSettings, on_record: Callable[[Json], None]
) -> Progress:
    """Completes the last round's record with its evaluation and compares it with the best so far."""
    if not answers.evaluated:
        raise _stopped(engine, answers, f"round {progress.round_index + 1}: no client answered")
    counts = _counts(answers)
    parts = {name: counts.part(name) for name in ("train", "val", "test")}
    shown = answers.evaluated if answers.sums is None else ()
    record = {
        **progress.pending,
        **{name: part.summary() for name, part in parts.items()},
        "evaluated": list(answers.evaluated),
        "clients": {
            str(k): {"val": val, "test": test}
            for k, val, test in zip(shown, parts["val"].by_client(), parts["test"].by_client(), strict=True)
        },
    }
    on_record(record)
    if answers.sums is not None:
        return _compared_sums(progress, answers, record["val"], settings.selection)
    return _compared(progress, answers.evaluated, parts["val"], record["val"], settings.selection)


def _compared(progress: Progress, client_ids: Sequence[int], counts: PartCounts, summary: Json, rule: str) -> Progress:
    """Compares the last round with the best so far, on the same clients.

    An absent client counts with its last answer, since it still has that model. When a client answers
    for the first time, the round is the best so far: earlier scores lack it, and it has no model of them.
    """
    rows = zip(client_ids, counts.rows(), counts.confusion.sum(axis=(1, 2)), strict=True)
    now = {str(k): row for k, row, num_nodes in rows if num_nodes}
    known = {**progress.validation, **now}
    if known.keys() != now.keys():
        summary = PartCounts.of_rows(list(known.values())).summary()
    score = selection.score(rule, summary)
    joined = bool(progress.validation) and known.keys() != progress.validation.keys()
    worse = progress.best_score is not None and (score is None or score <= progress.best_score)
    if worse and not joined:
        return replace(progress, validation=known)
    return replace(progress, validation=known, best_round=progress.round_index, best_score=score)


def _compared_sums(progress: Progress, answers: Answers, summary: Json, rule: str) -> Progress:
    """The same from sums: clients also count the best model so far, so both cover the clients that answered now."""
    assert answers.sums is not None
    best = dict(answers.sums.best)
    score, known = selection.score(rule, summary), float(best.pop("known"))
    if progress.best_round is not None and known == len(answers.evaluated):  # nobody is new
        before = selection.score(rule, Counts.of_sums(best).part("val").summary())
        if before is not None and (score is None or score <= before):
            return replace(progress, best_score=before)
    return replace(progress, best_round=progress.round_index, best_score=score)


def _counts(answers: Answers) -> Counts:
    hidden = answers.sums
    return Counts.from_message(answers.counts) if hidden is None else Counts.of_sums(hidden.counts)


def _final(engine: Engine, answers: Answers, progress: Progress) -> Json:
    if not answers.evaluated:
        raise _stopped(engine, answers, f"no client reported its model of round {progress.best_round}")
    counts = _counts(answers)
    test, own = counts.part("test"), answers.counts.get("evaluation.round", ())
    shown = answers.evaluated if answers.sums is None else ()
    return {
        "best_round": progress.best_round,
        **({} if answers.sums is None else {"sums_only": True}),
        **{name: counts.part(name).summary() for name in ("train", "val", "test")},
        **breakdowns(test),
        "clients": {
            str(k): {**row, "round": int(round_index)}
            for k, row, round_index in zip(shown, test.by_client(), own, strict=True)
        },
    }


def _check_enough(
    engine: Engine, answers: Answers, chosen: Set[int], settings: RoundSettings, round_index: int
) -> None:
    needed = settings.min_clients or math.ceil(len(chosen) / 2)
    if len(answers.trained) < needed:
        trained = f"{len(answers.trained)} of {len(chosen)} clients trained"
        raise _stopped(engine, answers, f"round {round_index}: {trained}, but min_clients is {needed}")


def _told(engine: Engine, round_index: int, downlink: Message, answers: Answers, links: Sequence[Link]) -> Json:
    """The record of an exchange."""
    down, up = _travelled(engine, downlink, answers)
    return {
        "round": round_index,
        **{name: value for link in links for name, value in link.spent(round_index).items()},
        "trained": list(answers.trained),
        "failed": _by_name(engine, answers.failures),
        "bytes_down": sum(down),
        "bytes_up": sum(up),
        "bytes_evaluation": tree.num_bytes(answers.counts),
        "bytes_up_by_client": up,
        "bytes_down_by_client": down,
    }


def _by_name(engine: Engine, failures: Mapping[int, str]) -> dict[str, str]:
    names = dict(zip(engine.client_ids, engine.client_names, strict=True))
    return {names[k]: reason for k, reason in failures.items()}


def _stopped(engine: Engine, answers: Answers, what: str) -> RunStopped:
    """The end of a run: every reason once, and the first exception of this process as its cause."""
    precise = {k: located(error) for k, error in answers.errors.items()}
    clients: dict[str, list[str]] = {}
    for name, reason in _by_name(engine, answers.failures | precise).items():
        clients.setdefault(reason, []).append(name)
    everyone = len(engine.client_ids)
    said = [
        f"{f'all {everyone} clients' if len(names) == everyone > 1 else ', '.join(names)}: {reason}"
        for reason, names in clients.items()
    ]
    stopped = RunStopped(f"{what}: {'; '.join(said) or 'no reason given'}")
    stopped.__cause__ = next(iter(answers.errors.values()), None)
    return stopped


def _travelled(engine: Engine, downlink: Message, answers: Answers) -> tuple[list[int], list[int]]:
    """Bytes down to and up from each client."""

    def by_client(message: Message, holders: Sequence[int], counted: Sequence[int] | None) -> list[int]:
        each = tree.num_bytes(message) // max(1, len(holders))
        found = dict(zip(holders, counted or [each] * len(holders), strict=True))
        return [found.get(k, 0) for k in engine.client_ids]

    down = by_client(downlink, engine.client_ids, answers.bytes_down)
    return down, by_client(answers.uplink, answers.trained, answers.bytes_up)
