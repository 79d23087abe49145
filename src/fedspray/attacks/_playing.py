"""Plays runs through the real engine and links, keeps what the server saw, and lets attacks score it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedspray import attacks
from fedspray.attacks.base import Exchange, Finding, Seen
from fedspray.data.federation import Client, Federation
from fedspray.engine.rounds import Answers
from fedspray.engine.worker import Request
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.files import Json
from fedspray.links import make
from fedspray.nn.tree import Message
from fedspray.runs.callbacks import Callback
from fedspray.runs.models import PersonalModel
from fedspray.runs.run import carry_out
from fedspray.runs.settings import resolve
from fedspray.seeds import generator

PROTECTIONS = ("", "noise sigma=0.1 clip=1", "dp epsilon=8", "secure-sum")
"""What is attacked unless links are named: no protection, and each protection by itself."""
COLUMNS = ("algorithm", "link", "attack", "nodes", "measure", "value", "guess", "source")


class _Enough(Exception):
    """The server has seen what it needs."""


@dataclass(frozen=True)
class Campaign:
    """What is attacked."""

    federation: Federation
    """With the split of its seed."""
    settings: RunSettings
    """Of all runs, but for the algorithm and the links; the first seed counts."""

    @property
    def rounds(self) -> int:
        """Of each run."""
        return resolve(self.settings).rounds.rounds

    @property
    def seed(self) -> int:
        """Of each run."""
        return self.settings.seeds[0]

    def rows(
        self,
        algorithms: Sequence[str],
        links: Sequence[str] = PROTECTIONS,
        chosen: Sequence[str] = (),
        tell: Callable[[str], None] = lambda _: None,
    ) -> Iterator[Json]:
        """One row for each score; for a link that refuses an algorithm, one that says so.

        A link is one protection in front of the server: ``"noise sigma=0.1"``, ``"dp + secure-sum"``, or ``""``.
        """
        known = {name: attacks.find(name)() for name in chosen or attacks.names()}
        for text in (text for link in links for text in _chain(link)):
            make(text)  # one that is no link is a mistake, while one that refuses an algorithm is a finding
        again = any(each.needs_shadows for each in known.values())
        for algorithm in algorithms:
            tell(algorithm)
            shadows = self._shadows(algorithm) if again else {}
            for link in links:
                try:
                    seen: dict[tuple[int | None, int | None], tuple[Seen, Federation]] = {}
                    for name, attack in known.items():
                        for nodes in attack.batches:
                            key = nodes, attack.rounds
                            if key not in seen:
                                seen[key] = self._seen(algorithm, link, *key, shadows)
                            for found in attack.findings(*seen[key]):
                                yield _row(algorithm, link, name, nodes, found)
                except InputError as error:
                    yield {
                        **dict.fromkeys(COLUMNS),
                        "algorithm": algorithm,
                        "link": link,
                        "source": f"refused: {error}",
                    }

    def _settings(self, algorithm: str, link: str = "") -> RunSettings:
        one = replace(self.settings, algorithm=algorithm, link=_chain(link), seeds=(self.seed,), baseline=None)
        return replace(one, keep_split=True)

    def _shadows(self, algorithm: str) -> Mapping[str, PersonalModel]:
        other = self.federation.with_split(self.seed + 1)
        return carry_out(other, self._settings(algorithm), None).models

    def _seen(
        self, algorithm: str, link: str, nodes: int | None, stop: int | None, shadows: Mapping[str, PersonalModel]
    ) -> tuple[Seen, Federation]:
        """What the server has after so many rounds of a run in which clients have so many training nodes."""
        run = resolve(self._settings(algorithm, link))
        federation = self.federation if nodes is None else with_few(self.federation, nodes, self.seed)
        watcher, models = _Watcher(stop), {}
        with contextlib.suppress(_Enough):
            models = dict(carry_out(federation, run, None, callbacks=[watcher]).models)
        only_sums = bool(run.links) and run.links[-1].only_sums
        return Seen(run, watcher.exchanges, only_sums, models, shadows), federation


class _Watcher(Callback):
    """Keeps what arrives at the server."""

    def __init__(self, stop: int | None) -> None:
        self.exchanges: list[Exchange] = []
        self._stop = stop

    def on_exchange(self, request: Request, downlink: Message, answers: Answers) -> None:
        """Keeps one exchange."""
        updates, counts = _by_client(answers.uplink, answers.trained), _by_client(answers.counts, answers.evaluated)
        if answers.sums is not None:
            updates, counts = (
                {k: {name: value[None] for name, value in sums.items()} for k in ids}
                for sums, ids in (
                    (answers.sums.combined, answers.trained),
                    (answers.sums.counts, answers.evaluated),
                )
            )
        sent = _by_client(downlink, range(len(next(iter(downlink.values()), ()))))
        self.exchanges.append(Exchange(request.round_index, sent, updates, counts))
        if request.round_index == self._stop:
            raise _Enough


def with_few(federation: Federation, nodes: int, seed: int) -> Federation:
    """The same clients with so many training nodes each, at most."""

    def fewer(client: Client) -> Client:
        known = np.flatnonzero(client.split.train)
        draw = generator(seed, "attack nodes", client.name)
        kept = np.zeros_like(client.split.train)
        kept[draw.choice(known, size=min(nodes, len(known)), replace=False)] = True
        return replace(client, split=replace(client.split, train=kept))

    return replace(federation, clients=tuple(map(fewer, federation.clients)))


def _chain(link: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in link.split("+") if text.strip())


def _by_client(message: Message, ids: Sequence[int]) -> dict[int, Message]:
    return {k: {name: value[i : i + 1] for name, value in message.items()} for i, k in enumerate(ids)}


def _row(algorithm: str, link: str, attack: str, nodes: int | None, found: Finding) -> Json:
    values = (algorithm, link, attack, nodes, found.measure, found.value, found.guess, found.source)
    return dict(zip(COLUMNS, values, strict=True))
