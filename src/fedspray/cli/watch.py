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
    host: Annotated[str, flag("The address that is listened on; the default is for this machine alone.", "HOST")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, whole(0, 65535), flag("The port.", "PORT", default="any that is free")] = 0,
    token: Annotated[str | None, flag("Who knows it may look.", "TEXT", default="a new one")] = None,
) -> None:
    """Serve a page with rounds, accuracies, sites, bytes and events as they come; also /healthz and /metrics."""
    from fedspray.report.serving import Watch

    if token is not None and len(token) < 16:
        raise InputError(f"--token has {len(token)} characters, but needs at least 16")
    try:
        server = Watch(folder, (host, port), token or secrets.token_urlsafe(24))
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be listened on: {error.strerror}") from None
    output = Output()
    output.note(f"watching {folder}: {server.url}")
    if host not in ("127.0.0.1", "localhost", "::1"):
        output.note("this page is not encrypted: put a proxy with TLS before it where others can listen")
    with server:
        server.serve_forever()
