"""The coordinator's connection to the server: NVFlare's admin API over mutual TLS."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    InternalError,
    JobNotFound,
    JobNotRunning,
    NoClientsAvailable,
    NoConnection,
    NoReply,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.proto import MetaKey, MetaStatusValue

from fedspray.deploy.provisioning.kits import ADMIN

ENDED = "FINISHED"
"""How the status of every job begins that will not run any more."""


class Unreachable(ConnectionError):
    """The server does not answer."""


class AdminSession:
    """Opened for a few commands at a time; what NVFlare prints on the way is swallowed."""

    def __init__(self, kit: Path, user: str = ADMIN) -> None:
        self._kit, self._user = kit, user
        self._session: Session | None = None

    def __enter__(self) -> Self:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._session = new_secure_session(
                    self._user, str(self._kit.absolute()), timeout=10.0, auto_login_max_tries=2
                )
        except (NoConnection, TimeoutError, OSError) as error:
            raise Unreachable(str(error)) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                self._session.close()

    def submit(self, job: Path) -> str:
        """Hands in a job and returns its id."""
        return str(self._ask(lambda session: session.submit_job(str(job.absolute()))))

    def status(self, job: str) -> str:
        """SUBMITTED, DISPATCHED, RUNNING, FINISHED:… (a job of a server that died may say RUNNING for ever)."""
        try:
            return str(self._ask(lambda session: session.get_job_meta(job)).get("status"))
        except JobNotFound:
            return f"{ENDED}:UNKNOWN"

    def abort(self, job: str) -> None:
        """Ends a job."""
        with contextlib.suppress(JobNotFound, JobNotRunning):
            self._ask(lambda session: session.abort_job(job))

    def started(self) -> float:
        """When the server was started, in seconds since 1970."""
        return float(self._info().server_info.start_time)

    def running(self) -> set[str]:
        """The jobs that the server runs now."""
        return {job.job_id for job in self._info().job_info}

    def sites(self) -> dict[str, set[str]]:
        """The sites that answer now, and the jobs that each of them runs."""
        if not self._info().client_info:
            return {}
        try:
            rows = self._ask(lambda session: session.get_client_job_status()) or []
        except NoClientsAvailable:
            return {}
        found: dict[str, set[str]] = {}
        for row in rows:
            status = row.get(MetaKey.STATUS)
            if status in (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR):
                continue
            jobs = found.setdefault(row[MetaKey.CLIENT_NAME], set())
            if status != MetaStatusValue.NO_JOBS:
                jobs.add(row[MetaKey.JOB_ID])
        return found

    def _info(self) -> Any:
        return self._ask(lambda session: session.get_system_info())

    def _ask(self, command: Callable[[Session], Any]) -> Any:
        assert self._session is not None
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return command(self._session)
        except (NoConnection, SessionClosed, NoReply, InternalError, AuthenticationError, OSError) as error:
            raise Unreachable(str(error)) from None  # also a session that a restarted server does not know
