"""Malformed inputs by the thousand, over all readers and flags: ``python tests/torture.py --count 10000``.

Every case is drawn from its number, so that one that fails can be played again (``--first 1234 --count 1``). It runs a
command in this process, in a folder of its own, and must end with exit code 0, 2 or 3 within 30 seconds, in words that
call nothing a bug; a refused input leaves no file, and nothing is ever written elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspray import files
from fedspray.cli.main import run_command
from fedspray.deploy import ledger
from fedspray.experiment import knobs
from fedspray.runs.store import versions

SECONDS, MEMORY = 30, 8 << 30
TINY = ["--dataset", "banks", "--clients", "2", "--nodes", "60", "--rounds", "1", "--set", "hidden=4"]
ALLOWED = (0, 2, 3, 4)
"""Done, refused, stopped, and not connected."""

NONSENSE: list[Any] = [
    None, True, -1, 0, 1, 3, 2**40, 10**20, int("9" * 400), -0.5, 1e-300, 1e308, "", " ", "none", "nan", "inf", "-inf",
    "x" * 3000, "../../up", "/dev/null", "/", "~", "\0", "\x1b[31m", "[red]", "Ω≈ç√", "\ud800",
    "a=b", "1,2,3", "0x10", "1e400",
    "{}", "[]", "'", '"', "%s%n", "*", "-", "--", "$(touch oops)", [], {}, [1, [2, [3]]], {"a": {"b": 1}}, [None],
]  # fmt: skip


class Overdue(BaseException):
    """A case takes too long."""


@dataclass
class Prepared:
    """What cases damage a copy of."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Prepared:
        """Runs, a federation, a comparison with its cells, a graph, files in TOML, a project and a site's kit."""
        with contextlib.chdir(folder):
            _must("run", *TINY, "--out", "run")
            _must("partition", "--dataset", "banks", "--clients", "2", "--nodes", "60", "--out", "federation")
            _must("compare", *TINY, *STUDY_FLAGS, "--jobs", "1", "--bootstrap", "0")
            shutil.copytree("run", "broken")
            Path("broken/result.json").unlink()
            Path("broken/seed-0/result.json").unlink()
            Path("graph.npz").write_bytes(next(Path("federation").rglob("graph.npz")).read_bytes())
            Path("experiment.toml").write_text(EXPERIMENT)
            Path("study.toml").write_text(STUDY)
            _deploy()
        return cls(folder)


def _deploy() -> None:
    """A project with a run that goes on, and a site's kit with a ledger."""
    sites = ["--site", "north", "--site", "south", "--host", "127.0.0.1", "--port", "9", "--features", "5"]
    _must("deploy", "init", "project", *sites, "--classes", "2", "--make-keys", "--rounds", "1", "--set", "hidden=4")
    _must("site", "unpack", "kit", "project/zips/north.zip")
    run = Path("project/runs/first")
    shutil.copytree("broken", run)
    shutil.copy("project/agreement.json", run)
    answer = {"failed": None, "bytes_up": 9, "bytes_down": 9, "seconds": 0.1, "ledger": "0" * 64}
    exchange = {"round": 1, "time": 1.0, "seconds": 0.1, "sites": {"north": answer}}
    (run / "seed-0" / "exchanges.jsonl").write_text(f"{json.dumps(exchange)}\n" * 2)
    files.write_json(run / "jobs.json", {"jobs": [{"id": "1", "time": 1.0}]})
    files.write_json(run / "progress.json", {"job": "1", "pid": 1, "state": "running", "round": 1, "time": 1.0})
    status = {"pid": 1, "state": "connected", "since": "2026-01-01", "reason": None, "time": "2026-01-01"}
    files.write_json(Path("kit/status.json"), status)
    left = {"time": "2026-01-01", "run": "first", "seed": 0, "round": 1, "bytes": 9, "fields": {"uplink.num_train": 9}}
    for _ in range(3):
        ledger.write_answer(Path("kit"), left)
    for folder in (Path("kit"), Path("project/kits/server"), run):
        ledger.write_event(folder, ledger.CONNECTED, "north", "it came")


EXPERIMENT = """
dataset = "banks"
clients = 2
nodes = 60
algorithm = "fedspray"
rounds = 1
participation = 1.0
seeds = 1
split = "40/30/30"
link = ["noise sigma=0.1"]

[set]
hidden = 4
lr = 0.01
"""
STUDY = """
nodes = 60
rounds = 1

[compare]
datasets = [{ name = "b", dataset = "banks", clients = 2 }]
algorithms = ["local", { name = "avg", algorithm = "fedavg", set = { lr = 0.01 } }]
backbones = ["gcn"]
seeds = [0]
reference = "local"

[compare.set.gcn]
hidden = 4
"""


def _must(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert run_command(arguments) == 0, arguments


# ---- damage --------------------------------------------------------------------------------------


def damage_text(draw: random.Random, data: bytes) -> bytes:
    """Some bytes otherwise: flipped, cut, doubled, put in."""
    broken = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        place = draw.randrange(len(broken) + 1)
        how = draw.randrange(5)
        if how == 0 and broken:
            broken[place % len(broken)] ^= 1 << draw.randrange(8)
        elif how == 1:
            del broken[place : place + draw.choice((1, 10, 1000))]
        elif how == 2:
            broken[place:place] = broken[place : place + draw.choice((1, 20, 200))]
        elif how == 3:
            broken[place:place] = str(draw.choice(NONSENSE)).encode("utf-8", "surrogatepass")
        else:
            broken[place:place] = draw.choice((b"[" * 3000, b"9" * 5000, b"\0\0", b"\xff\xfe", b"\n\n", b"{" * 3000))
    return bytes(broken)


def damage_json(draw: random.Random, data: bytes) -> bytes:
    """A value of another kind somewhere, a key less or more; with the seal that fits, or with none, as old files."""
    lines = data.decode().splitlines() if data.count(b"}\n{") else [data.decode()]
    place = draw.randrange(len(lines))
    content = json.loads(lines[place])
    sealed = content.pop("seal", None) if isinstance(content, dict) else None
    for _ in range(draw.choice((1, 1, 3))):
        spots = [*_spots(content)]
        if spots:
            owner, key = draw.choice(spots)
            if draw.random() < 0.25:
                del owner[key]
            else:
                owner[key] = copy.deepcopy(draw.choice([value for value in NONSENSE if value != "\ud800"]))
    if sealed is not None and draw.random() < 0.5:
        content = files.seal(content)
    lines[place] = json.dumps(content)
    return "\n".join(lines).encode()


def _spots(content: Any) -> Iterator[tuple[Any, Any]]:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield content, key
        yield from _spots(value)


# ---- cases ---------------------------------------------------------------------------------------


def flags(draw: random.Random, prepared: Prepared) -> list[str]:
    """One or two flags of an experiment with nonsense."""
    known = [knob for knob in knobs().values() if knob.name not in ("device",)]
    words: list[str] = []
    for knob in draw.sample(known, draw.choice((1, 1, 2))):
        value = str(draw.choice(NONSENSE))
        if knob.is_table and draw.random() < 0.8:
            name = draw.choice(("hidden", "lr", "layers", "dropout", "local_epochs", "fanout", "sample_nodes", value))
            value = f"{name}={value}"
        elif knob.is_list and draw.random() < 0.7:
            value = draw.choice(("noise sigma=", "compress up_bits=", "noise keys=", "used-rows ")) + value
        words += [knob.flag, value]
    command = draw.choice(("run", "run", "run", "plan", "inspect", "partition", "compare", "sweep"))
    if command in ("inspect", "partition"):
        return [command, *TINY[:6], *words, *(["--out", "cut"] if command == "partition" else [])]
    more = {"sweep": ["--vary", "lr=0.1"], "compare": ["--jobs", "1"]}.get(command, [])
    return [command, *TINY, *more, *words, *(["--out", "out"] if command == "run" else [])]


def toml(draw: random.Random, prepared: Prepared) -> list[str]:
    """A damaged experiment or study."""
    name, command = draw.choice((("experiment.toml", "run"), ("study.toml", "compare")))
    data = (prepared.folder / name).read_bytes()
    if draw.random() < 0.5:  # another value
        lines = data.decode().splitlines()
        place = draw.choice([i for i, line in enumerate(lines) if "=" in line])
        value = draw.choice((str(draw.choice(NONSENSE)), json.dumps(draw.choice(NONSENSE[:-6]), ensure_ascii=True)))
        lines[place] = f"{lines[place].partition('=')[0]}= {value}"
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
    else:
        data = damage_text(draw, data)
    Path(name).write_bytes(data)
    more = ["--jobs", "1", "--bootstrap", "0"] if command == "compare" else ["--out", "out"]
    return [command, name, *more]


def graph(draw: random.Random, prepared: Prepared) -> list[str]:
    """A damaged graph."""
    Path("graph.npz").write_bytes(damage_text(draw, (prepared.folder / "graph.npz").read_bytes()))
    return ["inspect", "--dataset", "graph.npz", "--clients", "2", "--partitioner", "metis"]


def stored(draw: random.Random, prepared: Prepared) -> list[str]:
    """A damaged file of a run, a federation, a study; read by a command that needs it."""
    owner, commands = draw.choice(READERS)
    shutil.copytree(prepared.folder / owner, owner)
    found = sorted(path for path in Path(owner).rglob("*") if path.is_file() and not files.is_leftover(path))
    target = draw.choice(found)
    if target.suffix in (".json", ".jsonl") and draw.random() < 0.8:
        target.write_bytes(damage_json(draw, target.read_bytes()))
    elif draw.random() < 0.1:
        target.unlink()
    else:
        target.write_bytes(damage_text(draw, target.read_bytes()))
    return list(draw.choice(commands))


MODEL = "run/seed-0/models/bank_00"
STUDY_FLAGS = ["--algorithm", "local", "--algorithm", "fedavg", "--cells", "study/cells", "--out", "study/out"]
READERS: list[tuple[str, list[list[str]]]] = [
    (
        "run",
        [
            ["report", "run", "--out", "page.html"],
            ["predict", "--model", MODEL, "--graph", "graph.npz"],
            ["run", "--resume", "run"],
        ],
    ),
    ("broken", [["run", "--resume", "broken"]]),
    (
        "federation",
        [
            ["inspect", "--dataset", "federation"],
            ["run", "--dataset", "federation", "--rounds", "1", "--out", "out"],
        ],
    ),
    ("study", [["compare", *TINY, *STUDY_FLAGS, "--jobs", "1", "--bootstrap", "0"]]),
    (
        "project",
        [
            ["deploy", "status", "project"],
            ["deploy", "amend", "project", "--rounds", "2"],
            ["deploy", "disable", "project", "north"],
            ["deploy", "remove", "project", "south"],
        ],
    ),
    (
        "kit",
        [
            ["site", "status", "kit"],
            ["site", "ledger", "kit"],
            ["site", "ledger", "kit", "--verify"],
            ["site", "check", "kit", "--data", "graph.npz"],
            ["site", "agree", "kit", "kit/local/agreement.json", "--yes"],
        ],
    ),
]
KINDS: list[Callable[[random.Random, Prepared], list[str]]] = [flags, toml, graph, stored, stored]


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    number: int
    arguments: list[str]
    code: int
    said: str
    trouble: str
    """What is wrong with that; empty if nothing is."""


def play(number: int, prepared: Prepared, *, apart: bool = False) -> Outcome:
    """One case, in a new folder; ``apart``: in a process of its own, as a user would."""
    draw = random.Random(number)
    with tempfile.TemporaryDirectory(prefix="case-", dir=prepared.folder.parent) as folder, contextlib.chdir(folder):
        arguments = draw.choice(KINDS)(draw, prepared)
        if "graph.npz" in arguments and not Path("graph.npz").exists():
            shutil.copy(prepared.folder / "graph.npz", "graph.npz")
        before = _listing(Path())
        code, said = _apart(arguments) if apart else _here(arguments)
        left = {name for name in _listing(Path()) - before if not files.is_leftover(Path(name))}
        trains = code == -1 and ": round " in said  # an input that happens to be right, stopped after 30 seconds
        trouble = "" if code in ALLOWED or trains else f"exit code {code}"
        if "bug" in said or "Traceback" in said:
            trouble = "a bug is admitted"
        elif code == 2 and any(name.startswith(("out", "cut", "page", "oops")) for name in left):
            trouble = f"refused, but left {sorted(left)[:3]}"
        elif any(name.endswith(".tmp") for name in _listing(Path())):
            trouble = "half-written file"
    return Outcome(number, arguments, code, said, trouble)


def _listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def _here(arguments: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()

    def stop(*_: Any) -> None:
        raise Overdue

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command(arguments)
    except Overdue:
        code = -1
    except BaseException as error:
        code, _ = 1, err.write(f"Traceback: {type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, err.getvalue()


def _apart(arguments: list[str]) -> tuple[int, str]:
    if any("\0" in word or "\ud800" in word for word in arguments):  # no system can pass these on
        return 2, ""
    command = [sys.executable, "-c", "from fedspray.cli.main import entry_point as run; run()", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stderr


def torture(
    count: int, seconds: float, *, first: int = 0, apart_every: int = 500, out: Path | None = None
) -> list[Outcome]:
    """Plays cases until they, or the seconds, are over; returns those that ended badly, and writes figures."""
    bad, kinds, began = [], Counter[int](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        prepared = Path(folder) / "prepared"
        prepared.mkdir()
        made = Prepared.make(prepared)
        # No data sets and no network: an input that happens to be right downloads nothing.
        os.environ |= {"XDG_CACHE_HOME": str(prepared / "cache"), "FEDSPRAY_DATA": str(prepared)}
        os.environ |= {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
        whole = _listing(prepared)
        for number in range(first, first + count):
            if time.monotonic() - began > seconds:
                break
            outcome = play(number, made, apart=number % apart_every == apart_every - 1)
            kinds[outcome.code] += 1
            if outcome.trouble or _listing(prepared) != whole:
                bad.append(outcome)
                print(
                    f"{number}: {outcome.trouble}: {outcome.arguments}\n    {outcome.said.strip()[-300:]}", flush=True
                )
        outside = sorted(path.name for path in Path(folder).iterdir() if path != prepared)
        assert outside == [], outside
    if out is not None:
        figures = {
            "cases": sum(kinds.values()),
            "first": first,
            "seconds": round(time.monotonic() - began),
            "by_exit_code": {str(code): kinds[code] for code in sorted(kinds)},
            "ended_badly": {str(outcome.number): outcome.trouble for outcome in bad},
            "date": time.strftime("%Y-%m-%d"),
            "versions": versions(),
        }
        files.write_json(out, figures)
    print(f"{sum(kinds.values())} cases, by exit code: {dict(kinds)}; {len(bad)} ended badly")
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, help="figures as JSON")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ["COLUMNS"] = "120"
    sys.exit(bool(torture(given.count, given.seconds, first=given.first, out=given.out)))
