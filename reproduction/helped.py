"""Who is helped, and by how much: FedSpray 2 against training alone, on federations that are federations in life.

``make picture`` reads the finished cells of ``experiments/unseen-federations.toml`` in results/cells, whatever seeds
both methods have, and writes results/helped.csv and docs/pictures/helped.svg. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fedspray.files import read_json
from fedspray.report.sheets import to_csv
from fedspray.studies.results import CellResult

ROOT = Path(__file__).resolve().parents[1]
CELLS, TABLE, PICTURE = ROOT / "results" / "cells", ROOT / "results" / "helped.csv", ROOT / "docs/pictures/helped.svg"
FEDERATIONS = {
    "twitch": "Twitch: streamers of seven countries",
    "citation": "Citation: papers of three databases",
}
METRICS = ("minority", "overall")
ALL = "all"
"""Stands for the whole federation among its clients."""
_WIDTH, _LEFT, _RIGHT, _STEP = 640, 118, 462, 30
_ALONE, _GAIN, _LOSS, _TEXT = "#8a94a3", "#3b6fd4", "#e08a2c", "#1f2937"


@dataclass(frozen=True)
class Outcome:
    """One client's accuracies in percent, means over seeds: by metric, alone and together."""

    dataset: str
    client: str
    seeds: int
    alone: dict[str, float]
    together: dict[str, float]

    def gain(self, metric: str) -> float:
        """In points."""
        return self.together[metric] - self.alone[metric]

    def rows(self) -> Iterator[Sequence[object]]:
        """Of the table."""
        for metric in METRICS:
            figures = (self.alone[metric], self.together[metric], self.gain(metric))
            yield (self.dataset, self.client, metric, *(f"{figure:.2f}" for figure in figures), self.seeds)


def outcomes(dataset: str, cells: Path = CELLS) -> list[Outcome]:
    """The federation first, then its clients by what they gain on minority nodes."""
    alone, together = (_by_seed(dataset, method, cells) for method in ("local", "fedspray2"))
    seeds = sorted(alone.keys() & together.keys())
    if not seeds:
        raise SystemExit(f"{cells} has no seed of {dataset} that both local and fedspray2 have")

    def means(client: str, found: dict[int, CellResult]) -> dict[str, float]:
        metrics = [found[seed].metrics for seed in seeds]
        rows = [each if client == ALL else each["clients"][client] for each in metrics]
        return {metric: 100 * fmean(row[metric] for row in rows) for metric in METRICS}

    names = [ALL, *alone[seeds[0]].metrics["clients"]]
    found = [Outcome(dataset, name, len(seeds), means(name, alone), means(name, together)) for name in names]
    return [found[0], *sorted(found[1:], key=lambda each: -each.gain("minority"))]


def _by_seed(dataset: str, method: str, cells: Path) -> dict[int, CellResult]:
    files = sorted(cells.glob(f"{dataset}-{method}-gcn-seed*.json"))
    found = [CellResult.load(file, read_json(file)["key"]) for file in files]
    if len({cell.seed for cell in found}) < len(found):
        raise SystemExit(f"{cells} has two cells of {dataset}, {method} and the same seed: remove one")
    return {cell.seed: cell for cell in found}


def drawn(federations: Sequence[Sequence[Outcome]]) -> str:
    """The picture: a line for each client, from its accuracy alone to the one together."""
    seeds = sorted({outcome.seeds for found in federations for outcome in found})
    parts, y = [_text(20, 34, "Who is helped: accuracy on minority nodes", size=19, weight=600)], 62
    parts += [_dot(27, y - 5, _ALONE), _text(40, y, "alone (Local)"), _dot(155, y - 5, _GAIN)]
    parts += [
        _text(168, y, "together (FedSpray 2)"),
        _text(548, y, "minority", "end"),
        _text(622, y, "all nodes", "end"),
    ]
    for found in federations:
        y += 42
        parts.append(_text(20, y, FEDERATIONS[found[0].dataset], weight=600))
        bottom = y + _STEP * len(found) + 8
        for percent in (0, 25, 50, 75, 100):
            parts.append(f'<path d="M{_place(percent):.0f} {y + 10}V{bottom}" stroke="#e5e8ee"/>')
        for outcome in found:
            y += _STEP
            parts += _line(outcome, y)
        y += 22
        parts += [_text(_place(percent), y, f"{percent}%", "middle", "#5b6472", 12) for percent in (0, 25, 50, 75, 100)]
    count = " to ".join(str(number) for number in seeds)
    y += 34
    parts.append(
        _text(20, y, f"Right: gain in points. GCN, defaults, test nodes, mean of {count} seeds.", colour="#5b6472")
    )
    title = "Accuracy on minority nodes, alone and together, client by client"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 20}" role="img" aria-label="{title}" '
    style = f'font-family="system-ui, sans-serif" font-size="15" fill="{_TEXT}">\n<title>{title}</title>\n'
    box = f'<rect width="{_WIDTH}" height="{y + 20}" rx="12" fill="#ffffff"/>\n'
    return head + style + box + "\n".join(parts) + "\n</svg>\n"


def _line(outcome: Outcome, y: int) -> list[str]:
    alone, together = (_place(part["minority"]) for part in (outcome.alone, outcome.together))
    colour, heavy = _GAIN if together >= alone else _LOSS, 600 if outcome.client == ALL else 400
    gains = [f"{outcome.gain(metric):+.1f}".replace("-", "−") for metric in METRICS]
    return [
        _text(_LEFT - 16, y + 5, outcome.client, "end", weight=heavy),
        f'<path d="M{alone:.1f} {y}H{together:.1f}" stroke="{colour}" stroke-width="4"/>',
        _dot(alone, y, _ALONE),
        _dot(together, y, colour),
        _text(548, y + 5, gains[0], "end", colour, weight=600),
        _text(622, y + 5, gains[1], "end"),
    ]


def _place(percent: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * percent / 100


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="7" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", colour: str = _TEXT, size: int = 15, weight: int = 400
) -> str:
    look = f'text-anchor="{anchor}" fill="{colour}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {look}>{text}</text>'


def main() -> None:
    """Writes the table and the picture."""
    found = [outcomes(dataset) for dataset in FEDERATIONS]
    columns = ("dataset", "client", "metric", "alone", "together", "difference", "seeds")
    TABLE.write_text(to_csv(columns, [row for each in found for outcome in each for row in outcome.rows()]))
    PICTURE.write_text(drawn(found))
    print(f"wrote {TABLE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
