"""Answers as they arrive at the server's job process, in NVFlare's own encoding."""

from __future__ import annotations

import contextlib
import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

import msgpack  # type: ignore[import-untyped]
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import lobs
from nvflare.private.fed.server.server_runner import ServerRunner
from nvflare.private.fed.utils.fed_utils import fobs_initialize

from fedspray.deploy.network.answers import TASK, UNREADABLE, guard_answers

fobs_initialize()
JOB = "00000000-0000-0000-0000-000000000000"


class Alive(Exception):
    """NVFlare would have ended the process."""


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What gets through to the job, whose name is `JOB`; the process would end with `Alive`."""
    for owner, name in ((cell, "decode_payload"), (cell, "os"), (ServerRunner, "ABORT_RETURN_CODES")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # is put back afterwards
    monkeypatch.setattr(os, "_exit", lambda _: (_ for _ in ()).throw(Alive()))
    return []


def submit(payload: Any, received: list[Any], topic: str = ServerCommandNames.SUBMIT_UPDATE) -> None:
    """As NVFlare's streams do when the whole of a message is there."""
    headers = {
        StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
        StreamHeaderKey.TOPIC: topic,
        StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
        MessageHeaderKey.DESTINATION: f"server.{JOB}",
    }
    own = SimpleNamespace(
        decode_pass_through_channels=set(), decode_pass_through_topics=set(), get_fobs_context=lambda props: dict(props)
    )
    adapter = cell.Adapter(lambda request: received.append(request.payload), SimpleNamespace(fqcn=f"server.{JOB}"), own)
    adapter.call(SimpleNamespace(headers=headers, result=lambda: payload))


def answer(**content: Any) -> Shareable:
    made, context = Shareable(content), FLContext()
    context.set_prop(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
    made.set_peer_context(context)
    made.set_header(FLContextKey.TASK_NAME, TASK)
    made.add_cookie(FLContextKey.TASK_ID, "task")
    return made


def without(name: str) -> bytes:
    made = answer()
    made.set_header(name, 5)
    return bytes(fobs.dumps(made))


def section(body: bytes, marker: int = lobs.MARKER_MAIN, special: int = 0) -> bytes:
    return bytes(lobs.HEADER_STRUCT.pack(marker, special, len(body)) + body)


UNLISTED = section(msgpack.packb({"__fobs_type__": "subprocess.Popen", "__fobs_data__": ["true"]}))
KNOWN_TO_NVFLARE = {"__fobs_type__": "nvflare.apis.client.Client", "__fobs_data__": {}}


def test_without_the_guard_the_process_ends(received: list[Any]) -> None:
    with pytest.raises(Alive):
        submit(UNLISTED, received)


@pytest.mark.parametrize("size", [10, 11_000_000])
def test_honest_answers_arrive_as_they_are(received: list[Any], size: int) -> None:
    """Bytes beyond 10 MB travel as a section of their own."""
    guard_answers()
    submit(fobs.dumps(answer(head={"a": [1, 2.5, None, True]}, arrays=b"x" * size), buffer_list=True), received)
    (got,) = received
    assert got["head"] == {"a": [1, 2.5, None, True]}
    assert got["arrays"] == b"x" * size
    assert got.get_peer_context().get_job_id() == JOB


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (UNLISTED, "it names the class 'subprocess.Popen', which no answer has"),
        (section(msgpack.packb({"head": KNOWN_TO_NVFLARE})), "it names the class 'nvflare.apis.client.Client'"),
        (section(b"\xc1"), ""),
        (b"short", ""),
        (b"", ""),
        (section(b"\x00") + section(b"0" * 20, lobs.MARKER_DATUM_FILE), "its section 103 is not of plain values"),
        (section(b"\x00") + section(b"0" * 20, lobs.MARKER_DATUM_BLOB, 3), "its section 102 is not of plain values"),
        (section(msgpack.packb([1])), "list came, but an answer is a Shareable with its context"),
        (fobs.dumps(Shareable()), "Shareable came, but an answer is a Shareable with its context"),
        (without(FLContextKey.TASK_NAME), "it does not say what it answers"),
        (without(ReservedHeaderKey.COOKIE_JAR), "it does not say what it answers"),
        (section(b"\x81" * 5000), ""),
    ],
    ids=range(12),
)
def test_what_is_no_answer_is_handed_on_as_such(received: list[Any], payload: bytes, reason: str) -> None:
    guard_answers()
    submit(payload, received)
    (got,) = received
    assert got[UNREADABLE].startswith(reason)
    assert got.get_peer_context().get_job_id() == JOB, "or NVFlare would drop it"
    assert got.get_return_code() not in ServerRunner.ABORT_RETURN_CODES


def test_other_messages_are_read_as_before(received: list[Any]) -> None:
    guard_answers()
    submit(fobs.dumps({"a": 1}), received, topic=ServerCommandNames.GET_TASK)
    assert received == [{"a": 1}]


@pytest.mark.parametrize("guarded", [False, True])
def test_a_site_that_calls_a_message_too_large_does_not_end_the_process(received: list[Any], guarded: bool) -> None:
    """One of four places in which NVFlare ends the process by `os._exit`; a site can send this at any time."""
    job = SimpleNamespace(
        requests_dict={},
        core_cell=SimpleNamespace(my_info=SimpleNamespace(fqcn=f"server.{JOB}")),
        logger=logging.getLogger("test"),
    )
    error = Message({StreamHeaderKey.ERROR_TYPE: BlobSizeError.__name__})
    with contextlib.nullcontext() if guarded else pytest.raises(Alive):
        if guarded:
            guard_answers()
        cell.Cell._process_stream_error(job, error)
