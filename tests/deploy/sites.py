"""Sites in this process: the whole of a deployed run but its network."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedspray.data.federation import Federation
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.messages.wire import Ask, Reply, freeze, thaw
from fedspray.deploy.server.host import Quorum, RemoteHost
from fedspray.deploy.server.progress import ProgressRecorder
from fedspray.deploy.site.handler import RequestHandler
from fedspray.deploy.site.kit import Site
from fedspray.deploy.site.policy import accept_all
from fedspray.engine.local import Blocks
from fedspray.runs.conduct import Host, conduct
from fedspray.runs.run import begin_with


class Crash(Exception):
    """The server dies."""


Trouble = Callable[[str, Ask], "str | None"]
"""Called before a site is asked: gives the reason why its answer does not arrive, or raises `Crash`."""


class Sites:
    """The sites' folders under ``folder``, and a courier that walks from one to the next."""

    def __init__(self, folder: Path, federation: Federation, agreement: Agreement) -> None:
        self.folder, self.agreement = folder, agreement
        federation.save(folder / "data")
        self.agree(agreement)
        begin_with(folder / "run", agreement.roster, agreement.settings, None, None)
        self._open: dict[str, RequestHandler] = {}
        self._most_bytes = 0
        self.left: frozenset[str] = frozenset()
        self.trouble: Trouble = lambda name, ask: None
        self.late: Callable[[str, Ask], bool] = lambda name, ask: False
        self.slow: Callable[[str, Ask], bool] = lambda name, ask: False
        """Whose answers come after the others' and after the grace time, so that they are late unless they count."""
        self.changed: Callable[[str, Ask, Reply], Reply] = lambda name, ask, reply: reply
        """What a site that does not keep to the rules makes of its answer."""

    def agree(self, agreement: Agreement) -> None:
        """All sites of an agreement take it on; new ones get their folders."""
        self.agreement = agreement
        for name in agreement.roster.clients:
            (self.folder / name / "local").mkdir(parents=True, exist_ok=True)
            agreement.save(self.folder / name / "local")
            Site(self.folder / name, name, self.folder / "data" / "clients" / name).save()
            accept_all(self.folder / name)

    def restart(self) -> None:
        for handler in self._open.values():
            handler.close()
        self._open = {}

    def deliver(self, asks: Mapping[str, Ask], quorum: Quorum) -> dict[str, Reply | str]:
        replies: dict[str, Reply | str] = {}
        arrived: dict[str, Reply | str] = {}
        for name, ask in sorted(asks.items(), key=lambda item: self.slow(*item)):
            problem = self.trouble(name, ask)
            if problem is not None:
                replies[name] = problem
                continue
            head, arrays = ask.pack()
            answer, values = self._handler(name).answer(json.loads(json.dumps(head)), freeze(arrays))
            if self.late(name, ask) or (self.slow(name, ask) and quorum.is_settled(arrived)):
                replies[name] = "late"
            else:
                replies[name] = arrived[name] = self.changed(
                    name, ask, Reply.unpack(answer, thaw(values, self._most_bytes))
                )
        return replies

    def run(self) -> dict[str, Any]:
        roster, run = self.agreement.roster, self.agreement.resolved
        recorder = ProgressRecorder(self.folder / "run", "job")

        def open_host(seed: int, blocks: Blocks | None) -> Host:
            host = RemoteHost.of(self.agreement, seed, self, self.left)
            self._most_bytes = host.largest
            return host

        try:
            result = conduct(roster, run, self.folder / "run", open_host, checkpoint_every=1, callbacks=[recorder])
            recorder.finish()
            return result.summary()
        finally:
            self.restart()

    def _handler(self, name: str) -> RequestHandler:
        if name not in self._open:
            self._open[name] = RequestHandler(self.folder / name, name, "run", self.agreement.fingerprint())
        return self._open[name]


def stable(summary: dict[str, Any]) -> dict[str, Any]:
    """Without times, and without what needs data and models in one place: who is better off than alone."""
    kept = copy.deepcopy(summary)
    kept.pop("benefit", None)
    for row in kept["seeds"]:
        for name in ("seconds", "cpu_seconds", "against_local"):
            row.pop(name, None)
    return kept
