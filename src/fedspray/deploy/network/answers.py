"""How the server's job process reads what sites answer: an answer that is no answer is its site's failure.

NVFlare 2.9.0 ends the process of the job when an answer cannot be decoded or a site calls a message too large, and the
job when a site's answer carries one of three return codes. `guard_answers` stops that, in this process; `guard` has
bounded sizes and senders before.
"""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace
from typing import Any

import msgpack  # type: ignore[import-untyped]
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.fobs import FOBS_TYPE
from nvflare.private.fed.server.server_runner import ServerRunner

from fedspray.deploy.messages.wire import Malformed
from fedspray.deploy.network.protocol import job_of
from fedspray.errors import printable

TASK = "round"
"""NVFlare's name of what sites are asked."""
UNREADABLE = "fedspray.unreadable"
"""Where the reason is in what takes the place of an answer that cannot be read."""
TYPES = {
    "nvflare.apis.shareable.Shareable",
    "nvflare.apis.fl_context.FLContext",
    "nvflare.fuel.utils.fobs.datum.DatumRef",
}
"""All classes that an answer may name; the rest of it is plain values."""
_SECTIONS = (lobs.MARKER_MAIN, lobs.MARKER_DATUM_TEXT, lobs.MARKER_DATUM_BLOB)
_log = logging.getLogger(__name__)
_decode = cell.decode_payload


def guard_answers() -> None:
    """From now on no answer ends this process or its job."""

    def decode(message: Message, encoding_key: str, fobs_ctx: dict[str, Any] | None = None) -> None:
        where = tuple(message.get_header(key) for key in (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC))
        if where != (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE):
            _decode(message, encoding_key, fobs_ctx)
            return
        try:
            check_content(message.payload)
            _decode(message, encoding_key, fobs_ctx)
            check_envelope(message.payload)
        except Exception as error:
            reason = printable(str(error))
            _log.warning("an answer cannot be read: %s", reason)
            message.payload = _unreadable(job_of(message.get_header(MessageHeaderKey.DESTINATION)), reason)

    cell.decode_payload = decode
    cell.os = SimpleNamespace(_exit=lambda _: _log.warning("a message would have ended this process"))
    ServerRunner.ABORT_RETURN_CODES = []


def check_content(payload: Any) -> None:
    """Refuses an encoded answer that names other classes, or parts of which would be written to files."""
    stream = io.BytesIO(b"".join(payload) if isinstance(payload, list) else payload)
    body = b""
    while header := stream.read(lobs.HEADER_LEN):
        marker, special, size = lobs.HEADER_STRUCT.unpack(header)
        if marker not in _SECTIONS or special:
            raise Malformed(f"its section {marker} is not of plain values")
        section = stream.read(size)
        body = body or section
    msgpack.unpackb(body, object_hook=_check_type, strict_map_key=False)


def check_envelope(answer: Any) -> None:
    """Refuses an answer that NVFlare could not hand on."""
    if not isinstance(answer, Shareable) or not isinstance(answer.get_peer_context(), FLContext):
        raise Malformed(f"{type(answer).__name__} came, but an answer is a Shareable with its context")
    if answer.get_header(FLContextKey.TASK_NAME) != TASK or not isinstance(answer.get_cookie_jar(), dict):
        raise Malformed("it does not say what it answers")


def _check_type(content: dict[Any, Any]) -> dict[Any, Any]:
    named = content.get(FOBS_TYPE)
    if named is not None and named not in TYPES:
        raise Malformed(f"it names the class {str(named)[:100]!r}, which no answer has")
    return content


def _unreadable(job: str, reason: str) -> Shareable:
    """An answer to no task: NVFlare finds out whose it is, and the controller which task that ends."""
    context = FLContext()
    context.set_prop(ReservedKey.RUN_NUM, job, private=False, sticky=False)
    answer = Shareable({UNREADABLE: reason})
    answer.set_return_code(ReturnCode.EXECUTION_RESULT_ERROR)
    answer.set_peer_context(context)
    answer.set_header(FLContextKey.TASK_NAME, TASK)
    return answer
