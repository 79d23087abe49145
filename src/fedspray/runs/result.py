"""What a run gives back."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspray import files, stored
from fedspray.display import count, line, percent, percent_spread, table
from fedspray.errors import InputError, unknown
from fedspray.evaluation.metrics import METRICS
from fedspray.files import Json
from fedspray.runs import benefit, proxies, store
from fedspray.runs.adapt import FILE as SHARED
from fedspray.runs.adapt import SharedPart
from fedspray.runs.models import ModelFiles, PersonalModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Score:
    """A metric over the seeds of a run; ``float`` and f-strings take its mean."""

    mean: float | None
    """None if no seed has a value."""
    std: float | None
    """The sample standard deviation; None for one seed."""
    per_seed: Mapping[int, float | None]

    def __float__(self) -> float:
        return float("nan") if self.mean is None else self.mean

    def __format__(self, spec: str) -> str:
        return "n/a" if self.mean is None else format(self.mean, spec)

    def __repr__(self) -> str:
        shown = "n/a" if self.mean is None else f"{self.mean:.4f}" + ("" if self.std is None else f" ± {self.std:.4f}")
        return line(self, shown, count(len(self.per_seed), "seed"))


@dataclass(frozen=True, eq=False)
class SeedResult:
    """The result of one seed."""

    seed: int
    metrics: Json
    """Everything about the reported round, as JSON."""
    records: list[Json]
    """One record for each round."""
    models: Mapping[str, PersonalModel]
    """Each client's personal model of the reported round."""
    proxies: proxies.ClassProxies | None = None
    """The class vectors of the reported round, if the algorithm has any."""

    def __repr__(self) -> str:
        scores = (f"{name} {percent(self.metrics[name])}%" for name in ("overall", "minority"))
        return line(
            self, f"seed {self.seed}", f"round {self.metrics['best_round']} of {self.metrics['rounds']}", *scores
        )

    def save(self, folder: Path) -> None:
        """Writes the models and class vectors into the seed's folder."""
        for name, model in self.models.items():
            model.save(folder / "models" / name)
        shared = SharedPart.of(self.models)
        if shared is not None:
            shared.save(folder / SHARED)
        if self.proxies is not None:
            self.proxies.save(folder / proxies.FILE)

    @classmethod
    def load(cls, folder: Path) -> SeedResult:
        """Reads the folder of a finished seed."""
        metrics, records = stored.read_seed(folder)
        kept = folder / proxies.FILE
        return cls(
            int(folder.name.removeprefix("seed-")),
            metrics,
            records,
            ModelFiles(folder / "models", metrics["models"]),
            proxies.ClassProxies.load(kept) if kept.exists() else None,
        )


@dataclass(frozen=True, eq=False)
class RunResult:
    """The results of all seeds of a run."""

    header: Json
    """Data set, algorithm, backbone and all settings."""
    seeds: list[SeedResult] = field(default_factory=list)
    folder: Path | None = None
    """The run folder, if there is one."""
    writer: Callable[[RunResult, Path], None] | None = None
    """Writes the run folder if there is none."""

    @classmethod
    def load(cls, folder: str | Path) -> RunResult:
        """Reads the folder of a finished run."""
        run = Path(folder)
        header = stored.read(run / "settings.json", stored.Settings)
        if not (run / "result.json").exists():
            raise InputError(unfinished(run))
        names = ("dataset", "algorithm", "backbone", "preset", "backbone_of", "link", "settings", "federation")
        seeds = [SeedResult.load(run / f"seed-{seed}") for seed in header["run"]["seeds"]]
        asked = {name: header["run"][name] for name in ("device",) if name in header["run"]}  # older runs do not say
        return cls({name: header[name] for name in names if name in header} | asked, seeds, run)

    def save(self, folder: str | Path) -> Path:
        """Writes the run into a new folder, as ``out=`` would have; `fedspray.load` reads it."""
        target = Path(folder)
        if self.folder is not None:
            files.check_new(target)
            shutil.copytree(self.folder, target, dirs_exist_ok=True)
        elif self.writer is not None:
            self.writer(self, target)
        else:
            raise InputError(f"this result cannot be saved to {target}: its data is at the sites")
        return target

    @property
    def models(self) -> Mapping[str, PersonalModel]:
        """The personal models of the first seed, by client."""
        return self.seeds[0].models

    @property
    def overall(self) -> Score:
        """Accuracy on all test nodes."""
        return self.score("overall")

    @property
    def minority(self) -> Score:
        """Accuracy on the test nodes outside their client's majority class."""
        return self.score("minority")

    def score(self, metric: str) -> Score:
        """Any metric of the reported round on test nodes, over seeds; n/a in results older than the metric."""
        found = {name: value for each in self.seeds for name, value in each.metrics.items()}
        known = {*METRICS, *(name for name, value in found.items() if not isinstance(value, list | dict | str))}
        if metric not in known:
            raise unknown("metric", metric, known)
        values = {result.seed: result.metrics.get(metric) for result in self.seeds}
        return Score(**spread(list(values.values())), per_seed=values)

    @property
    def per_client(self) -> pd.DataFrame:
        """One row per seed and client: its metrics on test nodes, and how many it has."""
        import pandas as pd

        rows = [
            {"seed": result.seed, "client": name, **{k: v for k, v in row.items() if not isinstance(v, list | dict)}}
            for result in self.seeds
            for name, row in result.metrics["clients"].items()
        ]
        return pd.DataFrame(rows)

    @property
    def curves(self) -> pd.DataFrame:
        """One row per seed and round: losses, accuracies, bytes and seconds."""
        import pandas as pd

        rows = [
            {
                "seed": result.seed,
                "round": record["round"],
                **{f"{part}_{name}": record[part][name] for part in ("train", "val", "test") for name in store.CURVES},
                **{name: record[name] for name in ("bytes_up", "bytes_down", "seconds", "cpu_seconds")},
            }
            for result in self.seeds
            for record in result.records
        ]
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """The same as `curves`."""
        return self.curves

    def plot(self, part: str = "test") -> Figure:
        """Overall and minority accuracy by round: mean and range over seeds, a dot at each reported round.

        Args:
            part: ``test``, ``val`` or ``train``.
        """
        if part not in ("train", "val", "test"):
            raise InputError(f"part is {part!r}, but must be train, val or test")
        (figure, axes), curves = new_figure(), self.curves
        best = [result.metrics["best_round"] for result in self.seeds]
        for name, colour in COLOURS.items():
            by_round = curves[f"{part}_{name}"].astype(float).groupby(curves["round"])
            mean, low, high = by_round.mean(), by_round.min(), by_round.max()
            axes.plot(mean.index, mean, color=colour, label=name)
            axes.fill_between(mean.index, low, high, color=colour, alpha=0.15, linewidth=0)
            reached = [result.records[b - 1][part][name] for result, b in zip(self.seeds, best, strict=True)]
            axes.scatter(best, np.array(reached, dtype=float), color=colour, s=24, zorder=3)
        head = self.header
        axes.set_title(f"{head['dataset']}, {head['algorithm']}, {head['backbone']}", loc="left", fontweight="bold")
        axes.set_xlabel("round (dot: the reported one)")
        axes.locator_params(axis="x", integer=True)
        axes.set_ylabel(f"accuracy on {_NODES[part]} nodes")
        axes.legend(frameon=False)
        return figure

    def summary(self) -> Json:
        """The run as one JSON object: what ``fedspray run --json`` prints and ``result.json`` holds."""
        rows = [{"seed": result.seed, **result.metrics} for result in self.seeds]
        return {
            **self.header,
            "seeds": rows,
            **{name: spread([row.get(name) for row in rows]) for name in METRICS},
            "models": rows[0]["models"],
            **({"benefit": found} if (found := benefit.benefits(rows)) else {}),
        }

    def __repr__(self) -> str:
        names = (self.header[name] for name in ("dataset", "algorithm", "backbone"))
        scores = [f"{name} {percent_spread(vars(self.score(name)))}%" for name in ("overall", "minority")]
        return line(self, *names, count(len(self.seeds), "seed"), *scores)

    def _repr_html_(self) -> str:
        names = ("overall", "minority", "balanced", "macro_f1")
        rows = [
            [result.seed, result.metrics["best_round"], *(percent(result.metrics.get(name)) for name in names)]
            for result in self.seeds
        ]
        if len(rows) > 1:
            rows.append(["mean", "", *(percent_spread(vars(self.score(name))) for name in names)])
        title = ", ".join(str(self.header[name]) for name in ("dataset", "algorithm", "backbone"))
        return table(f"{title}: test accuracy in %", ["seed", "round", *(METRICS[n].title for n in names)], rows)


COLOURS = {"overall": "#0072B2", "minority": "#D55E00"}


def new_figure() -> tuple[Figure, Axes]:
    """A figure with one picture of accuracies, which a notebook shows without pyplot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    setattr(figure, "_repr_png_", partial(_png, figure))  # noqa: B010
    return figure, axes


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()


def unfinished(run: Path) -> str:
    """The sentence about a run that has no result."""
    return f"{run} is not finished: continue it with fedspray.resume, or fedspray run --resume {run}"


def spread(values: list[float | None]) -> Json:
    """Mean and sample standard deviation over seeds; None for too few values."""
    known = [value for value in values if value is not None]
    return {
        "mean": float(np.mean(known)) if known else None,
        "std": float(np.std(known, ddof=1)) if len(known) > 1 else None,
    }


_NODES = {"train": "training", "val": "validation", "test": "test"}
