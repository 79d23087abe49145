from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedspray.deploy.messages.wire import Ask, Malformed, Reply, freeze, thaw
from fedspray.engine.worker import Request

ASK = Ask(3, Request(2, best_round=1, from_round=1), {"gnn.weight": torch.rand(1, 4, 2), "n": torch.tensor([7])})
REPLY = Reply(
    {"w": torch.rand(1, 3)}, {"evaluation.loss": torch.rand(1, 3).double()}, True, None, False, "ab" * 32, 0.5, 0.25
)


def test_what_is_packed_is_unpacked() -> None:
    head, arrays = ASK.pack()
    again = Ask.unpack(head, thaw(freeze(arrays), 1000))
    assert (again.seed, again.request) == (3, ASK.request)
    assert all(torch.equal(again.message[name], ASK.message[name]) for name in ASK.message)
    head, arrays = REPLY.pack()
    back = Reply.unpack(head, thaw(freeze(arrays), 1000))
    assert (back.trained, back.error, back.model, back.seconds) == (True, None, "ab" * 32, 0.5)
    assert torch.equal(back.uplink["w"], REPLY.uplink["w"])
    assert back.counts["evaluation.loss"].dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"trained": 1}, "trained is 1"),
        ({"error": 5}, "error is 5"),
        ({"more": 1}, "are needed"),
        ({"model": "f" * 63}, "model is '"),
        ({"model": "F" * 64}, "model is '"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"cpu_seconds": -1}, "cpu_seconds is -1"),
        ({"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_a_reply_with_odd_fields(change: dict[str, Any], complaint: str) -> None:
    head, arrays = REPLY.pack()
    with pytest.raises(Malformed, match=complaint):
        Reply.unpack({**head, **change}, arrays)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"uplink.w": np.zeros((2, 3), dtype=np.float32)}, "one client's row"),
        ({"uplink.w": np.float32(1)}, "not an array"),
        ({"uplink.w": np.array([["text"]])}, "not an array"),
        ({"uplink.w": np.array([[object()]])}, "not an array"),
        ({3: np.zeros((1, 1))}, "not an array"),
        ([1, 2], "arrays by name"),
    ],
)
def test_a_reply_with_odd_arrays(arrays: Any, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        Reply.unpack(REPLY.pack()[0], arrays)


@pytest.mark.parametrize("frozen", [None, "text", b"", b"no safetensors at all", {"w": np.zeros(1)}])
def test_what_is_not_arrays_is_refused(frozen: Any) -> None:
    with pytest.raises(Malformed):
        thaw(frozen, 1000)


def test_more_bytes_than_a_message_has_are_not_read() -> None:
    frozen = freeze({"w": np.zeros(1000, dtype=np.float32)})
    assert len(frozen) > 4000
    with pytest.raises(Malformed, match=rf"{len(frozen):,} bytes came, but no message has more than 4,000"):
        thaw(frozen, 4000)


def test_a_header_that_promises_more_than_it_has_costs_no_memory() -> None:
    header = b'{"w":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}}'
    with pytest.raises(Malformed, match="cannot be read"):
        thaw(len(header).to_bytes(8, "little") + header, 1000)


@pytest.mark.parametrize("field", ["error", "trained", "model"])
def test_texts_of_sites_are_cut_and_cannot_move_a_cursor(field: str) -> None:
    head, arrays = REPLY.pack()
    text = "\x1b[2J\x1b]0;owned\x07\r\n\u202e" + "x" * 5_000_000
    try:
        said = Reply.unpack({**head, field: text}, arrays).error
    except Malformed as error:
        said = str(error)
    assert said is not None
    assert said.isprintable()
    assert len(said) <= 300


def test_a_request_with_odd_fields() -> None:
    head, arrays = ASK.pack()
    with pytest.raises(Malformed, match=r"the fields \['best_round', .* are needed"):
        Ask.unpack({**head, "request": {"round_index": 1}}, arrays)


@pytest.mark.parametrize(
    ("field", "value"), [("round_index", "2"), ("round_index", True), ("train", 1), ("detail", None)]
)
def test_fields_of_another_type_are_refused(field: str, value: Any) -> None:
    head, arrays = ASK.pack()
    with pytest.raises(Malformed, match=f"{field} is .*, which is not of the right type"):
        Ask.unpack({**head, "request": {**head["request"], field: value}}, arrays)
