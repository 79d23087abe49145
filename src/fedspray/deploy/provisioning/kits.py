"""Start-up kits: one folder for the server, each site and the coordinator, made by NVFlare and then hardened.

NVFlare's own defaults let a project's admin send code to the sites, read their files and stream their
logs. A kit of ours takes two classes from jobs and gives nobody these rights.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspray import files
from fedspray.data.federation import Roster
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.provisioning import members
from fedspray.deploy.server.kit import Server
from fedspray.deploy.site.kit import Site
from fedspray.errors import InputError, MissingDataError
from fedspray.files import private_files

if TYPE_CHECKING:
    from fedspray.deploy.provisioning.authority import Authority

CONTROLLER = "fedspray.deploy.server.controller.RunController"
EXECUTOR = "fedspray.deploy.site.executor.SiteExecutor"
VALIDATOR = {"path": "fedspray.deploy.network.signer.CoordinatorsJobs", "args": {}}
FORMER = {
    "fedspray.deploy.controller.RunController": CONTROLLER,
    "fedspray.deploy.executor.SiteExecutor": EXECUTOR,
    "fedspray.deploy.signer.CoordinatorsJobs": VALIDATOR["path"],
}
"""Where older versions had these classes; their kits name them there."""
ADMIN = "coordinator@fedspray.org"
PROJECT = "fedspray"

SITE_RIGHTS = {"submit_job": "any", "manage_job": "any", "view": "any"}
"""What the coordinator may do at a site: give it a job; manage it, which is ending it, deleting its working folder and
setting its log level; look at its status."""
SERVER_RIGHTS = {**SITE_RIGHTS, "clone_job": "none", "download_job": "any", "operate": "any"}
NO_RIGHTS = {"byoc": "none", "shell_commands": "none"}

FETCH_EVERY = 0.05
"""Seconds between a site's questions for its next task; more often costs the server more than it gains."""
CHATTY = (
    "nvflare.private.fed.client.client_runner",
    "nvflare.private.fed.client.communicator",
    "nvflare.private.fed.client.fed_client",
    "nvflare.private.fed.server.server_commands",
    "nvflare.private.fed.server.server_runner",
    "nvflare.apis.impl.wf_comm_server",
)
"""Parts of NVFlare that log every task."""


@dataclass(frozen=True)
class Address:
    """Where the server is reached."""

    host: str
    port: int = 8002

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", self.host):
            raise InputError(f"{self.host!r} is not a host name, but the server's is needed: fl.example.org")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@private_files()
def make_kits(
    folder: Path,
    agreement: Agreement,
    address: Address,
    *,
    keys_for: Collection[str],
    organisations: Mapping[str, str] | None = None,
    valid_days: int = 360,
) -> Agreement:
    """Makes ``folder``/ca and ``folder``/kits: the authority, and a kit for the server, each site and the coordinator.

    Args:
        folder: the project's.
        agreement: goes into every kit.
        address: of the server; its certificate is for this host.
        keys_for: sites whose private keys and certificates are made here; the others' kits have none yet.
        organisations: whose each site is; by default the site's own name.
        valid_days: how long the certificates are valid.

    Returns:
        The agreement, which names the coordinator now.
    """
    from fedspray.deploy.provisioning.authority import Authority
    from fedspray.deploy.provisioning.certificates import CERTIFICATE, key_fingerprint, read_certificate

    kits = folder / "kits"
    for secret in (folder / "ca", kits):
        secret.mkdir()
    authority = Authority.make(PROJECT, valid_days)
    authority.save(folder / "ca")
    with tempfile.TemporaryDirectory(dir=kits) as workshop:
        made = _provision(Path(workshop), agreement.roster, address, organisations or {}, authority, keys_for)
        shutil.move(made / address.host, kits / "server")
        shutil.move(made / ADMIN, kits / "coordinator")
        for name in agreement.roster.clients:
            shutil.move(made / name, kits / name)
    certificate = read_certificate(kits / "coordinator" / "startup" / CERTIFICATE)
    agreement = replace(agreement, coordinator=key_fingerprint(certificate.public_key()))
    for unused in ("fl_admin.sh", "readme.txt", "system_info.ipynb"):
        (kits / "coordinator" / "startup" / unused).unlink()
    _harden_server(kits / "server")
    place_server(kits / "server")
    agreement.save(kits / "server" / "local")
    for name in agreement.roster.clients:
        _finish_site(kits / name, name, agreement)
        if name in keys_for:
            key = read_certificate(kits / name / "startup" / CERTIFICATE).public_key()
            members.put_key(kits / "server", name, key_fingerprint(key))
    return agreement


@private_files()
def add_kits(
    folder: Path, agreement: Agreement, names: Collection[str], address: Address, organisations: Mapping[str, str]
) -> None:
    """Makes the kits of further sites of a project, without certificates."""
    from fedspray.deploy.provisioning.authority import Authority

    kits, roster = folder / "kits", replace(agreement.roster, clients=tuple(names))
    authority = Authority.load(folder / "ca")
    with tempfile.TemporaryDirectory(dir=kits) as workshop:
        made = _provision(Path(workshop), roster, address, organisations, authority, ())
        for name in names:
            _finish_site(made / name, name, agreement)
            if (kits / name).exists():  # it was removed, and comes back
                shutil.rmtree(kits / name)
            shutil.move(made / name, kits / name)


def _finish_site(kit: Path, name: str, agreement: Agreement) -> None:
    _harden_site(kit)
    agreement.save(kit / "local")
    Site(kit, name, None).save()


def place_server(kit: Path) -> None:
    """Writes into a server's kit where it is: NVFlare wants absolute paths, and a project may have been moved."""
    update_paths(kit)
    file, storage = kit / "local" / "resources.json", kit.resolve() / "storage"
    resources = files.read_json(file)
    try:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
        (manager,) = (part for part in resources["components"] if part["id"] == "job_manager")
        manager["args"]["uri_root"] = str(storage / "jobs")
    except (LookupError, TypeError, ValueError):
        raise InputError(f"{file} is not as fedspray deploy init wrote it: put it back") from None
    files.write_json(file, resources)
    Server(kit, kit.parent.parent / "runs").save()


def update_paths(kit: Path) -> None:
    """Has a kit that an older version made name our classes by where they are now."""
    file = kit / "local" / "resources.json"
    files.read_json(file, "a start-up kit")  # or the sentence that says why not
    old = new = file.read_text()
    for former, path in FORMER.items():
        new = new.replace(f'"{former}"', f'"{path}"')
    if new != old:
        files.write_text(file, new)


def check_policies(kit: Path) -> None:
    """Refuses a site's kit that would take other jobs than the coordinator's, or run another class than ours."""
    file = kit / "local" / "resources.json"
    if not file.is_file():
        raise MissingDataError(f"{file} is missing: unpack the kit's zip file again")
    resources = files.read_json(file)
    if resources.get("class_allow_list") != [EXECUTOR] or resources.get("class_list_enforcement_mode") != "enforce":
        raise InputError(f"{file} allows other classes than {EXECUTOR}")
    if resources.get("app_validator") != VALIDATOR:
        raise InputError(f"{file} takes jobs without {VALIDATOR['path']}, which checks who signed them")


def write_job(folder: Path, run: str, agreement: Agreement, grace: float, min_sites: int) -> Path:
    """Writes a job: JSON that names our two classes, a run and an agreement, and nothing else."""
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    named = {"run": run, "agreement": agreement.fingerprint()}
    meta = {
        "name": run,
        "resource_spec": {},
        "min_clients": min_sites,
        "deploy_map": {"app": ["@ALL"]},
    }
    server = {
        "format_version": 2,
        "server": {"task_request_interval": FETCH_EVERY},
        "workflows": [{"id": "run", "path": CONTROLLER, "args": {**named, "grace": grace}}],
        "components": [],
    }
    client = {
        "format_version": 2,
        "default_task_fetch_interval": FETCH_EVERY,
        "executors": [{"tasks": ["round"], "executor": {"path": EXECUTOR, "args": named}}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    files.write_json(folder / "meta.json", meta)
    files.write_json(config / "config_fed_server.json", server)
    files.write_json(config / "config_fed_client.json", client)
    return folder


def _provision(
    folder: Path,
    roster: Roster,
    address: Address,
    organisations: Mapping[str, str],
    authority: Authority,
    keys_for: Collection[str],
) -> Path:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    from fedspray.deploy.provisioning.authority import CertificateBuilder

    said = io.StringIO()
    try:
        project = Project(PROJECT, roster.name, props={"api_version": 3, "name": PROJECT})
        project.set_server(address.host, "coordinator", {"fed_learn_port": address.port, "admin_port": address.port})
        for name in roster.clients:
            project.add_client(name, organisations.get(name, name).replace("-", "_"), {})
        project.add_admin(ADMIN, "coordinator", {"role": "project_admin"})
        builders = [
            WorkspaceBuilder(),
            # NVFlare's plain TCP is faster, but there one client that stalls in its handshake blocks all others.
            StaticFileBuilder(config_folder="config", scheme="grpc"),
            CertificateBuilder(authority, keys_for),
        ]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            context = Provisioner(str(folder), builders).provision(project)
    except ValueError as error:
        raise InputError(f"the kits cannot be made: {error}") from None
    made = context.get(CtxKey.CURRENT_PROD_DIR)
    if context.get(CtxKey.BUILD_ERROR) or made is None:
        raise InputError(f"the kits cannot be made: {said.getvalue().strip().splitlines()[-1]}")
    return Path(made)


def _harden_server(kit: Path) -> None:
    resources = _resources(kit, CONTROLLER)
    resources["servers"][0] |= {"heart_beat_timeout": 60, "admin_timeout": 3.0}
    kept = []
    for component in resources["components"]:
        if component["id"] == "job_scheduler":
            component["args"] |= {
                "min_schedule_interval": 1.0,
                "max_schedule_interval": 5.0,
                "max_schedule_count": 1000,
            }
        if component["id"] != "log_receiver":
            kept.append(component)
    resources["components"] = kept
    _write_policies(kit, resources, SERVER_RIGHTS)


def _harden_site(kit: Path) -> None:
    resources = _resources(kit, EXECUTOR)
    resources["allow_log_streaming"] = False
    resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    _write_policies(kit, resources, SITE_RIGHTS)


def _write_log_config(local: Path) -> None:
    """NVFlare's logs, without the lines that it writes for every task of every site."""
    content = json.loads((local / "log_config.json.default").read_text())
    content["loggers"] |= {name: {"level": "WARNING"} for name in CHATTY}
    files.write_json(local / "log_config.json", content)
    (local / "log_config.json.default").unlink()


def _resources(kit: Path, own_class: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((kit / "local" / "resources.json.default").read_text())
    content["class_list_enforcement_mode"] = "enforce"
    content["class_allow_list"] = [own_class]
    content["app_validator"] = VALIDATOR
    return content


def _write_policies(kit: Path, resources: Mapping[str, Any], rights: Mapping[str, str]) -> None:
    local = kit / "local"
    files.write_json(local / "resources.json", resources)
    # Roles that are not named here have no rights at all.
    policy = {"format_version": "1.0", "permissions": {"project_admin": {**rights, **NO_RIGHTS}}}
    files.write_json(local / "authorization.json", policy)
    _write_log_config(local)
    for unused in ("resources.json.default", "authorization.json.default", "privacy.json.sample"):
        (local / unused).unlink()
    for script in ("start.sh", "sub_start.sh", "stop_fl.sh"):
        (kit / "startup" / script).unlink()
    (kit / "readme.txt").unlink()
