"""``fedspray reproduce``: the paper's tables and figures, published against ours."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedspray.cli import study
from fedspray.cli.flags import AsJson, argument, examples, flag
from fedspray.cli.output import Output

if TYPE_CHECKING:
    from fedspray.studies.cells import Cell
    from reproduction.access import Access
    from reproduction.lines import PartResult
    from reproduction.trained import Order

NAMES = (
    *("table1", "figure2", "table2", "figure-lambda", "figure-dim", "table3", "table4", "table5"),
    *("proposition1", "noise", "gat", "auc", "cost", "all", "sota", "fresh", "options", "reach", "unseen"),
)
"""As in `parts`, which takes its time to import; ``all`` is what the paper has."""


@examples(
    "fedspray reproduce table1 table4 proposition1 --quick",
    "fedspray reproduce table2 --dataset pubmed --jobs 2",
    "fedspray reproduce table2 --stored --out results",
    "fedspray reproduce sota --dataset cora --dataset pubmed",
)
def reproduce(
    *parts: Annotated[str, argument(f"{', '.join(NAMES)}.", "PART…", many=True, complete=NAMES)],
    quick: Annotated[bool, flag("A few rounds and one seed: everything in about ten minutes.")] = False,
    dataset: Annotated[list[str] | None, flag("Only this data set; repeatable.", "NAME", complete="datasets")] = None,
    stored: Annotated[bool, flag("Use finished cells only, and run nothing.")] = False,
    partitions: Annotated[
        Path | None,
        flag(
            "The authors' node lists, a folder for each data set.",
            "DIR",
            default="partitions, then that in FEDSPRAY_DATA",
        ),
    ] = None,
    experiments: Annotated[
        Path | None, flag("Other studies PART-NAME.toml.", "DIR", default="the project's own")
    ] = None,
    work: study.WorkFlags = study.WORK,
    out: Annotated[
        Path | None,
        flag("A folder for tables and pictures.", "DIR", default="studies/reproduce, or reproduce-quick"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper's tables and figures: published, ours, difference."""
    from fedspray.datasets import names
    from fedspray.errors import unknown
    from fedspray.report.files import check_target
    from fedspray.studies.grid import Grid
    from reproduction.access import Access
    from reproduction.parts import BEYOND, PARTS
    from reproduction.trained import Order, experiments_folder

    output, datasets = Output(as_json), dataset or []
    for kind, given, known in (("part", parts, NAMES), ("data set", datasets, names())):
        wrong = next((name for name in given if name not in known), None)
        if wrong is not None:
            raise unknown(kind, wrong, known)
    folder = out or Path("studies") / ("reproduce-quick" if quick else "reproduce")
    check_target(folder / "parts.md", [".md"], "--out")
    chosen = [name for name in PARTS if name in parts or ("all" in parts and name not in BEYOND)]
    access = Access.from_environment(partitions)
    for name in chosen:
        _check_earlier(folder, name, datasets, access, quick=quick)
    workers = study.Workers(work, output)

    def run_cells(title: str, wanted: Sequence[Cell]) -> list[Cell]:
        return Grid(wanted, work.cells).stored() if stored else workers.run(title, wanted)

    order = Order(
        run_cells=run_cells,
        access=access,
        experiments=experiments_folder(experiments),
        datasets=datasets,
        quick=quick,
    )
    again = {"--partitions": partitions, "--experiments": experiments, "--out": out}
    flags = [word for flag, value in again.items() if value is not None for word in (flag, str(value))]
    _make(output, chosen, order, folder, shlex.join(flags))


def _make(output: Output, chosen: Sequence[str], order: Order, folder: Path, again: str) -> None:
    """Makes the parts one after another, shows each and writes its files."""
    from fedspray import InputError
    from fedspray.report.files import write_file
    from reproduction.lines import lost_figures
    from reproduction.parts import PARTS

    made, files = [], []
    for name in chosen:
        result = PARTS[name](order)
        if not result.lines:
            output.note(f"{name} has no rows on {', '.join(order.datasets)}")
            continue
        _show(output, result, again)
        lost = lost_figures(folder, result)
        if lost:
            raise InputError(
                f"{folder / name}-published.csv holds {len(lost)} figures that are not there now, or from fewer seeds "
                f"or other clients ({' '.join(lost[0])}, …): find their cells with --cells, or change --out"
            )
        for file, content in result.files().items():
            write_file(folder / file, content)
            files.append(file)
        made.append(result)
    if not made:
        raise InputError(f"{', '.join(chosen)} has no rows on {', '.join(order.datasets)}: remove --dataset")
    output.note(f"wrote {', '.join(files)} to {folder}")
    output.result({"quick": order.quick, "parts": [result.to_json() for result in made], "files": files})
    study.finish([cell for result in made for cell in result.cells])


def _show(output: Output, result: PartResult, again: str) -> None:
    """Tables and findings on standard output, what is missing on standard error, with the flags to give ``again``."""
    from rich.text import Text

    if not output.as_json:
        for sheet in result.sheets:
            output.show(sheet.to_rich())
        for sentence in result.findings:
            output.show(Text(f"• {sentence}"))
    for entry in result.missing:
        output.note(f"{result.name}, {entry.dataset}: {entry.reason} Then: {entry.command} {again}".rstrip())


def _check_earlier(folder: Path, part: str, datasets: Sequence[str], access: Access, *, quick: bool) -> None:
    """Refuses, before any work, to replace figures of full runs, of more data sets or of the authors' clients."""
    from fedspray import InputError
    from reproduction.access import AUTHORS
    from reproduction.federations import FOLDERS
    from reproduction.lines import QUICK, earlier_figures
    from reproduction.parts import UNTRAINED

    earlier, file = earlier_figures(folder, part), folder / f"{part}-published.csv"
    if quick and part not in UNTRAINED and any(figure.status != QUICK for figure in earlier.values()):
        raise InputError(f"{file} holds figures of full runs, which quick ones must not replace: change --out")
    others = sorted({name[0] for name in earlier} - set(datasets)) if datasets else []
    if others:
        raise InputError(
            f"{file} holds figures of {', '.join(others)}, which --dataset {' --dataset '.join(datasets)} would drop: "
            "name all data sets, or change --out"
        )
    for dataset in dict.fromkeys(name[0] for name, figure in earlier.items() if figure.split == AUTHORS):
        if dataset in FOLDERS and access.lists(FOLDERS[dataset]) is None:
            raise InputError(
                f"{file} holds figures of the authors' clients of {dataset}, but their node lists are not in "
                f"{access.partitions[0] / FOLDERS[dataset]}: name their folder with --partitions, or change --out"
            )
