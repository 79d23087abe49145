"""Builds the site: the pages of docs/ and whatever they link to elsewhere in the repository (results, examples, …).

``python docs/site.py`` writes site/; it stops at the first warning and at a link to nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCES = ROOT / "build" / "site"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[)#])")


def main() -> int:
    """Gather the sources, then build."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    gather([page for page in sorted(DOCS.rglob("*")) if page.is_file() and page != Path(__file__)])
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    return done.returncode or int("griffe:" in done.stdout)  # --strict overlooks docstrings that do not fit


def gather(waiting: list[Path]) -> None:
    """Copy pages, with their links pointing at where the site has each file, and all that they link to."""
    taken: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in taken:
            continue
        taken.add(file)
        (SOURCES / place(file)).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix != ".md":
            shutil.copy(file, SOURCES / place(file))
            continue
        text = file.read_text()
        waiting += [target(file, link[1]) for link in LINK.finditer(text)]
        (SOURCES / place(file)).write_text(LINK.sub(lambda link, page=file: moved(page, link[1]), text))


def target(page: Path, link: str) -> Path:
    """The file that a link leads to; a folder is shown by its README."""
    at = (page.parent / link).resolve()
    if at.is_dir():
        at /= "README.md"
    if ROOT not in at.parents or not at.is_file():
        raise SystemExit(f"{page.relative_to(ROOT)} links to {link}, which does not exist")
    return at


def place(file: Path) -> Path:
    """Where a file is in the site: pages as in docs/, everything else below repository/."""
    return file.relative_to(DOCS) if DOCS in file.parents else Path("repository") / file.relative_to(ROOT)


def moved(page: Path, link: str) -> str:
    """A link as it reads in the site."""
    return os.path.relpath(place(target(page, link)), place(page).parent)


if __name__ == "__main__":
    sys.exit(main())
