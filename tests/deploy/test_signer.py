"""Jobs that were signed with real keys: the coordinator's are taken, and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from nvflare.lighter.utils import Identity, serialize_cert, sign_folders

from fedspray import files
from fedspray.data.federation import Task
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.network.signer import CoordinatorsJobs, check_job_signer
from fedspray.deploy.provisioning.authority import Authority
from fedspray.deploy.provisioning.certificates import new_key, read_key, write_key
from fedspray.deploy.provisioning.kits import ADMIN, Address, make_kits, write_job
from fedspray.errors import InputError
from fedspray.experiment import RunSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose sites are north and south."""
    made = tmp_path_factory.mktemp("project")
    agreement = Agreement.between("toy", ("north", "south"), Task(5, 3), RunSettings())
    make_kits(made, agreement, Address("localhost", 1), keys_for=("north", "south"))
    return made


@pytest.fixture
def kit(folder: Path, tmp_path: Path) -> Path:
    """South's, with a job in it as NVFlare puts it there."""
    shutil.copytree(folder / "kits" / "south", tmp_path / "kit")
    job = write_job(tmp_path / "job", "run", Agreement.load(tmp_path / "kit" / "local"), 5.0, 1)
    (tmp_path / "kit" / "8d1f").mkdir()
    shutil.move(job / "app", tmp_path / "kit" / "8d1f" / "app_south")
    return tmp_path / "kit"


def signed_by(startup: Path, kit: Path) -> Path:
    app = kit / "8d1f" / "app_south"
    sign_folders(str(app), read_key(startup / "client.key"), str(startup / "client.crt"))
    return app


def test_the_coordinators_job_is_taken(folder: Path, kit: Path) -> None:
    app = signed_by(folder / "kits" / "coordinator" / "startup", kit)
    check_job_signer(app, kit)
    assert CoordinatorsJobs().validate(str(app)) == ("", {})


def a_site(folder: Path, kit: Path) -> Path:
    return folder / "kits" / "north" / "startup"


def another_admin(folder: Path, kit: Path) -> Path:
    """The coordinator's name and role, from the right authority, but another key."""
    startup, key = kit / "another", new_key()
    startup.mkdir()
    issued = Authority.load(folder / "ca").issue(Identity(ADMIN, "coordinator", "project_admin"), key.public_key())
    (startup / "client.crt").write_bytes(issued)
    write_key(startup / "client.key", key)
    return startup


@pytest.mark.parametrize(("signer", "name"), [(a_site, "north"), (another_admin, ADMIN)])
def test_other_members_of_the_federation(
    folder: Path, kit: Path, signer: Callable[[Path, Path], Path], name: str
) -> None:
    app = signed_by(signer(folder, kit), kit)
    with pytest.raises(InputError, match=f"the job is signed by '{name}', but only the coordinator"):
        check_job_signer(app, kit)
    reason, _ = CoordinatorsJobs().validate(str(app))
    assert f"'{name}'" in reason
    (line,) = files.read_lines(kit / "ledger.jsonl")
    assert (line["event"], line["sender"]) == ("refused", "server")
    assert f"'{name}'" in line["what"]


def a_foreign_authority(app: Path, folder: Path) -> None:
    key, foreign = new_key(), Authority.make("fedspray", 9)
    startup = app.parents[1] / "foreign"
    startup.mkdir()
    issued = foreign.issue(Identity(ADMIN, "coordinator", "project_admin"), key.public_key())
    (startup / "client.crt").write_bytes(issued + serialize_cert(foreign.certificate))
    write_key(startup / "client.key", key)
    signed_by(startup, app.parents[1])


def only_the_certificate(app: Path, folder: Path) -> None:
    """North's signatures beside the coordinator's certificate."""
    signed_by(folder / "kits" / "north" / "startup", app.parents[1])
    for file in app.rglob(".__nvfl_submitter.crt"):
        shutil.copy(folder / "kits" / "coordinator" / "startup" / "client.crt", file)


def no_signature(app: Path, folder: Path) -> None:
    for file in app.rglob(".__nvfl_*"):
        file.unlink()


def no_signature_of_a_folder(app: Path, folder: Path) -> None:
    for file in (app / "config").glob(".__nvfl_*"):
        file.unlink()


def a_changed_file(app: Path, folder: Path) -> None:
    with (app / "config" / "config_fed_client.json").open("a") as stream:
        stream.write(" ")


def another_file(app: Path, folder: Path) -> None:
    (app / "config" / "more.json").write_text("{}")


def another_folder(app: Path, folder: Path) -> None:
    (app / "custom").mkdir()


def a_link(app: Path, folder: Path) -> None:
    (app / "config" / "link.json").symlink_to(app / "config" / "config_fed_client.json")


@pytest.mark.parametrize(
    "change",
    [
        a_foreign_authority,
        only_the_certificate,
        no_signature,
        no_signature_of_a_folder,
        a_changed_file,
        another_file,
        another_folder,
        a_link,
    ],
)
def test_jobs_that_changed_after_the_coordinator_signed(
    folder: Path, kit: Path, change: Callable[[Path, Path], None]
) -> None:
    app = signed_by(folder / "kits" / "coordinator" / "startup", kit)
    change(app, folder)
    with pytest.raises(InputError, match="not signed, or"):
        check_job_signer(app, kit)


def test_one_folder_that_another_member_signed(folder: Path, kit: Path) -> None:
    app = signed_by(folder / "kits" / "coordinator" / "startup", kit)
    north = folder / "kits" / "north" / "startup"
    sign_folders(str(app / "config"), read_key(north / "client.key"), str(north / "client.crt"))
    with pytest.raises(InputError, match="signed by 'north'"):
        check_job_signer(app, kit)


def test_an_agreement_that_names_no_coordinator(folder: Path, kit: Path) -> None:
    app = signed_by(folder / "kits" / "coordinator" / "startup", kit)
    file = kit / "local" / "agreement.json"
    content = json.loads(file.read_text())
    del content["coordinator"]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="can be trusted"):
        check_job_signer(app, kit)


def test_a_damaged_agreement(folder: Path, kit: Path) -> None:
    app = signed_by(folder / "kits" / "coordinator" / "startup", kit)
    for content in ("{", "[]", '{"coordinator": 7}'):
        (kit / "local" / "agreement.json").write_text(content)
        assert "agreement.json" in CoordinatorsJobs().validate(str(app))[0]
