"""Containers: an image's recipe, a compose file and a Kubernetes manifest, for a site and for the coordinator.

All run without capabilities, as the user who owns the folder, on a read-only root. Folders are mounted where they are
on this machine, since a kit remembers where its data are.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedspray.deploy.provisioning.kits import Address

Document = dict[str, Any]
RECIPE = """# The folder needs {wheel} and requirements-site.txt, both of the release: docker build -t {image} .
FROM python:3.11-slim
COPY requirements-site.txt {wheel} /tmp/
RUN pip install --no-cache-dir --no-deps --require-hashes -r /tmp/requirements-site.txt \\
 && pip install --no-cache-dir --no-deps /tmp/{wheel}
ENV HOME=/tmp OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
USER 1000:1000
ENTRYPOINT ["fedspray"]
"""
SECONDS = {"interval": "30s", "timeout": "10s", "start_period": "60s", "retries": 3}
PROBE = {"periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 3}


def recipe() -> dict[str, str]:
    """The image's recipe, by its file's name."""
    return {"Dockerfile": RECIPE.format(image=_image(), wheel=f"fedspray-{version('fedspray')}-py3-none-any.whl")}


def site_compose(kit: Path, name: str, data: Path) -> dict[str, str]:
    """A site's compose file, with the recipe."""
    place = str(kit.resolve())
    health = {"test": ["CMD", "fedspray", "site", "status", place], **SECONDS}
    site = _service(kit, ["site", "start", place, "--foreground"], [f"{place}:{place}", f"{data}:{data}:ro"])
    return recipe() | _yaml("compose.yaml", {"services": {f"site-{name}": site | {"healthcheck": health}}})


def project_compose(project: Path, address: Address) -> dict[str, str]:
    """The coordinator's: the server, and what resumes unfinished runs. They see each other's processes."""
    place = str(project.resolve())
    knock = f"import socket; socket.create_connection(('localhost', {address.port}), 5)"
    server = _service(project, ["deploy", "start", place, "--foreground"], [f"{place}:{place}"]) | {
        "ports": [f"{address.port}:{address.port}"],
        "healthcheck": {"test": ["CMD", "python", "-c", knock], **SECONDS},
    }
    runs = _service(project, ["deploy", "resume", place], [f"{place}:{place}"]) | {
        "pid": "service:server",
        "network_mode": "service:server",
        "depends_on": ["server"],
    }
    return recipe() | _yaml("compose.yaml", {"services": {"server": server, "runs": runs}})


def site_manifest(kit: Path, name: str, data: Path) -> dict[str, str]:
    """A site's Deployment. The kit is in two secrets, what it writes on a volume, its data on a claim of the site's."""
    place, label = str(kit.resolve()), f"fedspray-site-{_label(name)}"
    folder = str(data if data.is_dir() else data.parent)
    status = ["fedspray", "site", "status", place]
    container = _container("site", ["site", "start", place, "--foreground"]) | {
        "readinessProbe": {"exec": {"command": status}, **PROBE},
        "livenessProbe": {"exec": {"command": ["sh", "-c", f"{' '.join(status)}; test $? -ne 3"]}, **PROBE},
        "volumeMounts": [
            {"name": "state", "mountPath": place},
            {"name": "startup", "mountPath": f"{place}/startup", "readOnly": True},
            {"name": "local", "mountPath": f"{place}/local", "readOnly": True},
            {"name": "data", "mountPath": folder, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    copy = "cp /secret/* /startup && chmod 600 /startup/*"  # a key that its group can read is refused
    first = _container("keys", []) | {
        "command": ["sh", "-c", copy],
        "volumeMounts": [
            {"name": "secret", "mountPath": "/secret", "readOnly": True},
            {"name": "startup", "mountPath": "/startup"},
        ],
    }
    volumes = [
        {"name": "secret", "secret": {"secretName": f"{label}-startup"}},
        {"name": "local", "secret": {"secretName": f"{label}-local"}},
        {"name": "startup", "emptyDir": {"medium": "Memory"}},
        _claimed("state", label),
        _claimed("data", f"{label}-data"),
        {"name": "tmp", "emptyDir": {}},
    ]
    pod = _pod(kit, [container], volumes) | {"initContainers": [first]}
    head = (
        f"# First: kubectl create secret generic {label}-startup --from-file={kit}/startup\n"
        f"#        kubectl create secret generic {label}-local --from-file={kit}/local\n"
        f"# and a claim {label}-data that holds {folder}.\n"
    )
    return recipe() | _yaml(f"{label}.yaml", _claim(label), _deployment(label, pod), head=head)


def project_manifest(project: Path, address: Address) -> dict[str, str]:
    """The coordinator's Deployment, whose two containers see each other's processes, its volume and its port."""
    place, label = str(project.resolve()), f"fedspray-server-{_label(project.resolve().name)}"
    mounts = [{"name": "project", "mountPath": place}, {"name": "tmp", "mountPath": "/tmp"}]
    server = _container("server", ["deploy", "start", place, "--foreground"]) | {
        "ports": [{"containerPort": address.port}],
        "readinessProbe": {"tcpSocket": {"port": address.port}, **PROBE},
        "volumeMounts": mounts,
    }
    runs = _container("runs", ["deploy", "resume", place]) | {"volumeMounts": mounts}
    pod = _pod(project, [server, runs], [_claimed("project", label), {"name": "tmp", "emptyDir": {}}])
    port = {"port": address.port, "targetPort": address.port}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": label},
        "spec": {"type": "LoadBalancer", "selector": {"app": label}, "ports": [port]},
    }
    head = f"# First copy {place} onto the volume of the claim {label}; {address.host} must lead to the Service.\n"
    shared = pod | {"shareProcessNamespace": True}
    return recipe() | _yaml(f"{label}.yaml", _claim(label), _deployment(label, shared), service, head=head)


def _image() -> str:
    return f"fedspray-site:{version('fedspray')}"


def _label(name: str) -> str:
    """A name as Kubernetes allows it."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")


def _service(folder: Path, command: list[str], volumes: list[str]) -> Document:
    owner = folder.stat()
    return {
        "image": _image(),
        "build": ".",
        "command": command,
        "user": f"{owner.st_uid}:{owner.st_gid}",
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": ["/tmp"],
        "volumes": volumes,
        "restart": "unless-stopped",
    }


def _container(name: str, arguments: list[str]) -> Document:
    return {
        "name": name,
        "image": _image(),
        "args": arguments,
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
    }


def _pod(folder: Path, containers: list[Document], volumes: list[Document]) -> Document:
    user = folder.stat().st_uid or 1000  # never root
    return {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
        "volumes": volumes,
    }


def _deployment(label: str, pod: Document) -> Document:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": label},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # a kit has one process at a time
            "selector": {"matchLabels": {"app": label}},
            "template": {"metadata": {"labels": {"app": label}}, "spec": pod},
        },
    }


def _claim(name: str) -> Document:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": asked}


def _claimed(name: str, claim: str) -> Document:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def _yaml(name: str, *documents: Document, head: str = "") -> dict[str, str]:
    import yaml

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:
            """No anchors: people read this."""
            return True

    return {name: head + yaml.dump_all(documents, Dumper=Plain, sort_keys=False, width=120)}
