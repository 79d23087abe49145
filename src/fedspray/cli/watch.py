"""``fedspray watch``: a page that shows what is going on."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

from fedspray.cli.flags import argument, examples, flag, whole
from fedspray.cli.output import Output
from fedspray.errors import InputError


@examples(
    "fedspray watch runs/mine",
    "fedspray watch fraud --port 9100 --token $(cat token)",
)
def watch(
    folder: Annotated[Path, argument("A run's folder, a study's cells, a project or a site's kit.", "DIR")],
    /,
    *,
    host: Annotated[str, flag("The address to listen on; the default admits only this machine.", "HOST")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, whole(0, 65535), flag("The port.", "PORT", default="a free one")] = 0,
    token: Annotated[str | None, flag("The secret that opens the page.", "TEXT", default="a new one")] = None,
) -> None:
    """Serve a page with rounds, accuracies, sites, bytes and events as they come; also /healthz and /metrics."""
    from fedspray.report.serving import Watch

    if token is not None and len(token) < 16:
        raise InputError(f"--token has {len(token)} characters, but needs at least 16")
    try:
        server = Watch(folder, (host, port), token or secrets.token_urlsafe(24))
    except OSError as error:
        raise InputError(f"can't listen on {host}:{port}: {error.strerror}") from None
    output = Output()
    output.note(f"watching {folder}: {server.url}")
    if host not in ("127.0.0.1", "localhost", "::1"):
        output.note("this page is not encrypted: put a TLS proxy in front of it on networks you don't trust")
    with server:
        server.serve_forever()
