"""Sites that come and go, and certificates that are renewed, in one project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from clocks import clock
from secrets_of import OWN_KEYS, holders

from fedspray.data.federation import Task
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import read_events
from fedspray.deploy.provisioning import certificates, members
from fedspray.deploy.provisioning.archive import take_certificates, unpack
from fedspray.deploy.provisioning.certificates import certificate_of, make_request, read_certificate, warning_of
from fedspray.deploy.provisioning.federation import init_project
from fedspray.deploy.provisioning.kits import Address, check_policies
from fedspray.deploy.provisioning.membership import Applicant, add, approve, known_of, read_sites, remove, renew
from fedspray.deploy.provisioning.project import Project
from fedspray.deploy.site.kit import Site
from fedspray.errors import InputError
from fedspray.experiment import RunSettings

LIST = """
[[site]]
name = "north"
organisation = "North_Bank"
contact = "it@north.example"
nodes = 1500

[[site]]
name = "south"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "sites.toml").write_text(LIST)
    organisations, about = known_of(read_sites(tmp_path / "sites.toml"))
    agreement = Agreement.between(
        "toy", tuple(organisations), Task(5, 3), RunSettings(values={"rounds": 2, "min_clients": 2})
    )
    more: dict[str, Any] = {"organisations": organisations, "requests": None, "make_keys": False, "about": about}
    init_project(tmp_path / "toy", agreement, Address("localhost", 1), grace=5, valid_days=40, **more)
    return Project.open(tmp_path / "toy")


def join(project: Project, name: str, kit: Path) -> Site:
    return unpack(approve(project, make_request(kit, name)), kit)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[site", "not a TOML"),
        ("name = 3", r"\[\[site\]\] for each"),
        ("site = []", r"\[\[site\]\] for each"),
        ("[[site]]\ncontact = 'x'", "has no name"),
        ("[[site]]\nname = 'x'\nnodes = '3'", "nodes = '3' in"),
        ("[[site]]\nname = 'x'\nnodes = true", "nodes = True in"),
        ("[[site]]\nname = 'x'\nnode = 3", "node = 3 in"),
    ],
)
def test_lists_that_are_none(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "sites.toml").write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_sites(tmp_path / "sites.toml")


def test_what_is_known_about_a_site_is_kept(project: Project, tmp_path: Path) -> None:
    assert project.about == {"north": {"contact": "it@north.example", "nodes": 1500}}
    assert join(project, "north", tmp_path / "kit").expected_nodes == 1500
    subject = read_certificate(tmp_path / "kit" / "startup" / "client.crt").subject
    assert subject.rfc4514_string() == "O=North_Bank,CN=north"


def test_a_site_joins(project: Project, tmp_path: Path) -> None:
    join(project, "north", tmp_path / "north")
    before = project.agreement()
    assert join(project, "east", tmp_path / "east").name == "east"
    assert holders(project.folder) == OWN_KEYS
    project = Project.open(project.folder)
    assert project.agreement().fingerprint() == before.fingerprint(), "until the sites have agreed"
    assert before.joins(project.proposed()) == ("east",)
    assert Site.open(tmp_path / "east").agreement().fingerprint() == project.proposed().fingerprint()
    assert members.read(project.server)["east"].key is not None
    check_policies(tmp_path / "east")
    with pytest.raises(InputError, match="east is a site of"):
        add(project, [Applicant("east")])
    with pytest.raises(InputError, match="host name"):
        add(project, [Applicant("localhost")])


def test_a_site_leaves_and_comes_back_with_a_new_key(project: Project, tmp_path: Path) -> None:
    join(project, "north", tmp_path / "north")
    assert remove(project, "north")
    assert not remove(project, "north")
    assert members.left(project.server) == {"north"}
    assert members.read(project.server)["north"].key is None
    assert [event["sender"] for event in read_events(project.server) if event["event"] == "removed"] == ["north"]
    with pytest.raises(InputError, match="'west' is not"):
        remove(project, "west")
    before = project.proposed().fingerprint()
    join(project, "north", tmp_path / "again")
    assert members.left(project.server) == set()
    assert project.proposed().fingerprint() == before, "its number was kept"


@pytest.mark.slow
@pytest.mark.parametrize("new_authority", [False, True])
def test_renewal_changes_no_key(project: Project, tmp_path: Path, new_authority: bool) -> None:
    kit = tmp_path / "north"
    join(project, "north", kit)
    old, root = certificate_of(kit), read_certificate(kit / "startup" / "rootCA.pem")
    key, known = (kit / "startup/client.key").read_bytes(), (members.read(project.server), project.coordinator_key())
    (made,) = renew(project, valid_days=300, new_authority=new_authority)
    assert certificate_of(kit) == old, "until the site takes it on"
    assert take_certificates(made, kit).name == "north"
    assert (kit / "startup/client.key").read_bytes() == key
    assert (old["days_left"], certificate_of(kit)["days_left"]) == (39, 299)
    assert (members.read(project.server), project.coordinator_key()) == known
    assert holders(project.folder) == OWN_KEYS
    new = read_certificate(kit / "startup" / "rootCA.pem")
    assert (new.public_key() == root.public_key()) is not new_authority
    server = read_certificate(project.server / "startup" / "server.crt")
    server.verify_directly_issued_by(new)
    if not new_authority:
        server.verify_directly_issued_by(root)  # sites that renew later trust the renewed server
    names = [read_certificate(project.coordinator / "startup" / "client.crt").subject.rfc4514_string()]
    assert names == ["1.2.840.113549.1.9.2=project_admin,O=coordinator,CN=coordinator@fedspray.org"]
    join(project, "south", tmp_path / "south")
    with pytest.raises(InputError, match=r"'north', but.*kit of 'south'"):
        take_certificates(made, tmp_path / "south")


def test_everybody_is_warned_in_time(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    join(project, "north", tmp_path / "kit")
    kits = (tmp_path / "kit", project.server, project.coordinator)
    assert [warning_of(kit) for kit in kits] == [None] * 3
    monkeypatch.setattr(certificates, "datetime", clock(days=12))
    for kit in kits:
        assert "ends in 27 days" in (warning_of(kit) or "")
