"""What NVFlare starts at a site: it hands every task to the site's run."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedspray.deploy.site.handler import RequestHandler


class SiteExecutor(Executor):  # type: ignore[misc]
    """Answers the server.

    Args:
        run: the run's name, which the server chose.
        agreement: the fingerprint of what is to be run; another than the site's own is refused.
    """

    def __init__(self, run: str, agreement: str) -> None:
        super().__init__()
        self._run_name, self._fingerprint = run, agreement
        self._handler: RequestHandler | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Opens the site's folder when the job starts, and lets go of it when the job ends."""
        if event_type == EventType.START_RUN:
            self._open(fl_ctx)
        elif event_type == EventType.END_RUN and self._handler is not None:
            self._handler.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One exchange."""
        result = Shareable()
        result["head"], result["arrays"] = self._open(fl_ctx).answer(
            shareable.get("head"), shareable.get("arrays"), lambda: bool(abort_signal.triggered)
        )
        return result

    def _open(self, fl_ctx: FLContext) -> RequestHandler:
        if self._handler is None:
            folder = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
            self._handler = RequestHandler(folder, fl_ctx.get_identity_name(), self._run_name, self._fingerprint)
        return self._handler
