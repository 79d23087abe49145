"""Runs in MLflow or Weights & Biases: ``--track mlflow``, or ``fs.run(…, track="wandb")``.

Each seed is one run there: the experiment's fields are its parameters, rounds are steps, the report is an artefact.
Where runs are kept is the tool's own setting: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``;
``WANDB_PROJECT``, and ``WANDB_MODE=offline`` where nothing may leave the machine.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedspray.errors import InputError, one_line, unknown
from fedspray.files import Json
from fedspray.report.html import write_report
from fedspray.runs.callbacks import Callback
from fedspray.runs.result import RunResult, SeedResult

PARTS, FIGURES = ("train", "val", "test"), ("loss", "overall", "minority")
COSTS = ("bytes_up", "bytes_down", "seconds")
PROJECT = "fedspray"


class Tracker(Callback):
    """Keeps every seed of a run in a tool. If the tool fails, a warning says so and training goes on."""

    def __init__(self, tool: str, header: Json) -> None:
        check(tool)
        self._tool, self._header, self._works = tool, header, True
        self._books: dict[int, _MLflow | _WandB] = {}

    def on_record(self, seed: int, record: Json) -> None:
        """A round is a step."""
        figures = {f"{part}/{name}": record[part][name] for part in PARTS for name in FIGURES}
        self._log(seed, figures | {name: record[name] for name in COSTS}, record["round"])

    def on_end(self, seed: int, result: SeedResult) -> None:
        """What is reported: the test figures of the chosen round."""
        best = result.metrics["best_round"]
        self._log(seed, {f"result/{name}": result.metrics[name] for name in FIGURES}, best)

    def close(self, result: RunResult | None) -> None:
        """Adds the report and ends all runs; without a result they have failed."""
        with tempfile.TemporaryDirectory() as folder:
            page = None if result is None or not self._books else Path(folder) / "report.html"
            if page is not None and result is not None:
                write_report([result.folder or result.save(Path(folder) / "run")], page)
            for book in self._books.values():
                self._safely(book.close, page, result is not None)

    def _log(self, seed: int, figures: Mapping[str, float | None], step: int) -> None:
        if seed not in self._books:
            name = "-".join([*(self._header[each] for each in ("dataset", "algorithm", "backbone")), f"seed-{seed}"])
            book = self._safely(TOOLS[self._tool], name, parameters(self._header) | {"seed": seed})
            self._books |= {} if book is None else {seed: book}
        if seed in self._books:
            self._safely(self._books[seed].log, {k: v for k, v in figures.items() if v is not None}, step)

    def _safely(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return act(*arguments) if self._works else None
        except Exception as error:
            self._works = False
            warnings.warn(
                f"{self._tool} failed, so this run is tracked no further: {one_line(str(error))}", stacklevel=2
            )
            return None


def check(tool: str) -> None:
    """Refuses a tool that is not known or not installed."""
    if tool not in TOOLS:
        raise unknown("tracker", tool, list(TOOLS))
    if importlib.util.find_spec(tool) is None:
        raise InputError(f"track is {tool!r}, but the package {tool} is not installed: pip install 'fedspray[{tool}]'")


@contextmanager
def tracked(tool: str | None, header: Json) -> Iterator[tuple[list[Callback], Callable[[RunResult], None]]]:
    """Who listens to a run, and whom to give its result; nobody if no tool is named."""
    if tool is None:
        yield [], lambda _: None
        return
    tracker, results = Tracker(tool, header), list[RunResult]()
    try:
        yield [tracker], results.append
    finally:
        tracker.close(results[0] if results else None)


def parameters(header: Json) -> Json:
    """The experiment's fields, flat: settings by their names, those of the data as ``data.…``."""
    plain = {name: value for name, value in header.items() if name not in ("settings", "federation")}
    return {**plain, **header["settings"], **{f"data.{name}": value for name, value in header["federation"].items()}}


class _MLflow:
    def __init__(self, name: str, fields: Json) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(wanted)
        experiment = self._client.create_experiment(wanted) if found is None else found.experiment_id
        self._id = self._client.create_run(experiment, run_name=name).info.run_id
        self._client.log_batch(self._id, params=[Param(key, str(value)) for key, value in fields.items()])

    def log(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(key, value, now, step) for key, value in figures.items()])

    def close(self, page: Path | None, completed: bool) -> None:
        if page is not None:
            self._client.log_artifact(self._id, str(page))
        self._client.set_terminated(self._id, "FINISHED" if completed else "FAILED")


class _WandB:
    def __init__(self, name: str, fields: Json) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            config=fields,
            reinit="create_new",  # seeds beside each other, and beside a run of the user's own
            settings=wandb.Settings(console="off"),
        )

    def log(self, figures: Mapping[str, float], step: int) -> None:
        if any(key.startswith("result/") for key in figures):  # steps may not go back there
            self._run.summary.update(dict(figures))
        else:
            self._run.log(dict(figures), step=step)

    def close(self, page: Path | None, completed: bool) -> None:
        import wandb

        if page is not None:
            artefact = wandb.Artifact(f"report-{self._run.id}", type="report")
            artefact.add_file(str(page))
            self._run.log_artifact(artefact)
        self._run.finish(exit_code=0 if completed else 1)


TOOLS = {"mlflow": _MLflow, "wandb": _WandB}
