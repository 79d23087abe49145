"""Unpacking: around the site's own key, and nothing else is taken for a kit."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from fedspray.data.federation import Task
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.provisioning.archive import unpack
from fedspray.deploy.provisioning.certificates import make_request
from fedspray.deploy.provisioning.federation import init_project
from fedspray.deploy.provisioning.kits import Address
from fedspray.errors import InputError
from fedspray.experiment import RunSettings


@pytest.fixture(scope="module")
def zips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Zip files for `own`, which made its key, and for `made`, whose key is in it."""
    folder = tmp_path_factory.mktemp("project")
    make_request(folder / "requests", "own")
    agreement = Agreement.between("toy", ("own", "made"), Task(5, 3), RunSettings())
    more: dict[str, Any] = {"organisations": {}, "requests": folder / "requests", "make_keys": True}
    init_project(folder / "toy", agreement, Address("localhost", 1), grace=5, valid_days=9, **more)
    return folder / "toy" / "zips"


def test_without_the_key_nothing_is_left(zips: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"client\.key is missing"):
        unpack(zips / "own.zip", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_not_replaced(zips: Path, tmp_path: Path) -> None:
    make_request(tmp_path / "kit", "made")
    key = (tmp_path / "kit" / "startup" / "client.key").read_bytes()
    with pytest.raises(InputError, match=r"brings a private key, but .*kit has one already"):
        unpack(zips / "made.zip", tmp_path / "kit")
    assert (tmp_path / "kit" / "startup" / "client.key").read_bytes() == key


def test_a_kit_is_not_replaced(zips: Path, tmp_path: Path) -> None:
    unpack(zips / "made.zip", tmp_path / "kit")
    with pytest.raises(InputError, match="start-up kit already"):
        unpack(zips / "made.zip", tmp_path / "kit")


def test_files_that_are_no_kits(zips: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.zip is missing"):
        unpack(tmp_path / "nowhere.zip", tmp_path / "new")
    (tmp_path / "text.zip").write_text("please")
    with pytest.raises(InputError, match="not a zip"):
        unpack(tmp_path / "text.zip", tmp_path / "new")
    for name, size in (("a/b", 1), ("large", 10_000_001)):
        with zipfile.ZipFile(tmp_path / "other.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, bytes(size))
        with pytest.raises(InputError, match="is not a site's kit"):
            unpack(tmp_path / "other.zip", tmp_path / "new")
    assert not (tmp_path / "new").exists()
