from __future__ import annotations

import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspray.seeds import generator, stream_key, torch_generator

NAMES = st.lists(st.one_of(st.text(), st.integers()), max_size=3)


def test_a_stream_is_the_same_each_time_and_in_each_process() -> None:
    assert generator(7, "split", "a").integers(10**9) == generator(7, "split", "a").integers(10**9)
    code = "from fedspray.seeds import stream_key; print(stream_key(7, 'split', 'a', 3))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == stream_key(7, "split", "a", 3)


def test_streams_are_pinned() -> None:
    # A change here changes every split and every result that was ever published.
    assert stream_key(0, "split", "client_00") == 0xA33DF14B87645D7D8CE8E4C26EE143CD


@given(st.integers(0, 3), NAMES, st.integers(0, 3), NAMES)
def test_other_names_are_other_streams(
    seed: int, names: list[str | int], other_seed: int, other_names: list[str | int]
) -> None:
    same = (seed, names) == (other_seed, other_names)
    assert (stream_key(seed, *names) == stream_key(other_seed, *other_names)) is same


def test_a_number_and_its_text_are_different_names() -> None:
    assert stream_key(0, 1) != stream_key(0, "1")
    assert stream_key(0, "a", "b") != stream_key(0, "ab")


def test_torch_streams_do_not_touch_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    first = torch.rand(3, generator=torch_generator(1, "init", 0))
    again = torch.rand(3, generator=torch_generator(1, "init", 0))
    other = torch.rand(3, generator=torch_generator(1, "init", 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
