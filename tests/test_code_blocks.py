"""Every block of code in the documentation runs: page by page, in a folder and a Python session of the page's own.

A block titled with a file name is a file of that folder. TOML is read by what would read it. Training is cut short
(one round, two seeds, small banks); tests named after a page check the figures that it prints. A block below
``<!-- not run: REASON -->`` is left out, and the list at the end of this file says how many there are.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedspray.cli.main import app, run_command
from fedspray.cli.pages import examples
from fedspray.cli.study import read_study
from fedspray.datasets.banks import Banks
from fedspray.deploy.site import policy
from fedspray.experiment import Experiment, RoundSettings, RunSettings

ROOT = Path(__file__).parents[1]
LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
PAGES = [page for page in LISTED.stdout.split() if not page.startswith("src/")]
"""Those in src/ are what `fedspray new` writes: tests/cli/test_new_command.py plays them."""
BLOCK = re.compile(
    r'^(?:<!-- not run: (?P<why>.+?) -->\n)?```(?P<language>\w*)(?: title="(?P<title>.+?)")?\n(?P<code>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)
DATA = {"algorithms/fedspray.md", "compare.md", "datasets.md", "report.md", "reproduction.md", "runs.md"}
SLOW = {"compare.md", "reproduction.md", "report.md", "python.md", "links.md"}


@dataclass(frozen=True)
class Block:
    """A block of a page: `why` it is left out, and the file it is, if either."""

    why: str | None
    language: str
    title: str | None
    code: str


@cache
def blocks(page: str) -> list[Block]:
    found = BLOCK.finditer((ROOT / page).read_text())
    return [block for block in (Block(**each.groupdict()) for each in found) if block.language not in ("", "text")]


def marks(page: str) -> list[pytest.MarkDecorator]:
    name = page.removeprefix("docs/")
    return [pytest.mark.data] * (name in DATA) + [pytest.mark.slow] * (name in SLOW)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round, two seeds at most, 60 customers for each bank, and one process."""

    def at_most(cls: type, name: str, most: Callable[[Any], Any]) -> None:
        check = cls.__post_init__  # type: ignore[attr-defined]

        def cut(self: Any) -> None:
            check(self)
            object.__setattr__(self, name, most(self))

        monkeypatch.setattr(cls, "__post_init__", cut)

    at_most(RoundSettings, "rounds", lambda it: min(it.rounds, 1))
    at_most(RunSettings, "seeds", lambda it: it.seeds[:2])
    at_most(Banks, "num_nodes", lambda it: 60 * it.num_clients)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})


@pytest.fixture(scope="session")
def three_banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages about tables and models speak of, under the names they have there."""
    folder = tmp_path_factory.mktemp("three-banks")
    shutil.copytree(ROOT / "examples" / "banks" / "data", folder / "data")
    north = folder / "data" / "north"
    for name in ("customers", "transfers", "new-transfers"):
        shutil.copy(north / f"{name}.csv", folder / f"{name}.csv")
    shutil.copy(north / "new-customers.csv", folder / "new.csv")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        tables = ["--nodes", "data/{client}/customers.csv", "--edges", "data/{client}/transfers.csv"]
        run("import", *tables, "--suggest", "schema.toml")
        run("import", "--schema", "schema.toml", "--out", "federation")
        run("run", "--dataset", "./federation", "--rounds", "1", "--out", "run")
        shutil.copy("federation/clients/north/graph.npz", "mine.npz")
        for name in ("north", "south", "west"):
            run("schema", "count", "schema.toml", "--nodes", f"data/{name}/customers.csv", "--site", name,
                "--out", f"{name}.json")  # fmt: skip
    return folder


def run(*words: str) -> None:
    assert run_command(list(words)) == 0, " ".join(words)


def take(folder: Path, *names: str) -> None:
    """Copies files and folders into the page's folder."""
    for name in names:
        copy = shutil.copytree if (folder / name).is_dir() else shutil.copy
        copy(folder / name, name)


def for_tables(banks: Path, *_: object) -> None:
    take(banks, "data", "run", "customers.csv", "transfers.csv", "new.csv", "new-transfers.csv")
    take(banks, "south.json", "west.json")
    for name in ("proposal.toml", "ours.toml"):
        shutil.copy(banks / "schema.toml", name)


def for_models(banks: Path, *_: object) -> None:
    take(banks, "run", "schema.toml", "mine.npz", "customers.csv", "transfers.csv", "new.csv")


def for_python(*_: object) -> None:
    """A graph, and the algorithm of docs/extend.md."""
    import fedspray as fs

    fs.build_federation("banks", clients=1).clients[0].graph.to_npz("graph.npz")
    (method,) = [block for block in blocks("docs/extend.md") if block.title == "mypkg/mod.py"]
    write(method)


def for_runs(*_: object) -> None:
    import fedspray as fs

    pubmed = fs.build_federation("pubmed", partitioner="files", partition_dir="partitions/PubMed")
    pubmed.clients[0].graph.to_npz("mine.npz")


def for_coordinator(*_: object) -> None:
    for name in ("north", "south"):
        run("site", "request", f"kit-{name}", "--name", name)
        shutil.copy(f"kit-{name}/{name}.csr", f"{name}.csr")


def for_site(_: object, kit: str = "fraud-north") -> None:
    """What the coordinator does in the meantime."""
    for_python()
    sites = ["--site", "north", "--site", "south", "--host", "fl.example.org"]
    run("deploy", "init", "fraud", *sites, "--features", "32", "--classes", "2", "--backbone", "gcn")
    run("deploy", "sign", "fraud", f"{kit}/north.csr")
    shutil.copy("fraud/zips/north.zip", "north.zip")


def for_privacy(banks: Path) -> None:
    run("site", "request", "KIT", "--name", "north")
    for_site(banks, "KIT")
    run("site", "unpack", "KIT", "north.zip")


BEFORE: dict[tuple[str, int], Callable[..., None]] = {
    ("docs/tables.md", 0): for_tables,
    ("docs/models.md", 0): for_models,
    ("docs/python.md", 0): for_python,
    ("docs/privacy.md", 0): for_privacy,
    ("docs/runs.md", 0): for_runs,
    ("docs/deployment/coordinator.md", 0): for_coordinator,
    ("docs/deployment/site.md", 1): for_site,
    ("examples/banks/README.md", 0): lambda banks: take(banks, "data"),
    ("examples/banks/README.md", 2): lambda banks: take(banks, "south.json", "west.json"),
}
"""What a page takes for granted, by the block that needs it."""


def write(block: Block) -> None:
    """A titled block as a file; pieces with the same title make one file."""
    file = Path(block.title or "")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        stream.write(block.code)


def shell(code: str) -> None:
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "fedspray", f"only fedspray runs here; mark the block as not run: {line}"
            run(*words[1:])


def read_toml(code: str, study: Path) -> None:
    """By the reader of a schema, a study (also a table to add to the page's own) or an experiment."""
    file = Path("read.toml")
    file.write_text((study.read_text() if code.startswith("[compare") else "") + code)
    if "[nodes]" in code:
        run("schema", "check", str(file))
    elif "unasked" in code:
        Path("state").mkdir()
        file.rename(Path("state") / policy.FILE)
        policy.Policy.read(Path())
    elif "[compare" in code:
        read_study(file, None)
    else:
        Experiment.from_values(Experiment.read_values(file), str(file))


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks(page)) for page in PAGES if blocks(page)])
def test_the_blocks_of_a_page_run(
    page: str, short: None, three_banks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    if page.removeprefix("docs/") in DATA:
        monkeypatch.setenv("FEDSPRAY_DATA", str(request.getfixturevalue("real_data")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not Path(place, "mypkg").exists()])
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
        del sys.modules[name]  # of another page or test, which has other files in it
    session: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.title:
            write(block)
    for number, block in enumerate(blocks(page)):
        if prepare := BEFORE.get((page, number)):
            prepare(three_banks)
        if block.why:
            continue
        if block.language == "toml":
            read_toml(block.code, Path("study.toml"))
        elif block.language == "sh":
            shell(block.code)
        elif block.title:
            compile(block.code, block.title, "exec")  # a command below runs it
        else:
            exec(compile(block.code, page, "exec"), session)


def test_examples_of_help_pages_parse() -> None:
    from fedspray.cli.document import commands

    for line in (line for command in commands().values() for line in examples(command)):
        words = shlex.split(line.partition("fedspray ")[2].partition(" >")[0].replace("$(cat token)", "abc"))
        app.parse_args(words, print_error=False, exit_on_error=False)


def test_every_block_is_seen() -> None:
    """No language, marker or place that the expression above overlooks."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert 2 * len(BLOCK.findall(text)) == len(re.findall(r"^\s*```", text, re.MULTILINE)), page
        assert text.count("<!-- not run") == sum(block.why is not None for block in blocks(page)), page
        assert {block.language for block in blocks(page)} <= {"sh", "python", "toml"}, page


def test_few_blocks_are_not_run() -> None:
    left_out = {page: sum(block.why is not None for block in blocks(page)) for page in PAGES}
    assert {page: count for page, count in left_out.items() if count} == NOT_RUN


NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 1,
    "docs/algorithms/comparison.md": 1,
    "docs/compare.md": 1,
    "docs/deployment.md": 3,
    "docs/deployment/coordinator.md": 1,
    "docs/deployment/records.md": 2,
    "docs/deployment/site.md": 2,
    "docs/get-started.md": 1,
    "docs/index.md": 1,
    "docs/models.md": 1,
    "docs/performance.md": 1,
    "docs/reproduction.md": 3,
    "docs/runs.md": 1,
}
"""Set-ups, clusters, second machines, and hours of work: each says which."""
