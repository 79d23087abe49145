"""What NVFlare starts at the server: the training loop, with sites as its clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec

from fedspray.deploy.locks import Lock
from fedspray.deploy.messages.wire import CONSENT, SUM, Ask, Malformed, Reply, freeze, hold, thaw
from fedspray.deploy.network.answers import TASK, UNREADABLE
from fedspray.deploy.provisioning import members
from fedspray.deploy.server.host import Quorum, RemoteHost
from fedspray.deploy.server.kit import Server
from fedspray.deploy.server.progress import LEFT_OUT, REFUSED, SILENT, ProgressRecorder
from fedspray.engine.local import Blocks
from fedspray.engine.worker import Request
from fedspray.errors import InputError, RunStopped, printable
from fedspray.files import Json
from fedspray.runs.conduct import Host, conduct

POLL = 0.02
"""Seconds between looks at the task list."""
MOMENT = 0.5
"""Seconds in which a site that is in the job fetches its task for certain."""
STARTING = 60.0
"""Seconds in which the job process of a connected site starts and fetches its first question."""
PACE = 5.0
"""Seconds between two questions whether a site takes part, at least: a site that does not wait for its person itself
must not keep the server busy."""
ABSENT, SHUT_OUT = "it did not answer in time", "the coordinator disabled or removed it"


class Aborted(RuntimeError):
    """NVFlare ends the job; the run goes on from its checkpoint in another one."""


@dataclass(eq=False)
class _Exchange:
    """What is known of one exchange."""

    arrived: dict[str, Reply | str] = field(default_factory=dict)
    fetched: dict[str, float] = field(default_factory=dict)
    """Sites that took up what they are asked, and when."""

    def awaits(self, name: str) -> bool:
        """Whether a site was asked and has not answered yet."""
        return name in self.fetched and name not in self.arrived


class RunController(Controller):  # type: ignore[misc]
    """Carries a run's exchanges as NVFlare tasks: one task for each site, so each may get something else.

    Args:
        run: the run's name.
        agreement: the fingerprint of what is to be run.
        grace: seconds that the others are waited for once enough of the sites that count answered.
    """

    def __init__(self, run: str, agreement: str, grace: float) -> None:
        super().__init__(task_check_period=POLL)
        self._run, self._fingerprint, self._grace = run, agreement, grace
        self._news = threading.Condition()
        self._exchange = _Exchange()
        self._absent: set[str] = set()
        self._failing: dict[str, int] = {}
        """Sites whose last answer was missing or wrong, and since which round."""
        self._heads: dict[str, str] = {}
        """How each site's ledger ended when it answered last."""
        self._largest = 0
        """Bytes of an answer's arrays at most."""
        self._shut_out: Callable[[], Collection[str]] = lambda: ()
        """Sites that the coordinator does not let in now."""

    def set_communicator(self, communicator: WFCommSpec) -> None:
        """Also sets the period under the name that NVFlare 2.9.0 reads."""
        super().set_communicator(communicator)
        communicator._task_check_period = POLL

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing yet: `control_flow` does it all."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to do."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """A late answer: the round went on without it. Or one that cannot be read: the site failed."""
        reason = result.get(UNREADABLE)
        with self._news:
            if reason is not None and self._exchange.awaits(client.name):
                self._exchange.arrived[client.name] = f"its answer cannot be read: {reason}"
                self._news.notify_all()
                return
        self.log_info(fl_ctx, f"the answer of {client.name} came too late")

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Runs every seed from its checkpoint to its end."""
        root = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
        server = Server.open(root)
        folder = server.run_folder(self._run)
        lock = Lock(folder / "lock")
        lock.take_over()
        self._recorder, self._abort, self._context = ProgressRecorder(folder, fl_ctx.get_job_id()), abort_signal, fl_ctx
        self._shut_out = lambda: members.shut_out(root)
        try:
            agreement = server.agreement(self._fingerprint)
            roster, run = agreement.roster, agreement.resolved

            def open_host(seed: int, blocks: Blocks | None) -> Host:
                self._recorder.show(seed=seed, state="running")
                host = RemoteHost.of(agreement, seed, self, members.left(root))
                self._largest = host.largest
                return host

            left, self._largest = members.left(root), agreement.largest_message
            here = {client.name for client in fl_ctx.get_engine().get_clients()}
            self._ask_consent([name for name in roster.clients if name in here - left], run.settings.seeds[0], folder)
            conduct(roster, run, folder, open_host, checkpoint_every=1, callbacks=[self._recorder])
            self._recorder.finish()
            for site, head in self._heads.items():
                self._recorder.tell("ledger", site, f"at the end of the run its ledger ended with {head}")
        except RunStopped as error:
            self._recorder.show(state="stopped", reason=str(error))
        except InputError as error:  # it cannot even begin
            self._recorder.show(state="stopped", reason=str(error))
            self.system_panic(str(error), fl_ctx)
        except Aborted:
            self._recorder.show(state="aborted")
        except Exception as error:
            self._recorder.show(state="failed", reason=f"{type(error).__name__}: {error}")
            self.log_exception(fl_ctx, "the run failed")
            self.system_panic(str(error), fl_ctx)
        finally:
            lock.release()

    def _ask_consent(self, sites: list[str], seed: int, folder: Path) -> None:
        """Asks who takes part. A new run waits for who has not decided; one that is under way for the grace time.

        Both wait for sites whose job process is still starting, but not for a site that took up the question and stays
        silent (it holds its answer back for a while only), nor for one that is shut out meanwhile.
        """
        begun = any(folder.glob("seed-*/checkpoint*")) or any(folder.glob("seed-*/result.json"))
        turn, since = 0, time.time()
        while sites:
            turn += 1
            asked, grace = time.monotonic(), self._grace + (0.0 if begun else hold(turn))
            ask = Ask(seed, Request(1, train=False, evaluate=False), {}, CONSENT, turn)
            replies = self.deliver(dict.fromkeys(sites, ask), Quorum(frozenset(), 0), grace)
            for name, reply in replies.items():
                if isinstance(reply, str):
                    why = SHUT_OUT if name in self._shut_out() else reply
                    self._recorder.tell(SILENT, name, why)
                elif reply.error is not None:
                    self._recorder.tell(REFUSED, name, reply.error)
            answers = {name: reply for name, reply in replies.items() if isinstance(reply, Reply) and not reply.error}
            sites = [] if begun else [name for name, reply in answers.items() if reply.undecided]
            if sites:
                self._recorder.show(waiting_for=sites, waiting_since=since)
                self._sleep_until(asked + PACE)
        self._recorder.show(waiting_for=[], waiting_since=None)

    def _sleep_until(self, moment: float) -> None:
        while time.monotonic() < moment:
            if self._abort.triggered:
                raise Aborted
            time.sleep(POLL * 5)

    # ---- one exchange -------------------------------------------------------------------------------

    def deliver(self, asks: Mapping[str, Ask], quorum: Quorum, grace: float | None = None) -> dict[str, Reply | str]:
        """Asks every site, waits for enough of those that count, and for the others the grace time."""
        began, exchange = time.monotonic(), _Exchange()
        with self._news:
            self._exchange = exchange
        tasks, sizes = {}, {}

        def on_sent(client_task: ClientTask, fl_ctx: FLContext) -> None:
            with self._news:
                exchange.fetched.setdefault(client_task.client.name, time.monotonic())

        def on_result(client_task: ClientTask, fl_ctx: FLContext) -> None:
            reply = _read(client_task.result, self._largest)
            with self._news:
                if exchange is not self._exchange:  # another round began while this was read
                    self.log_info(fl_ctx, f"the answer of {client_task.client.name} came too late")
                    return
                exchange.arrived[client_task.client.name] = reply
                self._news.notify_all()

        for name, ask in asks.items():
            head, arrays = ask.pack()
            data = Shareable()
            data["head"], data["arrays"] = head, freeze(arrays)
            sizes[name] = sum(value.nbytes for value in arrays.values())
            tasks[name] = Task(name=TASK, data=data, before_task_sent_cb=on_sent, result_received_cb=on_result)
            self.send(tasks[name], self._context, targets=[name])
        ask = next(iter(asks.values()))
        try:
            self._wait(list(asks), quorum, ask, self._grace if grace is None else grace)
        finally:
            for name, task in tasks.items():
                if not isinstance(exchange.arrived.get(name), Reply):
                    self.cancel_task(task)
        with self._news:
            self._exchange = _Exchange()  # what comes now is too late
        arrived = exchange.arrived
        silent = {name for name in asks if name not in arrived and name not in exchange.fetched}
        self._absent = (self._absent - asks.keys()) | silent
        self._recorder.show(absent=sorted(self._absent))
        if ask.step in (None, SUM):
            self._log(ask, asks, arrived, sizes, time.monotonic() - began)
        return {name: arrived.get(name, ABSENT) for name in asks}

    def _wait(self, names: list[str], quorum: Quorum, ask: Ask, grace: float) -> None:
        """Returns when all that can be expected has arrived."""
        asking = ask.step == CONSENT
        again = asking and ask.turn > 1  # the same sites are waited for as before
        shown = names if again else []
        settled_since: float | None = None
        began = time.monotonic()
        doing = {"state": "asking"} if asking else {"state": "running", "round": ask.request.round_index}
        if not again:
            self._recorder.show(**doing, waiting_for=[], waiting_since=None)
        while True:
            with self._news:
                self._news.wait(POLL * 5)
                exchange = self._exchange
                settled = quorum.is_settled(exchange.arrived)
                shut_out = self._shut_out() if settled else ()
                missing = [name for name in names if name not in exchange.arrived and name not in shut_out]
                # Who has not even fetched the first question of consent is starting: no person is waited for.
                starting = [name for name in missing if asking and not again and name not in exchange.fetched]
                awaited = [name for name in missing if name not in starting]
                fetched = max(exchange.fetched.values(), default=began) if asking else began
                gone = all(name in self._absent and name not in exchange.fetched for name in missing)
            if self._abort.triggered:
                raise Aborted
            if not missing:
                break
            now = time.monotonic()
            if settled:
                settled_since = settled_since or now
                # A site that did not even fetch its last task is gone: it is given a moment, not the grace time.
                over = now - max(settled_since, fetched) > (min(grace, MOMENT) if gone else grace)
                if over and not (starting and now - began < STARTING):
                    break
            if awaited != shown and now - began > 1.0:
                self._recorder.show(waiting_for=awaited, **({} if shown else {"waiting_since": time.time()}))
                shown = awaited
        if shown and not asking:
            self._recorder.show(waiting_for=[], waiting_since=None)

    def _log(
        self,
        ask: Ask,
        asks: Mapping[str, Ask],
        arrived: Mapping[str, Reply | str],
        sizes: Mapping[str, int],
        seconds: float,
    ) -> None:
        sites: dict[str, Json] = {}
        for name in asks:
            reply = arrived.get(name, ABSENT)
            failed = reply if isinstance(reply, str) else reply.error
            sites[name] = {"failed": failed, "bytes_down": sizes[name]}
            if isinstance(reply, Reply):
                arrays = reply.pack()[1]
                if reply.ledger is not None:
                    self._heads[name] = reply.ledger
                sites[name] |= {
                    "seconds": reply.seconds,
                    "cpu_seconds": reply.cpu_seconds,
                    "bytes_up": sum(value.nbytes for value in arrays.values()),
                    "ledger": reply.ledger,
                }
        self._tell_failures(ask.request.round_index, {name: site["failed"] for name, site in sites.items()})
        line = {"round": ask.request.round_index, "time": time.time(), "seconds": seconds, "sites": sites}
        self._recorder.add_exchange(ask.seed, line)

    def _tell_failures(self, round_index: int, failed: Mapping[str, str | None]) -> None:
        """Writes into the run's events which site begins to fail, why, and which answers again."""
        for name, reason in failed.items():
            if reason is not None and name not in self._failing:
                self._failing[name] = round_index
                self._recorder.tell(LEFT_OUT, name, f"from round {round_index} on: {reason}")
            elif reason is None and name in self._failing:
                first = self._failing.pop(name)
                self._recorder.tell("answers again", name, f"in round {round_index}, for the first time since {first}")


def _read(result: Shareable, largest: int) -> Reply | str:
    """A site's answer, or why it is none; whatever is wrong with it, this is the site's failure."""
    try:
        code = result.get_return_code()
        if code != ReturnCode.OK:
            return printable(f"NVFlare reports {code}")
        return Reply.unpack(result.get("head"), thaw(result.get("arrays"), largest))
    except Malformed as error:
        return f"its answer cannot be read: {error}"
    except Exception as error:
        return f"its answer cannot be read ({type(error).__name__})"
