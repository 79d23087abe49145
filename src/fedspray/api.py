"""The functions of the Python API: the commands, for scripts and notebooks."""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedspray import progress as bars
from fedspray.data import statistics
from fedspray.data.edges import as_integers
from fedspray.data.federation import Client, Federation
from fedspray.data.graph import Graph, repeated
from fedspray.data.reading import read_federation
from fedspray.data.traps import TrapWarning
from fedspray.datasets.base import ClientGraphs
from fedspray.errors import PATH, InputError, MissingDataError, expect
from fedspray.experiment import Data, RunSettings, Way, knobs, run_knobs, way_knobs
from fedspray.federate import build_federation, open_data, traps_of
from fedspray.knob import refuse_outside
from fedspray.objects import (
    DEFAULT_BACKBONE,
    AnyAlgorithm,
    AnyBackbone,
    Chosen,
    algorithm_named,
    backbone_named,
    backbones_named,
)
from fedspray.plugins import SESSION
from fedspray.report import outcome
from fedspray.report.html import write_page, write_report
from fedspray.report.outcome import ComparisonResult
from fedspray.report.tracking import tracked
from fedspray.runs import run as runs
from fedspray.runs.callbacks import Callback, Listener, OnRecord
from fedspray.runs.conduct import header
from fedspray.runs.models import WEIGHTS, PersonalModel
from fedspray.runs.result import RunResult
from fedspray.runs.settings import Resolved, check_meaning, resolve
from fedspray.studies.backends import Workers
from fedspray.studies.cells import Cell
from fedspray.studies.grid import Grid, run_rows
from fedspray.studies.study import Study


def run(
    federation: Federation,
    algorithm: AnyAlgorithm | None = None,
    *,
    backbone: AnyBackbone | None = None,
    rounds: int | None = None,
    seeds: int | Iterable[int] = 1,
    preset: str | None = None,
    backbone_of: Mapping[str, AnyBackbone] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    on_record: OnRecord | None = None,
    callbacks: Sequence[Callback] = (),
    **values: Any,
) -> RunResult:
    """Trains on a federation.

    Args:
        federation: the clients; each seed draws new splits, unless ``keep_split``.
        algorithm: a name from ``fedspray.algorithms.names()`` or ``package.module:Class``, an object, or a class; by
            default ``fedspray2``, or with a preset the paper's ``fedspray``.
        backbone: the same, or the class of a torch.nn.Module; by default an algorithm object's own, or ``gcn``.
            It replaces the algorithm's own backbone as a whole.
        rounds: number of rounds; by default the preset's, or 300.
        seeds: a number (counted from 0) or a list; each seed gives one result.
        preset: a named set of the algorithm's settings, for an algorithm by name or class.
        backbone_of: clients that use another backbone, where the algorithm allows it: names or classes.
        out: a new folder for everything; None writes nothing.
        progress: show a bar in a terminal or notebook.
        on_record: called with the seed and each round's record.
        callbacks: objects of subclasses of `Callback`, called at exchanges, records, rounds and ends.
        values: any setting of the algorithm, the backbone or the rounds, overriding an object's; and run options:
            ``keep_split=True`` (the federation's own splits for every seed), ``dtype="float64"`` …; and how to run:
            ``threads``, ``engine="ray"`` and ``cluster`` (the Ray head, by default one started here),
            ``checkpoint_every``, ``track="mlflow"`` or ``"wandb"``.
    """
    expect(Federation, _BUILT, federation=federation)
    expect((list, tuple), "a list of Callback objects", callbacks=callbacks)
    for each in callbacks:
        expect(Callback, "an object of a subclass of Callback (functions go to on_record=)", **{"a callback": each})
    expect((Callable, type(None)), "a function of the seed and a record", on_record=on_record)
    folder = _folder(out)
    _warn_of_traps(federation)
    way = Way(**{name: values.pop(name) for name in way_knobs() if name in values})
    resolved = _resolved(algorithm, backbone, preset, rounds, seeds, backbone_of, values, out)
    with (
        tracked(way.track, header(federation.roster, resolved)) as (trackers, keep),
        _rounds_bar(progress, resolved) as bar,
        runs.prepared(federation, resolved, folder, way, None) as how,
    ):
        heard = [*callbacks, *trackers, *bar]
        result = runs.carry_out(federation, resolved, folder, **how, callbacks=heard, on_record=on_record)
        keep(result)
    return result


def resume(folder: str | Path, federation: Federation | None = None, *, progress: bool = True) -> RunResult:
    """Continues the run in a folder to its end, to the same bits; reads a finished one.

    Args:
        folder: the run's folder.
        federation: the one it was started on; optional if the command line started it.
        progress: show a bar in a terminal or notebook.
    """
    expect(PATH, "the path of a run folder", folder=folder)
    expect((Federation, type(None)), _BUILT, federation=federation)
    target = Path(folder)
    settings, content = runs.load_settings(target)
    if (target / "result.json").exists():
        return RunResult.load(target)
    if federation is None and content["source"] is None:
        raise InputError(f"{target} was started from Python, so its federation is unknown: pass federation=")
    own = open_data(Data.of(**content["source"])) if federation is None else federation
    resolved = resolve(settings)
    with _rounds_bar(progress, resolved) as bar:
        return runs.carry_out(own, resolved, target, threads=content["threads"], callbacks=bar)


AnyData = Federation | str | Path | ClientGraphs | type[ClientGraphs]


def compare(
    data: AnyData | Sequence[AnyData],
    methods: Sequence[Any] | Mapping[str, Any],
    *,
    backbones: AnyBackbone | Sequence[AnyBackbone] | None = None,
    rounds: int | None = None,
    seeds: int | Iterable[int] = 1,
    reference: str | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    threads: int = 1,
    bootstrap: int = 2000,
    progress: bool = True,
    **values: Any,
) -> ComparisonResult:
    """Compares methods on the same splits and seeds, with statistics.

    Args:
        data: a federation, a data set's name, path, object or class, or several of them.
        methods: names, objects, classes or tables as in ``[compare]``; a mapping names them for the tables.
        backbones: one or several, replacing the methods' own; by default each method's own, or ``gcn``.
        rounds: number of rounds; 300 by default.
        seeds: a number (counted from 0) or a list.
        reference: the method to compare the others with; by default ``fedspray``, or else the first.
        out: a folder for tables, page and finished cells, which are not run again; None writes nothing.
        jobs: cells at a time, each in its own process; above 1 a script needs ``if __name__ == "__main__":``.
        threads: of each.
        bootstrap: draws of test nodes; 0 turns it off.
        progress: show a bar in a terminal or notebook.
        values: any setting, for all methods, overriding an object's; and options of the run, as for `run`.
    """
    workers = Workers(jobs, threads)
    refuse_outside("bootstrap", bootstrap, "int", {"least": 0})
    own, settings = _divided(values)
    with _kept_in(out) as folder:
        federations, named = _datasets(data, folder / "data")
        compared = {"datasets": named, "seeds": _seeds(seeds), **_methods(methods, backbones, jobs)}
        if reference is not None:
            compared["reference"] = reference
        if rounds is not None:
            settings["rounds"] = rounds
        study = Study.from_values({**own, "compare": compared}, "compare", {"": settings})
        for target, federation in federations.items():
            if not target.exists():
                federation.save(target)

        def run_cells(title: str, cells: Sequence[Cell]) -> list[Cell]:
            grid = Grid(cells, folder / "cells", workers)
            with bars.cells_bar(grid) if progress and bars.is_interactive() else nullcontext():
                return grid.run()

        rows = run_rows("comparing", study.rows(), run_cells)
        result = ComparisonResult.of(rows, study.reference, draws=bootstrap)
        if out is not None:
            result.save(folder)
    if failures := result.failures:
        first, cells = failures[0], sum(len(row.ended) for row in rows)
        told = f"{first['method']}, seed {first['seed']}: {first['reason']}"
        warnings.warn(f"{len(failures)} of {cells} cells failed, see .failures; the first: {told}", stacklevel=2)
    return result


Loaded = RunResult | ComparisonResult | Federation | Client | PersonalModel | Graph


def load(path: str | Path) -> Loaded:
    """Reads what is at a path: a run, a comparison, a federation, a client, a personal model or a graph."""
    expect(PATH, "a path", path=path)
    source = Path(path)
    if not source.exists():
        raise MissingDataError(f"{source} does not exist: give {_LOADABLE}")
    for name, read in _READERS.items():
        if (source / name).is_file() or (source.is_file() and source.suffix == name):
            found: Loaded = read(source)
            return found
    if any(source.glob("*.npz")):  # a graph for each client
        return read_federation(source)
    raise InputError(f"{source} can't be loaded: give {_LOADABLE}")


_READERS: dict[str, Callable[[Path], Any]] = {
    "settings.json": RunResult.load,
    outcome.FILE: ComparisonResult.load,
    "manifest.json": Federation.load,
    "client.json": Client.load,
    WEIGHTS: PersonalModel.load,
    ".safetensors": PersonalModel.load,
    ".npz": Graph.from_npz,
}
"""The file in a folder, or a file's suffix, that identifies its kind."""
_LOADABLE = "the folder of a run, comparison, federation, client or model, a model (.safetensors) or a graph (.npz)"


def report(
    results: RunResult | ComparisonResult | str | Path | Sequence[RunResult | str | Path],
    out: str | Path,
    *,
    reference: str | None = None,
) -> dict[str, Any]:
    """Writes one HTML page about runs on the same federation, or about a comparison.

    Args:
        results: what `compare` returned, or one or several runs: results or run folders.
        out: the page.
        reference: the method to compare the others with; by default ``local``, or else the first (a comparison's own
            reference, if it has no ``local``).

    Returns:
        ``methods``, ``reference``, ``finding`` (the headline) and ``bytes`` (the size of the page).
    """
    expect(PATH, "the path of the page", out=out)
    if isinstance(results, ComparisonResult):
        if not results.pages:
            raise InputError("the comparison was read from a folder, which has its pages already: see there")
        if len(results.pages) > 1:
            raise InputError(f"the comparison has {len(results.pages)} pages, but one is needed: .save writes all")
        page = next(iter(results.pages.values()))
        return write_page(page if reference is None else page.against(reference), out)
    listed = [results] if isinstance(results, (RunResult, *PATH)) else results
    expect(Sequence, "a comparison, or one or several runs: results or folders", results=listed)
    with tempfile.TemporaryDirectory() as temporary:
        folders = []
        for number, result in enumerate(listed):
            expect((RunResult, *PATH), "a run's result or folder", result=result)
            if isinstance(result, RunResult):
                folders.append(result.folder or result.save(Path(temporary) / f"run-{number}"))
            else:
                folders.append(Path(result))
        return write_report(folders, out, reference=reference)


def inspect(federation: Federation) -> statistics.FederationStatistics:
    """Statistics of a federation: who holds what, majority and minority, homophily, divergence."""
    expect(Federation, _BUILT, federation=federation)
    return statistics.describe(federation)


def _resolved(
    algorithm: AnyAlgorithm | None,
    backbone: AnyBackbone | None,
    preset: str | None,
    rounds: int | None,
    seeds: int | Iterable[int],
    backbone_of: Mapping[str, AnyBackbone] | None,
    values: Mapping[str, Any],
    out: str | Path | None,
) -> Resolved:
    """What `run` was asked for, as objects."""
    expect((Mapping, type(None)), "names of clients with their backbones", backbone_of=backbone_of)
    own, method = run_knobs(), RunSettings(preset=preset).algorithm if algorithm is None else algorithm
    chosen = Chosen.of(method, backbone, preset, {k: v for k, v in values.items() if k not in own})
    check_meaning(chosen.algorithm, chosen.values, None if backbone_of else chosen.backbone)
    if chosen.of_session and out is not None:
        warnings.warn(
            f"{' and '.join(chosen.of_session)} is defined in this session, so no other process can resume the run in "
            f"{out} or load its models: move it into a file",
            stacklevel=3,
        )
    settings = RunSettings(
        algorithm=chosen.algorithm,
        backbone=chosen.backbone,
        preset=preset,
        values=dict(chosen.values) if rounds is None else {**chosen.values, "rounds": rounds},
        backbone_of=backbones_named(backbone_of or {}),
        seeds=tuple(_seeds(seeds)),
        **{name: knobs()[name].read(value) for name, value in values.items() if name in own},
    )
    resolved = resolve(settings)
    resolved.refuse_text()
    return resolved


def _warn_of_traps(federation: Federation) -> None:
    for trap in traps_of(federation):
        warnings.warn(trap.sentence, TrapWarning, stacklevel=3)


_BUILT = "a Federation: see build_federation"


def _folder(out: str | Path | None) -> Path | None:
    expect((*PATH, type(None)), "the path of a folder, or None", out=out)
    return None if out is None else Path(out)


def _seeds(given: int | Iterable[int]) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise InputError(f"seeds is {given}, but must be at least 1, or a list of seeds")
        return list(range(given))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"seeds is {given!r}, but must be a number of seeds, or a list of whole numbers")
    found: list[int] = as_integers("seeds", list(given)).tolist()
    return found


@contextmanager
def _rounds_bar(wanted: bool, run: Resolved) -> Iterator[list[Callback]]:
    """A bar that follows the run, on a terminal or in a notebook."""
    if not wanted or not bars.is_interactive():
        yield []
        return
    with bars.rounds_bar(run.rounds.rounds, run.settings.seeds, run.settings.algorithm.rpartition(":")[2]) as show:
        yield [Listener(show)]


@contextmanager
def _kept_in(out: str | Path | None) -> Iterator[Path]:
    target = _folder(out)
    if target is not None:
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="fedspray-") as folder:
        yield Path(folder)


_INSTEAD = {
    "backbone": "use backbones=",
    "algorithm": "use methods",
    "preset": "give the method as {'algorithm': NAME, 'preset': NAME}",
    "backbone_of": "use run for clients with other backbones",
}
"""What to do about arguments that only `run` takes."""


def _divided(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the run, and settings."""
    for name in _INSTEAD.keys() & values.keys():
        raise InputError(f"compare takes no {name}=: {_INSTEAD[name]}")
    own = {name: value for name, value in values.items() if name in run_knobs()}
    return own, {name: value for name, value in values.items() if name not in own}


def _datasets(data: object, folder: Path) -> tuple[dict[Path, Federation], list[dict[str, str]]]:
    """Where to save federations, so that worker processes find them, and the data as entries of ``[compare]``."""
    federations, entries = {}, []
    for each in data if isinstance(data, list | tuple) else [data]:
        if isinstance(each, str | Path):
            entries.append({"dataset": str(each)})
            continue
        federation = each if isinstance(each, Federation) else build_federation(each)
        _warn_of_traps(federation)
        what = federation.name, dict(federation.settings)
        identity = [*what, federation.fingerprint(), federation.split_fingerprint()]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        target = folder.absolute() / digest[:16]
        federations[target] = federation
        entries.append({"name": federation.name, "dataset": str(target)})
    return federations, entries


def _methods(given: object, backbones: object, jobs: int) -> dict[str, Any]:
    """Methods and backbones as keys of ``[compare]``."""
    if isinstance(given, str) or not isinstance(given, Sequence | Mapping):
        raise InputError(f"methods is a {type(given).__name__}, but must be a list, or a mapping of names to methods")
    named = given.items() if isinstance(given, Mapping) else ((None, each) for each in given)
    tables: list[dict[str, Any]] = []
    nets: dict[str, dict[str, Any]] = {}
    for label, each in named:
        if isinstance(each, Mapping):
            tables.append(dict(each))
            continue
        method = Chosen.of(each)
        own = method.values if backbones is None else algorithm_named(each)[1]
        tables.append({"name": label or method.algorithm, "algorithm": method.algorithm, "set": dict(own)})
        if backbones is None:
            nets[method.backbone] = {}
    if backbones is not None:
        one = isinstance(backbones, str) or not isinstance(backbones, Sequence)
        listed: Any = [backbones] if one else backbones
        pairs = [backbone_named(net) for net in listed]
        twice = repeated([net for net, _ in pairs])
        if twice is not None:
            raise InputError(f"backbones holds {twice!r} twice, but each may be given once: run two comparisons")
        nets = dict(pairs)
    elif len(nets) > 1:
        raise InputError(f"the methods use the backbones {', '.join(nets)}, but must agree: pass backbones=")
    _tell_apart(tables)
    here = [name for name in (*(t.get("algorithm", "") for t in tables), *nets) if name.startswith(f"{SESSION}:")]
    if here and jobs > 1:
        raise InputError(
            f"jobs is {jobs}, but {here[0].partition(':')[2]} is defined in this session, so no other process can "
            "import it: use jobs=1, or move it into a file"
        )
    settings = {net: values for net, values in nets.items() if values}
    return {"algorithms": tables, "backbones": list(nets) or [DEFAULT_BACKBONE], "set": settings}


def _tell_apart(tables: Sequence[dict[str, Any]]) -> None:
    """Adds their settings to the names of methods that would have the same one."""
    names = [table.get("name") for table in tables]
    for table in tables:
        if names.count(table.get("name")) > 1 and table.get("set"):
            table["name"] = " ".join([table["name"], *(f"{key}={value}" for key, value in table["set"].items())])
