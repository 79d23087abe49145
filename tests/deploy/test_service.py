"""Units for systemd, as systemd itself judges them; which runs go on after a reboot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("nvflare")

from fedspray.deploy.locks import Lock
from fedspray.deploy.operations import containers
from fedspray.deploy.operations.runs import resumable_runs
from fedspray.deploy.operations.service import project_units, site_units
from fedspray.deploy.provisioning.kits import Address
from fedspray.deploy.provisioning.project import Project

ANALYZE = shutil.which("systemd-analyze")


def units(folder: Path) -> dict[str, str]:
    for name in ("a kit", "fraud", "50%"):
        (folder / name).mkdir()
    return site_units(folder / "a kit", "north", folder / "50%", "root") | project_units(folder / "fraud", "root")


def test_what_the_units_run(tmp_path: Path) -> None:
    made = units(tmp_path)
    assert set(made) == {
        "fedspray-site-north.service",
        "fedspray-server-fraud.service",
        "fedspray-runs-fraud.service",
    }
    site = made["fedspray-site-north.service"]
    assert f'fedspray site start "{tmp_path}/a kit" --foreground\n' in site
    assert f'ReadWritePaths="{tmp_path}/a kit"\n' in site
    assert f" {tmp_path}/50%%\n" in site
    assert f"fedspray deploy resume {tmp_path}/fraud\n" in made["fedspray-runs-fraud.service"]
    assert "After=network-online.target fedspray-server-fraud.service\n" in made["fedspray-runs-fraud.service"]


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on this machine (Debian: systemd)")
def test_systemd_takes_them_and_finds_them_safe(tmp_path: Path) -> None:
    made = units(tmp_path)
    for name, text in made.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in made]
    verified = subprocess.run([str(ANALYZE), "verify", *files], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    for file in files:
        judged = [str(ANALYZE), "security", "--offline=true", "--no-pager", "--threshold=30", file]
        subprocess.run(judged, capture_output=True, check=True)


def made_for(kind: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is written for a site and for a project: the site's documents, and all of them."""
    kit, data, project = folder / "kit", folder / "graph.npz", folder / "fraud"
    for place in (kit, project):
        place.mkdir()
    data.touch()
    address = Address("fl.example.org", 8002)
    if kind == "compose":
        site, server = containers.site_compose(kit, "north_1", data), containers.project_compose(project, address)
    else:
        site, server = containers.site_manifest(kit, "north_1", data), containers.project_manifest(project, address)
    texts = [text for made in (site, server) for name, text in made.items() if name.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    (folder / "compose.yaml").write_text(texts[1])
    (folder / "Dockerfile").write_text(site["Dockerfile"])
    return documents[0] if kind == "compose" else documents[1], documents


def test_the_compose_files(tmp_path: Path) -> None:
    site, documents = made_for("compose", tmp_path)
    service = site["services"]["site-north_1"]
    kit = tmp_path / "kit"
    assert service["command"] == ["site", "start", str(kit), "--foreground"]
    assert service["volumes"] == [f"{kit}:{kit}", f"{tmp_path}/graph.npz:{tmp_path}/graph.npz:ro"]
    assert service["healthcheck"]["test"] == ["CMD", "fedspray", "site", "status", str(kit)]
    for each in (row for document in documents for row in document["services"].values()):
        assert each["user"] == f"{os.getuid()}:{os.getgid()}"
        assert (each["read_only"], each["cap_drop"]) == (True, ["ALL"])
    runs = documents[1]["services"]["runs"]
    assert (runs["pid"], runs["network_mode"]) == ("service:server", "service:server")  # it asks for the server's pid
    assert "--require-hashes -r /tmp/requirements-site.txt" in (tmp_path / "Dockerfile").read_text()


def test_the_compose_files_are_valid(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="a tool of the extra dev")
    made_for("compose", tmp_path)
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*check, str(tmp_path / "compose.yaml")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_manifests(tmp_path: Path) -> None:
    deployment, documents = made_for("kubernetes", tmp_path)
    assert [each["kind"] for each in documents] == [
        *("PersistentVolumeClaim", "Deployment"),
        *("PersistentVolumeClaim", "Deployment", "Service"),
    ]
    pods = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        mounted = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {mount["name"] for mount in container["volumeMounts"]} <= mounted
    (site,) = pods[0]["containers"]
    assert deployment["metadata"]["name"] == "fedspray-site-north-1"
    assert site["readinessProbe"]["exec"]["command"] == ["fedspray", "site", "status", str(tmp_path / "kit")]
    secrets = [volume["secret"]["secretName"] for volume in pods[0]["volumes"] if "secret" in volume]
    assert secrets == ["fedspray-site-north-1-startup", "fedspray-site-north-1-local"]
    assert pods[1]["shareProcessNamespace"] is True


def test_kubernetes_takes_the_manifests(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="a tool of the extra dev").validate
    for document in made_for("kubernetes", tmp_path)[1]:
        validate(document, "1.33", strict=True)


def test_which_runs_are_resumed(tmp_path: Path) -> None:
    project = Project(tmp_path, Address("localhost", 1))

    def run(name: str, progress: dict[str, Any] | None = None, **files: str) -> Path:
        folder = project.run_folder(name)
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text("{}")
        os.utime(folder / "settings.json", (1000, 1000))
        if progress:
            (folder / "progress.json").write_text(json.dumps(progress))
        return folder

    run("waits")
    run("failed", {"state": "failed"})
    run("stopped", {"state": "stopped"})
    (run("done") / "result.json").write_text("{}")
    os.utime(run("new") / "settings.json")
    lock = Lock(run("driven") / "driver.lock")
    lock.acquire(1)
    try:
        assert resumable_runs(project) == ["failed", "waits"]
    finally:
        lock.release()
