from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from full import no_file_beyond

from fedspray import files
from fedspray.errors import DiskFull, InputError
from fedspray.runs import store


def test_tensors_come_back_bit_for_bit_and_shared_ones_are_written_once(tmp_path: Path) -> None:
    big = torch.randn(100, 50, generator=torch.Generator().manual_seed(0))
    tensors = {"a": big, "same": big, "row": big[:1].expand(1000, 50), "part": big[3:5], "empty": torch.zeros(0)}
    store.write_tensors(tmp_path / "t.safetensors", tensors, {"round": 3})
    back, meta = store.read_tensors(tmp_path / "t.safetensors")
    assert meta == {"round": 3}
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], value) for name, value in tensors.items())
    assert (tmp_path / "t.safetensors").stat().st_size < 100 * 50 * 4 + 3000
    assert [file.name for file in tmp_path.iterdir()] == ["t.safetensors"]  # nothing temporary is left


def test_a_tensor_and_its_rows_for_many_clients_are_told_apart(tmp_path: Path) -> None:
    """What a server keeps and has sent to everyone shares its memory, in another shape."""
    weight = torch.arange(6.0).reshape(2, 3)
    tensors = {"server": weight, "sent": weight.expand(4, 2, 3), "flat": weight.view(6), "again": weight.view(3, 2)}
    store.write_tensors(tmp_path / "t.safetensors", tensors, {})
    back, _ = store.read_tensors(tmp_path / "t.safetensors")
    assert {name: value.tolist() for name, value in back.items()} == {n: v.tolist() for n, v in tensors.items()}


def test_records_beyond_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    log = store.RecordFile(tmp_path / "rounds.jsonl", keep=0)
    for index in range(1, 6):
        log.add({"round": index})
    log.close()
    with (tmp_path / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 6, "va')  # a line cut off by a crash
    again = store.RecordFile(tmp_path / "rounds.jsonl", keep=3)
    again.add({"round": 4})
    again.close()
    assert [record["round"] for record in again.records] == [1, 2, 3, 4]


def test_digest_depends_on_names_values_and_shapes() -> None:
    base = store.digest({"a": torch.zeros(2, 3)})
    assert base == store.digest({"a": torch.zeros(3, 2).T})
    assert base != store.digest({"b": torch.zeros(2, 3)})
    assert base != store.digest({"a": torch.zeros(3, 2)})
    assert base != store.digest({"a": torch.ones(2, 3)})


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"not a model")
    with pytest.raises(InputError, match="readable safetensors file"):
        store.read_tensors(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="is missing"):
        store.read_tensors(tmp_path / "y.safetensors")
    with pytest.raises(InputError, match="not a run folder"):
        files.read_json(tmp_path / "settings.json")


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        files.new_folder(tmp_path)


def add_record(path: Path, record: dict[str, str]) -> None:
    with closing(store.RecordFile(path, keep=1)) as file:
        file.add(record)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_text(path, "x" * 10_000),
        lambda path: store.write_tensors(path, {"w": torch.zeros(10_000)}, {}),
        lambda path: files.append_line(path, "x" * 10_000),
        lambda path: add_record(path, {"x": "y" * 10_000}),
    ],
    ids=["text", "tensors", "line", "record"],
)
def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    path.write_text('{"a": 1}\n')
    with pytest.raises(DiskFull, match=f"the disk is full: {path} cannot be written"), no_file_beyond(5000):
        write(path)
    assert path.read_text().startswith('{"a": 1}\n')
    assert [file.name for file in tmp_path.iterdir()] == ["file"], "nothing half-written takes up room"
    write(path)
    assert path.stat().st_size >= 10_000


def test_other_errors_of_the_system_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.write_text(tmp_path / "missing" / "file", "x")
    with pytest.raises(Exception, match="No such file") as caught:
        store.write_tensors(tmp_path / "missing" / "file", {"w": torch.zeros(1)}, {})
    assert not isinstance(caught.value, DiskFull)
