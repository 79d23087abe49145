"""The one place at a site where a job's requests come in and answers go out, each with a line in the ledger."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedspray.deploy import ledger
from fedspray.deploy.agreement import Refused, check_name
from fedspray.deploy.messages.wire import CONSENT, Ask, Malformed, Reply, freeze, thaw
from fedspray.deploy.site.kit import Site
from fedspray.deploy.site.run import SiteRun
from fedspray.engine.secure import Unsafe
from fedspray.engine.worker import Forgotten, NotFinite
from fedspray.errors import DiskFull, InputError, OtherVersionError, printable
from fedspray.files import Json

TOLD = (Refused, Unsafe, OtherVersionError, NotFinite, Forgotten, Malformed)
"""Errors whose text leaves: it names agreements, versions, rounds and parts of messages. That of all others may name
paths or quote data, so only their kind leaves, and the text is in the site's own log."""
NO_NAME, NO_HASH = "(not a name)", "0" * 64
_log = logging.getLogger(__name__)


class RequestHandler:
    """The site's end of one job. An error is an answer: an exception would end the job for everybody.

    Args:
        folder: the site's kit.
        identity: whose certificate the site has.
        run: the run's name, which the server chose.
        agreement: the fingerprint of what is to be run; another than the site's own is refused.
    """

    def __init__(self, folder: Path, identity: str, run: str, agreement: str) -> None:
        self._folder, self._name = folder, _printable(run)
        self._run: SiteRun | None = None
        self._closed = "the site's job has ended"
        self._last: tuple[Json, Reply] | None = None
        self._owed: list[Json] = []
        """Lines that the ledger had no room for."""
        try:
            self._run = SiteRun(_site_of(folder, identity), self._name, agreement)
        except Exception as error:
            _log.exception("%s is refused: %s", self._name, error)
            self._closed = _sentence(error)

    def answer(self, head: Any, arrays: Any, stopped: Callable[[], bool] = lambda: True) -> tuple[Json, bytes]:
        """One exchange, in the form in which it crosses; a person's answer is waited for until the job is stopped."""
        ask: Ask | None = None
        try:
            message = {} if self._run is None else thaw(arrays, self._run.most_bytes)
            ask = Ask.unpack(head, message)
            reply = replace(self._reply(ask, stopped), seed=ask.seed, round_index=ask.request.round_index)
        except Exception as error:
            _log.exception("a request cannot be read: %s", error)
            reply = Reply(error=f"the request cannot be read: {_sentence(error)}")
        try:
            reply = replace(reply, ledger=self._note(ask, reply))
        except (DiskFull, OSError) as error:  # what is not in the ledger does not leave, but this says nothing of it
            _log.exception("an answer is not sent: %s", error)
            reason = f"{type(error).__name__}: the site's ledger cannot be written, so its answer is not sent"
            reply = Reply(error=reason, seed=reply.seed, round_index=reply.round_index)
            self._owed.append(self._line(ask, reply))
        packed, values = reply.pack()
        return packed, freeze(values)

    def close(self) -> None:
        """Ends the job here; another process may go on."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _reply(self, ask: Ask, stopped: Callable[[], bool]) -> Reply:
        if self._run is None:
            return Reply(error=self._closed)
        head = ask.pack()[0]
        if self._last is not None and self._last[0] == head and self._run.takes_part():
            return self._last[1]  # the answer got lost on its way
        began, cpu_began = time.perf_counter(), time.process_time()
        try:
            reply = self._run.answer(ask, stopped)
        except Exception as error:
            _log.exception("round %s failed: %s", ask.request.round_index, error)
            reply = Reply(error=_sentence(error))
        reply = replace(reply, seconds=time.perf_counter() - began, cpu_seconds=time.process_time() - cpu_began)
        if reply.error is None and ask.step != CONSENT:  # a fault may have passed when the same is asked again
            self._last = (head, reply)
        return reply

    def _note(self, ask: Ask | None, reply: Reply) -> str:
        """Writes into the ledger what is about to leave and returns its head; what cannot be written does not leave."""
        for line in (*self._owed, self._line(ask, replace(reply, ledger=NO_HASH))):
            head = ledger.write_answer(self._folder, line)
            self._owed = self._owed[1:]
        return head

    def _line(self, ask: Ask | None, reply: Reply) -> Json:
        head, arrays = reply.pack()
        return {
            "time": ledger.now(),
            "run": self._name,
            "seed": None if ask is None else ask.seed,
            "round": None if ask is None else 0 if ask.step == CONSENT else ask.request.round_index,
            "bytes": sum(value.nbytes for value in arrays.values()) + len(json.dumps(head)),
            "fields": {
                **{name: len(json.dumps(value)) for name, value in head.items() if value is not None},
                **{name: value.nbytes for name, value in arrays.items()},
            },
            **({} if ask is None or not reply.uplink or self._run is None else self._run.told(ask)),
        }


def _printable(run: Any) -> str:
    """The run's name for the ledger: what the server says may be anything."""
    try:
        return check_name("run", run) if isinstance(run, str) else NO_NAME
    except InputError:
        return NO_NAME


def _site_of(folder: Path, identity: str) -> Site:
    site = Site.open(folder)
    if identity != site.name:
        raise Refused(f"this kit is for {identity!r}, but its site.json says {site.name!r}")
    return site


def _sentence(error: Exception) -> str:
    """What the coordinator is told of an error."""
    kind = type(error).__name__
    if isinstance(error, DiskFull):
        return f"{kind}: the site's disk is full (its log names the file); make room there"
    return printable(f"{kind}: {error}") if isinstance(error, TOLD) else f"{kind} (the site's log says more)"
