"""Units for systemd: a site, the server, and the driver that brings unfinished runs to their end after a reboot.

`systemd-analyze security` gives them an exposure of at most 3.0 (the lower the better). Not closed are what PyTorch
needs: memory that is written and then executed, and all of ``/proc``.
"""

from __future__ import annotations

import sys
from pathlib import Path

UNIT = """[Unit]
Description={description}
After=network-online.target{after}
Wants=network-online.target

[Service]
User={user}
ExecStart={command}
Restart=always
RestartSec=5
KillMode=control-group
UMask=0077
ReadWritePaths={writable}
ReadOnlyPaths={readable}

NoNewPrivileges=true
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=true
PrivateDevices=true
PrivateUsers=true
DevicePolicy=closed
ProtectClock=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectControlGroups=true
ProtectProc=invisible
RemoveIPC=true
KeyringMode=private
LockPersonality=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def site_units(kit: Path, name: str, data: Path, user: str) -> dict[str, str]:
    """The unit of a site, by its file's name."""
    unit = _unit(f"FedSpray site {name}", ["site", "start", str(kit.resolve()), "--foreground"], kit, [data], user)
    return {f"fedspray-site-{name}.service": unit}


def project_units(project: Path, user: str) -> dict[str, str]:
    """The units of the coordinator's machine, by their files' names."""
    name, folder = project.resolve().name, str(project.resolve())
    server = f"fedspray-server-{name}.service"
    start, resume = ["deploy", "start", folder, "--foreground"], ["deploy", "resume", folder]
    return {
        server: _unit(f"FedSpray server {name}", start, project, [], user),
        f"fedspray-runs-{name}.service": _unit(f"FedSpray runs of {name}", resume, project, [], user, f" {server}"),
    }


def _unit(
    description: str, arguments: list[str], writable: Path, readable: list[Path], user: str, after: str = ""
) -> str:
    program = Path(sys.executable).with_name("fedspray")
    return UNIT.format(
        description=description,
        after=after,
        user=user,
        command=" ".join(map(_quoted, [str(program), *arguments])),
        writable=_quoted(str(writable.resolve())),
        readable=" ".join(_quoted(str(each)) for each in [Path(sys.prefix), *readable]),
    )


def _quoted(word: str) -> str:
    """A word of a unit: systemd reads % as the beginning of a variable."""
    word = word.replace("%", "%%")
    return f'"{word}"' if any(letter.isspace() for letter in word) else word
