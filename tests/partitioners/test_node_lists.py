"""The partitioner `files`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspray.data.graph import Graph
from fedspray.errors import InputError, MissingDataError
from fedspray.partitioners.files import Files

GRAPH = Graph.from_arrays(np.ones((20, 1)), [[0], [1]])


def read(folder: Path, **files: str) -> dict[str, list[int]]:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return {name: part.tolist() for name, part in Files(folder).partition(GRAPH, seed=0).items()}


def test_integers_and_floats(tmp_path: Path) -> None:
    parts = read(tmp_path, b="3\n1\n", a="12.0\n1.1e+01\n\n 7 \n")
    assert parts == {"a": [7, 11, 12], "b": [1, 3]}
    assert list(parts) == ["a", "b"]  # by name, whenever they were written


def test_other_and_hidden_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("about these lists")
    (tmp_path / ".a.txt").write_text("not a list")
    assert read(tmp_path, a="1") == {"a": [1]}


@given(
    owners=st.lists(st.sampled_from(["a", "b", "c"]), min_size=20, max_size=20),
    order=st.permutations(range(20)),
    style=st.sampled_from(["{:d}", "{:.1f}", "{:.6e}"]),
)
def test_whatever_the_order_and_the_style(
    tmp_path_factory: pytest.TempPathFactory, owners: list[str], order: list[int], style: str
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    chosen = {name: [node for node in order if owners[node] == name] for name in sorted(set(owners), reverse=True)}
    lines = {
        name: "\n".join(style.format(node if "d" in style else float(node)) for node in nodes)
        for name, nodes in chosen.items()
    }
    assert read(folder, **lines) == {name: sorted(chosen[name]) for name in sorted(chosen)}


@pytest.mark.parametrize("line", ["12.5", "twelve", "-1", "20", "nan", "inf", "1 2", "0x3"])
def test_not_a_node_id(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=rf"a\.txt, line 2: '{line}' is not a node id: .* from 0 to 19"):
        read(tmp_path, a=f"1\n{line}\n")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"b\.txt holds no"):
        read(tmp_path, a="1", b=text)


def test_node_twice_in_one_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.txt, line 3: node 4"):
        read(tmp_path, a="4\n5\n4.0\n")


def test_node_in_two_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"node 5.*a\.txt.*c\.txt"):
        read(tmp_path, a="4\n5\n", b="1", c="5\n")


def test_binary_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"a\.txt is not"):
        read(tmp_path)


def test_no_files_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"holds no \.txt file"):
        read(tmp_path)
    with pytest.raises(MissingDataError, match="nowhere is not"):
        Files(tmp_path / "nowhere").partition(GRAPH)
