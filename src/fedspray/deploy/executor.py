"""What NVFlare starts at a site: it hands every task to the site's run."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedspray.deploy.site import Site, SiteRun
from fedspray.deploy.wire import Ask, Malformed, Reply, freeze, thaw
from fedspray.errors import InputError


class SiteExecutor(Executor):  # type: ignore[misc]
    """Answers the server. An error is an answer: an exception here would end the job for everybody.

    Args:
        run: the run's name, which the server chose.
        agreement: the fingerprint of what is to be run; another than the site's own is refused.
    """

    def __init__(self, run: str, agreement: str) -> None:
        super().__init__()
        self._run_name, self._fingerprint = run, agreement
        self._run: SiteRun | None = None
        self._refusal: str | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Opens the site's folder when the job starts, and lets go of it when the job ends."""
        if event_type == EventType.START_RUN:
            try:
                self._run = self._open(fl_ctx)
            except (InputError, OSError) as error:
                self._refusal = str(error)
                self.log_error(fl_ctx, self._refusal)
        elif event_type == EventType.END_RUN and self._run is not None:
            self._run.close()
            self._run = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One exchange."""
        if self._run is None:
            reply = Reply(error=self._refusal or "the site's job has ended")
        else:
            try:
                reply = self._run.answer(Ask.unpack(shareable.get("head"), thaw(shareable.get("arrays"))))
            except Malformed as error:
                reply = Reply(error=f"the request cannot be read: {error}")
        head, arrays = reply.pack()
        result = Shareable()
        result["head"], result["arrays"] = head, freeze(arrays)
        return result

    def _open(self, fl_ctx: FLContext) -> SiteRun:
        site = Site.open(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
        identity = fl_ctx.get_identity_name()
        if identity != site.name:
            raise InputError(f"this kit is for {identity!r}, but its site.json says {site.name!r}")
        return SiteRun(site, self._run_name, self._fingerprint)
