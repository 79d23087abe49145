"""``fedspray bench``: what a round costs on this machine."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedspray import InputError
from fedspray.cli.flags import AsJson, Count, examples, flag
from fedspray.cli.output import Output, to_json
from fedspray.files import Json

if TYPE_CHECKING:
    from benchmarks.cases import Case

NAME = "benchmark"
"""Of the files that `--out` writes."""

_WHAT, _HOW = "What is measured", "How"


@examples(
    "fedspray bench --quick",
    "fedspray bench --dataset pubmed --backbone sage --algorithm fedspray",
    "fedspray bench --banks 10000/10 --banks 100000/10 --banks 1000000/10 --out growth",
)
def bench(
    *,
    dataset: Annotated[
        list[str] | None, flag("A data set by name, or a saved federation; repeatable.", "NAME|DIR", box=_WHAT)
    ] = None,
    banks: Annotated[
        list[str] | None,
        flag("The built-in data set at this size, e.g. 100000/10; repeatable.", "NODES/CLIENTS", box=_WHAT),
    ] = None,
    backbone: Annotated[
        list[str] | None, flag("gcn, sgc or sage; repeatable.", "NAME", box=_WHAT, default="all")
    ] = None,
    algorithm: Annotated[
        list[str] | None, flag("fedspray or fedavg; repeatable.", "NAME", box=_WHAT, default="both")
    ] = None,
    partitions: Annotated[
        Path | None,
        flag(
            "Folders of client lists (PubMed, …).",
            "DIR",
            box=_WHAT,
            default="partitions, or in FEDSPRAY_DATA; else Louvain",
        ),
    ] = None,
    quick: Annotated[bool, flag("About a minute: fewer cases and repetitions.", box=_WHAT)] = False,
    reference: Annotated[
        Path | None, flag("A Python file with another implementation to compare with.", "FILE.py", box=_HOW)
    ] = None,
    repetitions: Annotated[Count | None, flag("Rounds that count.", "N", box=_HOW, default="7; quick: 3")] = None,
    threads: Annotated[Count, flag("Threads.", "N", box=_HOW)] = 1,
    out: Annotated[Path | None, flag(f"A folder for {NAME}.json, .md and .png.", "DIR", box=_HOW)] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a round costs: CPU and wall time, memory, and how that compares with the bare matrix products."""
    from benchmarks.cases import choose_cases
    from benchmarks.report import benchmark_sheets
    from fedspray.report.files import check_target

    cases = choose_cases(
        dataset or [],
        banks or [],
        backbones=backbone or [],
        algorithms=algorithm or [],
        partitions=partitions,
        quick=quick,
    )
    if reference is not None and not reference.is_file():
        raise InputError(f"--reference {reference} is not a file, but must be a Python file")
    if out is not None:
        check_target(out / f"{NAME}.json", (".json",), "--out")
    output, rounds = Output(as_json), repetitions or (3 if quick else 7)
    content = _measured(output, cases, rounds, threads, reference)
    if not output.as_json:
        for sheet in benchmark_sheets(content):
            output.show(sheet.to_rich())
    if out is not None:
        output.note(f"wrote {_write(out, content)} to {out}")
    output.result(content)


def _measured(output: Output, cases: Sequence[Case], rounds: int, threads: int, reference: Path | None) -> Json:
    """Plays every case, with the yardstick before and after."""
    from benchmarks.measure import measure
    from benchmarks.scaling import find_series
    from benchmarks.yardstick import measure_yardstick

    yardsticks, lines = [measure_yardstick()], []
    for index, case in enumerate(cases, start=1):
        with output.busy(f"{index} of {len(cases)}: {case} …"):
            lines.append(measure(case, repetitions=rounds, threads=threads, reference=reference))
        output.note(f"{index} of {len(cases)}: {case}: {_in_short(lines[-1])}")
    yardsticks.append(measure_yardstick())
    return {
        **_header(threads, rounds),
        "yardstick_milliseconds": yardsticks,
        "cases": lines,
        "scaling": find_series(lines),
    }


def _write(out: Path, content: Json) -> str:
    """Writes what `--out` asks for, and says which files."""
    from benchmarks.report import benchmark_figure, benchmark_markdown
    from fedspray.report.figures import to_png
    from fedspray.report.files import write_file

    write_file(out / f"{NAME}.json", to_json(content))
    write_file(out / f"{NAME}.md", benchmark_markdown(content))
    if not content["scaling"]:
        return f"{NAME}.json and .md"
    write_file(out / f"{NAME}.png", to_png(benchmark_figure(content)))
    return f"{NAME}.json, .md and .png"


def _in_short(line: Mapping[str, Any]) -> str:
    seconds, ratio, faster = line["ours"]["cpu_seconds"], line["ours_to_floor"], line["reference_to_ours"]
    parts = ["failed" if seconds is None else f"{seconds:.3g} CPU s"]
    parts += [f"{ratio['cpu']:.2f} times the floor"] if ratio else []
    parts += [f"{faster['cpu']:.3g} times as fast as the reference"] if faster else []
    return ", ".join(parts)


def _header(threads: int, repetitions: int) -> dict[str, Any]:
    from fedspray.runs.store import versions

    return {
        "command": shlex.join(["fedspray", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "versions": versions(),
        "threads": threads,
        "repetitions": repetitions,
    }


def _processor() -> str:
    """The processor's name, if known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"
