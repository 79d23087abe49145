"""The live page over HTTP, for this machine unless told otherwise, and what monitoring asks for.

Every address but ``/healthz`` needs the token, in the address (``?token=…``) or as a bearer token.
"""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedspray.errors import InputError
from fedspray.files import Json
from fedspray.report.contents import make_cards
from fedspray.report.html import fill_template, plotly, read_part, render, script_safe
from fedspray.report.live import kind_of, last_run, state_of
from fedspray.report.methods import read_comparison

Answer = tuple[HTTPStatus, str, str]
"""Status, content type and content."""


class Watch(ThreadingHTTPServer):
    """Serves one folder to whoever knows the token; port 0 takes any that is free."""

    daemon_threads = True

    def __init__(self, folder: Path, address: tuple[str, int], token: str) -> None:
        self.folder, self.token = folder, token
        kind_of(folder)
        super().__init__(address, _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/?token={self.token}"

    def answer(self, path: str, token: str) -> Answer:
        """What is asked for."""
        if path == "/healthz":
            return self._health()
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return HTTPStatus.FORBIDDEN, "text/plain", "the token is missing or wrong\n"
        known: dict[str, Callable[[], tuple[str, str]]] = {
            "/": lambda: ("text/html", self._page()),
            "/report": lambda: ("text/html", self._report()),
            "/state.json": lambda: ("application/json", json.dumps(state_of(self.folder))),
            "/metrics": lambda: ("text/plain; version=0.0.4", metrics(state_of(self.folder))),
        }
        if path not in known:
            return HTTPStatus.NOT_FOUND, "text/plain", f"there is / and {', '.join([*known, '/healthz'][1:])}\n"
        return HTTPStatus.OK, *known[path]()

    def _health(self) -> Answer:
        state = state_of(self.folder)
        status = HTTPStatus.OK if state.get("healthy", True) else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "text/plain", f"{state['state']}\n"

    def _page(self) -> str:
        """The live page; of a finished run, its report."""
        state = state_of(self.folder)
        if state["kind"] == "run" and state["done"]:
            with contextlib.suppress(InputError):  # of a damaged folder its last state is shown
                return self._report()
        return fill_template(
            "live.html",
            script=read_part("live.js"),
            data=script_safe(state),
            plotly=plotly() if find_spec("plotly") else "",  # a site's page may have tables alone
            title=state["title"],
        )

    def _report(self) -> str:
        """The report of a run, or of a project's last one."""
        run = last_run(self.folder) if kind_of(self.folder) == "project" else self.folder
        if run is None:
            raise InputError(f"{self.folder} has no run yet")
        comparison = read_comparison([run], None)
        return render(comparison, make_cards(comparison))


class _Handler(BaseHTTPRequestHandler):
    server: Watch

    def do_GET(self) -> None:
        """One request."""
        asked = urlsplit(self.path)
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            status, kind, content = self.server.answer(asked.path, parse_qs(asked.query).get("token", [bearer])[0])
        except InputError as error:  # the folder went away, or a file in it is damaged
            status, kind, content = HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n"
        body = content.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8" if "charset" not in kind else kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the browser hung up
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address holds the token."""


def metrics(state: Json) -> str:
    """What Prometheus reads."""
    here = {"connected", "waited for", "left out", "trains"}
    sites = {row["name"]: row["state"] in here for row in state["clients"]}
    answers = {row["name"]: row.get("last_answer") for row in state["clients"]}
    ages = {name: moment and state["now"] - moment for name, moment in answers.items()}
    accuracy = state.get("accuracy") or {}
    gauges: list[tuple[str, str, str, dict[str, Any]]] = [
        ("up", "1 if the process that is watched runs and is connected.", "", {"": state.get("healthy", True)}),
        ("round", "The present round.", "", {"": state.get("round")}),
        ("rounds", "Rounds of the run.", "", {"": state.get("rounds")}),
        ("validation_accuracy", "Share of validation nodes predicted correctly.", "nodes", accuracy),
        ("site_connected", "Whether a site is connected.", "site", sites),
        ("site_answer_age_seconds", "Seconds since a site's last answer.", "site", ages),
        ("bytes", "Bytes that travelled.", "way", state.get("bytes", {})),
        ("certificate_days_left", "Days until a certificate ends.", "kit", state.get("certificates", {})),
    ]
    lines = []
    for name, text, label, values in gauges:
        known = {f'{{{label}="{of}"}}' if label else "": value for of, value in values.items() if value is not None}
        if known:
            lines += [f"# HELP fedspray_{name} {text}", f"# TYPE fedspray_{name} gauge"]
            lines += [f"fedspray_{name}{of} {float(value):g}" for of, value in known.items()]
    return "".join(f"{line}\n" for line in lines)
