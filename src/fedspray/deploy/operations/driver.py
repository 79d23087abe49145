"""Brings a run to its end through crashes: submits its job, watches it, and submits it again.

The server's checkpoint and the sites' memories are on disk after every round, so a job that follows
another goes on where that one stopped, and ends with the same bits.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedspray import files, stored
from fedspray.deploy import kinds
from fedspray.deploy.agreement import FILE, Agreement
from fedspray.deploy.ledger import CONNECTED, JOB_ENDED, STARTED, presence, read_events, write_event
from fedspray.deploy.locks import Lock, holder
from fedspray.deploy.network.protocol import SERVER, root_of
from fedspray.deploy.operations.session import ENDED, AdminSession, Unreachable
from fedspray.deploy.provisioning import members
from fedspray.deploy.provisioning.kits import write_job
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.server.progress import LEFT_OUT, REFUSED, SILENT, read_progress
from fedspray.errors import InputError, RunStopped
from fedspray.files import Json
from fedspray.runs import store
from fedspray.runs.interrupts import remembered_interrupts

POLL = 0.2
ASK_EVERY = 1.0
"""Seconds between questions to the server."""
PATIENCE = 20.0
"""Seconds that a job may have no process at the server before it is given up."""
RETURNING = 60.0
"""Seconds in which sites find a server that was restarted, and are registered there again."""
SLOW = 5.0
"""Seconds of waiting for some of the sites that are worth a word."""
MAX_ATTEMPTS = 5
"""Jobs in a row that may end without a new round."""


class Driver:
    """Drives one run.

    Args:
        project: the coordinator's folder.
        run: the run's name; its folder exists.
        tell: gets a sentence whenever something happens.
        tend: called again and again; may restart processes, or show progress.
    """

    def __init__(
        self,
        project: Project,
        run: str,
        *,
        tell: Callable[[str], None],
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        self._project, self._run, self._tell, self._tend = project, run, tell, tend
        self._folder = project.run_folder(run)
        self._agreement = Agreement.load(self._folder).check_version()
        if self._agreement.fingerprint() != project.agreement().fingerprint():
            raise InputError(f"{run} was started under an earlier agreement, so it can't continue")
        self._left = members.left(project.server)
        self._looked = self._asked_who_joined = 0.0
        """When the proposed agreement was changed that adds nobody, and when the server was asked for who joined."""
        self._session: AdminSession | None = None
        self._asked = self._alive = time.monotonic()
        self._said = ""
        self._ready_since: float | None = None
        self._attempts, self._best = 0, (-1, -1)
        self._heard = {folder: len(read_events(folder)) for folder in (project.server, self._folder)}
        self._told = set[str]()
        self._ended = self._aborted = ""
        """The job whose end was told last, and why this driver ended the present one."""

    @property
    def _sites(self) -> tuple[str, ...]:
        return tuple(name for name in self._agreement.roster.clients if name not in self._left)

    def drive(self) -> Json:
        """Returns the result; a run that cannot go on raises `RunStopped`."""
        lock = Lock(self._folder / "driver.lock")
        try:
            lock.acquire(0.0)
        except TimeoutError:
            raise InputError(
                f"{self._folder} is driven by process {holder(self._folder / 'driver.lock')} already"
            ) from None
        # A run that stopped before is tried again: that is why somebody came back to it.
        stopped = self._job() if read_progress(self._folder).get("state") == "stopped" else None
        try:
            with remembered_interrupts() as stop_if_interrupted:
                while not (self._folder / "result.json").exists():
                    self._tend()
                    self._tell_events()
                    try:
                        self._step(stopped)
                    except Unreachable:
                        self._hang_up()
                        self._say("server down", f"the server does not answer at {self._project.address}")
                    stop_if_interrupted()
                    time.sleep(POLL)
            return stored.read(self._folder / "result.json", stored.Result)
        finally:
            self._hang_up()
            lock.release()

    def _step(self, stopped_before: str | None) -> None:
        progress = read_progress(self._folder)
        job = self._job()
        is_news = job is not None and progress.get("job") == job != stopped_before
        if is_news and progress["state"] == "stopped":
            raise RunStopped(progress["reason"])
        if self._membership_changed(job):
            return
        if holder(self._folder / "lock") is not None:
            self._alive = time.monotonic()
            self._watch(progress, job)
        elif self._due() and self._is_over(job):
            if job is not None and job != self._ended:
                self._ended = job
                why = self._aborted or why_ended(self._jobs()[-1], progress, self._project.server, self._open())
                self._say("job ended", f"job {job} ended in round {progress.get('round', 0)}: {why}")
            self._submit(progress)

    def _watch(self, progress: Json, job: str | None) -> None:
        """Ends a job that waits for a site which is back, but not in this job: the next one will have it."""
        waiting, absent = progress.get("waiting_for") or [], progress.get("absent") or []
        waited = time.time() - (progress.get("waiting_since") or time.time()) if waiting else 0.0
        if progress.get("state") == "asking" and waited > 2.0:
            how = f"(there: fedspray site accept KIT {self._run}, or refuse)"
            self._say("waiting for consent", f"waiting for {self._named(waiting)} to accept this run {how}", waiting)
        elif len(waiting) < len(self._sites) and waited > SLOW:
            self._say("waiting", f"round {progress['round']} waits for {self._named(waiting)}", waiting)
        elif absent:
            self._say("absent", f"going on without {self._named(absent)}", absent)
        missing = [name for name in self._sites if name in absent or (name in waiting and waited > 2.0)]
        if missing and job is not None and self._due():
            answering = self._open().sites()
            back = [name for name in missing if name in answering and job not in answering[name]]
            if back:
                self._abort(job, "back", f"{', '.join(back)} is back: starting again from the last round", back)

    def _membership_changed(self, job: str | None) -> bool:
        """Takes on what the coordinator changed: sites that were removed, and added ones once they are connected."""
        left = members.left(self._project.server)
        if left != self._left:
            gone, self._left = left - self._left, left
            self._abort(job, "left", f"{', '.join(sorted(gone)) or 'nobody'} left the federation", sorted(gone))
            return True
        proposed = self._project.folder / FILE
        if (
            not proposed.is_file()
            or proposed.stat().st_mtime == self._looked
            or time.monotonic() - self._asked_who_joined < 2 * ASK_EVERY
        ):
            return False
        self._asked_who_joined = time.monotonic()
        new = self._project.proposed()
        joined = self._agreement.joins(new)
        if not joined:
            self._looked = proposed.stat().st_mtime
        if not joined or not set(joined) <= {*self._open().sites(), *self._left}:
            return False
        self._agreement = new
        self._project.take_on(new)
        new.save(self._folder)
        self._abort(
            job, "joined", f"{', '.join(joined)} joined: going on under agreement {new.fingerprint()[:12]}", joined
        )
        return True

    def _abort(self, job: str | None, event: str, why: str, sites: Sequence[str]) -> None:
        self._say(event, why, sites)
        self._aborted = why
        if job is not None:
            with contextlib.suppress(RuntimeError, ValueError):
                self._open().abort(job)

    def _is_over(self, job: str | None) -> bool:
        if job is None:
            return True
        session = self._open()
        status = session.status(job)
        if status.startswith(ENDED):
            return True
        if status.startswith("SUBMITTED"):
            self._alive = time.monotonic()
            return False
        # A job of a server that was killed keeps its status, but has no process.
        if job in session.running():
            return False
        return time.monotonic() - self._alive > PATIENCE or _is_from_before(self._jobs()[-1], session)

    def _named(self, sites: Sequence[str]) -> str:
        """Sites, and for those that lost their connection, when."""
        known = presence(self._project.server)
        lost = {site: f" (connection lost at {since})" for site, (here, since) in known.items() if not here}
        lost |= dict.fromkeys(members.shut_out(self._project.server), " (disabled or removed)")
        return ", ".join(site + lost.get(site, "") for site in sites)

    def _submit(self, progress: Json) -> None:
        if not self._sites_are_ready():
            return
        reached = (int(progress.get("seed", -1)), int(progress.get("round", -1)))
        self._attempts = self._attempts + 1 if reached == self._best else 0
        self._best = reached
        if self._attempts >= MAX_ATTEMPTS:
            reason = progress.get("reason", "see the server's log")
            raise RunStopped(f"{self._attempts} jobs in a row ended in round {reached[1]}: {reason}")
        self._keep(self._jobs())  # if there is no room for it, better say so before a job begins
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary) / self._run
            target.mkdir()
            job = write_job(target, self._run, self._agreement, self._project.grace, self._min_sites())
            name = self._open().submit(job)
        again = f" again, from round {reached[1]}," if self._jobs() else ""
        self._keep([*self._jobs(), {"id": name, "time": time.time()}])
        self._alive, self._ready_since, self._aborted = time.monotonic(), None, ""
        self._say("submitted", f"submitted{again} as job {name}")

    def _sites_are_ready(self) -> bool:
        """All sites answer; or enough do, and the others had the time to come: longer if the server was restarted."""
        answering = self._open().sites()
        missing = [name for name in self._sites if name not in answering]
        busy = [name for name in self._sites if answering.get(name)]
        enough = len(self._sites) - len(missing) >= self._min_sites()
        if enough and members.shut_out(self._project.server).issuperset(missing):
            return not busy or self._waited(5.0)
        if enough and self._waited(time_to_come(self._jobs(), self._open(), self._project.grace)):
            self._say("absent", f"beginning without {self._named(missing)}", missing)
            return True
        needed = "" if enough else f" (at least {self._min_sites()} sites are needed)"
        self._say("waiting", f"waiting for {self._named(missing)} to connect{needed}", missing)
        return False

    def _waited(self, seconds: float) -> bool:
        self._ready_since = self._ready_since or time.monotonic()
        return time.monotonic() - self._ready_since > seconds

    def _min_sites(self) -> int:
        rounds = self._agreement.resolved.rounds
        asked = max(1, round(rounds.participation * len(self._sites)))
        return rounds.min_clients or math.ceil(asked / 2)

    def _tell_events(self) -> None:
        """Says what the server refused and which sites do not take part, since this began: several of a kind once."""
        for event in self._new_events(self._project.server):
            if event["event"] == STARTED:
                write_event(self._folder, STARTED, SERVER, event["what"])
            if event["event"] not in (STARTED, CONNECTED, JOB_ENDED):  # what follows from these is told
                self._tell_event(event)
        for event in self._new_events(self._folder):
            if event["event"] in (REFUSED, SILENT, LEFT_OUT):  # all others are this driver's own
                self._tell_event(event)

    def _new_events(self, folder: Path) -> list[dict[str, str]]:
        events = read_events(folder)[self._heard[folder] :]
        self._heard[folder] += len(events)
        return events

    def _tell_event(self, event: Mapping[str, str]) -> None:
        sentence = f"{event['event']}: {event['sender']}: {event['what']}"
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)

    # ---- small things -------------------------------------------------------------------------------

    def _jobs(self) -> list[Json]:
        file = self._folder / "jobs.json"
        return list(stored.read(file, kinds.Jobs)["jobs"]) if file.exists() else []

    def _keep(self, jobs: list[Json]) -> None:
        files.write_json(self._folder / "jobs.json", {"jobs": jobs})

    def _job(self) -> str | None:
        jobs = self._jobs()
        return str(jobs[-1]["id"]) if jobs else None

    def _due(self) -> bool:
        if time.monotonic() - self._asked < ASK_EVERY:
            return False
        self._asked = time.monotonic()
        return True

    def _open(self) -> AdminSession:
        if self._session is None:
            self._session = AdminSession(self._project.coordinator).__enter__()
        return self._session

    def _hang_up(self) -> None:
        if self._session is not None:
            self._session.__exit__(None, None, None)
            self._session = None

    def _say(self, event: str, sentence: str, sites: Sequence[str] = ()) -> None:
        """Tells something new, and writes it into the run's events."""
        if sentence != self._said:
            self._said = sentence
            self._tell(sentence)
            write_event(self._folder, event, ", ".join(sites) or "coordinator", sentence)


def time_to_come(jobs: Sequence[Json], session: AdminSession, grace: float) -> float:
    """Seconds that sites have to connect before a job begins without them."""
    return max(grace, RETURNING) if jobs and _is_from_before(jobs[-1], session) else grace


def why_ended(job: Json, progress: Json, server: Path, session: AdminSession) -> str:
    """Why a job ended, at which site, and when; NVFlare's own word if nothing better is known."""
    name, own = job["id"], progress if progress.get("job") == job["id"] else {}
    if own.get("state") in ("failed", "stopped"):
        return str(own["reason"])
    for event in read_events(server):
        if event["event"] == JOB_ENDED and f"job {name}:" in event["what"]:
            code = event["what"].rpartition(" ")[2]
            return f"the job process of {root_of(event['sender'])} ended (exit code {code}) at {event['time']}"
    if _is_from_before(job, session):
        return f"the server was restarted at {_moment(session.started())}"
    if own.get("state") == "running":
        return f"the server's job process ended after {_moment(own['time'])}"
    return f"NVFlare says {session.status(name)}"


def _is_from_before(job: Json, session: AdminSession) -> bool:
    """Whether the server was restarted since it got a job."""
    return bool(job["time"] < session.started())


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def last_record(folder: Path, seed: int) -> Json | None:
    """The last complete record of a seed."""
    file = folder / f"seed-{seed}" / store.RECORDS
    lines = file.read_text().splitlines() if file.exists() else []
    try:
        return dict(json.loads(lines[-1])) if lines else None
    except ValueError:
        return None
