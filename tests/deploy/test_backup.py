"""Backups: complete, checked file by file, without keys unless they are asked for; a restored run ends the same."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from sites import Crash, Sites, stable
from toys import ragged_federation

from fedspray import files
from fedspray.deploy import ledger
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.locks import PID_FILE, Lock
from fedspray.deploy.messages.wire import Ask
from fedspray.deploy.provisioning.backup import LIST, backup, missing_keys, restore
from fedspray.deploy.provisioning.kits import Address
from fedspray.deploy.provisioning.project import Project
from fedspray.errors import InputError, MissingDataError
from fedspray.experiment import RunSettings

KEYS = ("ca/rootCA.key", "kits/server/startup/server.key", "kits/coordinator/startup/client.key")
PASSING = ("kits/server/console.log", "kits/server/fedspray.pid", "kits/server/storage/jobs/x", "runs/run/driver.lock")


def project(folder: Path) -> Path:
    """A project in which every file is its own name."""
    kept = ["agreement.json", "ca/rootCA.pem", "zips/north.zip", "kits/server/local/members.json"]
    kept += ["kits/server/startup/fed_server.json", "kits/server/events.jsonl"]
    for name in (*KEYS, *PASSING, *kept, "kits/north/startup/client.crt", "runs/run/seed-0/rounds.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    Project(folder, Address("localhost")).save()
    return folder


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return set(opened.namelist()) - {LIST}


def test_what_is_in_a_backup(tmp_path: Path) -> None:
    folder = project(tmp_path / "toy")
    backup(folder, tmp_path / "bare.zip", keys=False)
    backup(folder, tmp_path / "all.zip", keys=True)
    assert names(tmp_path / "all.zip") - names(tmp_path / "bare.zip") == {*KEYS, "zips/north.zip"}
    assert names(tmp_path / "all.zip").isdisjoint(PASSING)
    assert "runs/run/seed-0/rounds.jsonl" in names(tmp_path / "bare.zip")
    assert (tmp_path / "bare.zip").stat().st_mode & 0o077 == 0
    new = tmp_path / "deep" / "new"
    restore(tmp_path / "bare.zip", new, "project")
    assert missing_keys(new, "project") == [new / key for key in KEYS]
    restore(tmp_path / "all.zip", tmp_path / "whole", "project")
    assert missing_keys(tmp_path / "whole", "project") == []
    for path in (tmp_path / "whole", *(tmp_path / "whole").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    told = [event["event"] for event in ledger.read_events(tmp_path / "whole" / "kits" / "server")]
    assert told == ["backup", "restored"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = project(tmp_path / "toy")
    (tmp_path / "taken.zip").touch()
    with pytest.raises(InputError, match="exists already"):
        backup(folder, tmp_path / "taken.zip", keys=False)
    backup(folder, tmp_path / "good.zip", keys=False)
    with pytest.raises(InputError, match="exists already"):
        restore(tmp_path / "good.zip", folder, "project")
    with pytest.raises(InputError, match="is the backup of a project, but that of a site is needed"):
        restore(tmp_path / "good.zip", tmp_path / "new", "site")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.zip", "taken.zip", "toy"]


def test_what_is_in_use_is_not_copied(tmp_path: Path) -> None:
    folder = project(tmp_path / "toy")
    for file in (folder / "kits" / "server" / PID_FILE, folder / "runs" / "run" / "driver.lock"):
        lock = Lock(file)
        lock.acquire(1.0)
        with pytest.raises(InputError, match="is in use: stop it first"):
            backup(folder, tmp_path / "new.zip", keys=False)
        lock.release()
    assert not (tmp_path / "new.zip").exists()


@pytest.mark.parametrize("damage", ["changed", "missing", "added", "no list", "no zip"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(tmp_path: Path, damage: str) -> None:
    backup(project(tmp_path / "toy"), tmp_path / "good.zip", keys=False)
    with zipfile.ZipFile(tmp_path / "good.zip") as old, zipfile.ZipFile(tmp_path / "bad.zip", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if (name == "ca/rootCA.pem" and damage == "missing") or (name == LIST and damage == "no list"):
                continue
            new.writestr(name, b"other" if name == "ca/rootCA.pem" and damage == "changed" else content)
        if damage == "added":
            new.writestr("../kits/evil", b"")
    if damage == "no zip":
        (tmp_path / "bad.zip").write_bytes(b"no zip")
    with pytest.raises(InputError):
        restore(tmp_path / "bad.zip", tmp_path / "new", "project")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip", "good.zip", "toy"]


def test_what_is_no_backup_or_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="neither a project nor a site"):
        backup(tmp_path, tmp_path / "x.zip", keys=False)
    with pytest.raises(MissingDataError, match="is missing"):
        restore(tmp_path / "x.zip", tmp_path / "new", "site")


def test_a_run_that_is_restored_everywhere_ends_with_the_same_bits(tmp_path: Path) -> None:
    federation = ragged_federation()
    agreement = Agreement(federation.roster, RunSettings(algorithm="fedspray", values={"rounds": 4}))
    (tmp_path / "calm").mkdir()
    expected = Sites(tmp_path / "calm", federation, agreement).run()
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()

    def power_cut(name: str, ask: Ask) -> None:
        if (name, ask.request.round_index) == ("client_01", 3):
            raise Crash

    sites = Sites(old, federation, agreement)
    sites.trouble = power_cut
    with pytest.raises(Crash):
        sites.run()
    Project(old / "project", Address("localhost")).folder.mkdir()
    Project(old / "project", Address("localhost")).save()
    shutil.copytree(old / "run", old / "project" / "runs" / "run")
    backup(old / "project", tmp_path / "project.zip", keys=False)
    for name in agreement.roster.clients:
        backup(old / name, tmp_path / f"{name}.zip", keys=True)
    shutil.rmtree(old)
    new.mkdir()
    again = Sites(new, federation, agreement)
    for name in agreement.roster.clients:
        shutil.rmtree(new / name)
        restore(tmp_path / f"{name}.zip", new / name, "site")
        card = files.read_json(new / name / "local" / "site.json")
        files.write_json(new / name / "local" / "site.json", {**card, "data": str(new / "data" / "clients" / name)})
    restore(tmp_path / "project.zip", new / "project", "project")
    shutil.rmtree(new / "run")
    (new / "project" / "runs" / "run").rename(new / "run")
    assert stable(again.run()) == stable(expected)
    for name in agreement.roster.clients:
        assert ledger.verify(new / name)["lines"] > 5
        assert "restored" in [event["event"] for event in ledger.read_events(new / name)]
