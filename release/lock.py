"""Writes requirements-site.txt: every package of a site or a server, with its version and the hash of its file.

pip resolves the extra `site`; NVFlare is added by itself, since most of what it requires is never imported here.
The hashes are of the files that pip would install on this machine: its Python, its system, its index.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "requirements-site.txt"
HEAD = """# Made by `make lock`, for {python} on {system}: what a site or a server needs to train, and no more.
#   pip install --no-deps --require-hashes -r requirements-site.txt
"""


def resolve(*arguments: str) -> dict[str, Any]:
    """What pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def lines(report: dict[str, Any]) -> dict[str, str]:
    """A line for each package but our own, by its name."""
    found = {}
    for each in report["install"]:
        name, version = each["metadata"]["name"].lower().replace("_", "-"), each["metadata"]["version"]
        if name != "fedspray":
            digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
            found[name] = f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
    return found


def main() -> None:
    """Writes the file."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    report = resolve("--constraint", "constraints.txt", ".[site]")
    nvflare = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("nvflare=="))
    found = lines(report) | lines(resolve("--no-deps", nvflare))
    here = report["environment"]
    python = f"{here['platform_python_implementation']} {here['python_version']}"
    head = HEAD.format(python=python, system=f"{here['platform_system']} {here['platform_machine']}")
    FILE.write_text(head + "".join(found[name] for name in sorted(found)))
    print(f"{FILE.name}: {len(found)} packages")


if __name__ == "__main__":
    main()
