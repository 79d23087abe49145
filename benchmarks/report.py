"""Tables and the picture of a benchmark, from its JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedspray.report.figures import CLASS_COLOURS, tidy
from fedspray.report.sheets import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]

_NAMES = {"fedspray": "FedSpray", "fedavg": "FedAvg", "gcn": "GCN", "sgc": "SGC", "sage": "SAGE"}
_MARKERS = {"gcn": "o", "sgc": "s", "sage": "D"}
_COLOURS = dict(zip(_MARKERS, CLASS_COLOURS, strict=False))
_MISSING = "–"


def benchmark_sheets(content: Json) -> list[Sheet]:
    """Time of a round for each data set, memory of all, and, where sizes vary, how the cost grows."""
    names = dict.fromkeys(case["dataset"] for case in content["cases"])
    sheets = [*(_rounds(content, name) for name in names), _memory(content)]
    return [*sheets, _growth(content)] if content["scaling"] else sheets


def benchmark_markdown(content: Json) -> str:
    """The tables for a page of documentation, and what they come from."""
    machine, versions = content["machine"], content["versions"]
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB"
    heading = (
        f"`{content['command']}`\n\n{content['date']}; {where}; threads: {content['threads']}; "
        f"torch {versions['torch']}, PyTorch Geometric {versions['torch-geometric']}, Python {versions['python']}; "
        f"yardstick {' and '.join(f'{value:.1f}' for value in content['yardstick_milliseconds'])} ms.\n"
    )
    return "\n".join([heading, *(sheet.to_markdown() for sheet in benchmark_sheets(content))])


def benchmark_figure(content: Json) -> Figure:
    """CPU seconds of a round over nodes and over clients, both axes logarithmic, with the fitted exponents.

    Only the series with the most sizes are drawn.
    """
    from matplotlib.figure import Figure

    kinds = [grows for grows in ("nodes", "clients") if any(s["grows"] == grows for s in content["scaling"])]
    figure = Figure(figsize=(5.6 * len(kinds), 5.2), layout="constrained")
    for axes, grows in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        series = [s for s in content["scaling"] if s["grows"] == grows]
        longest = max(len(s["sizes"]) for s in series)
        _draw_series(axes, [s for s in series if len(s["sizes"]) == longest])
    figure.suptitle(f"Cost of a round on banks, threads: {content['threads']}", fontsize=12)
    return figure


def _rounds(content: Json, dataset: str) -> Sheet:
    cases = [case for case in content["cases"] if case["dataset"] == dataset]
    compared = any(case["reference"] is not None for case in cases)
    columns = ["nodes/clients", "model", "CPU s", "wall s", "× floor"] + ["ref. CPU s", "speed-up"] * compared
    rows = []
    for case in cases:
        ours, other = case["ours"], case["reference"]
        rows.append([_size(case), _model(case), *(_seconds(ours[f"{clock}_seconds"]) for clock in ("cpu", "wall"))])
        rows[-1] += [_times(case["ours_to_floor"])]
        if other is not None:
            once = "*" if other["repetitions"] == 1 else ""
            rows[-1] += [_seconds(other["cpu_seconds"]) + once, _times(case["reference_to_ours"])]
    title = f"{dataset}: time of a round"
    return Sheet(title, columns, rows, sections=_new_sizes(cases), num_labels=2, note=_note(cases))


def _note(cases: Sequence[Json]) -> str:
    sentences = ["Medians; ratios are of CPU time, medians over rounds played in turn."]
    if any(case["reference"] and case["reference"]["repetitions"] == 1 for case in cases):
        sentences.append("* One round of the reference, without a warm-up: more would take too long.")
    apart = [case["difference"] for case in cases if case["difference"]]
    if apart:
        loss, overall = (max(difference[name] for difference in apart) for name in ("loss", "overall"))
        sentences.append(
            f"After the same rounds, test loss and accuracy of the reference differ from ours by at most {loss:.0e} "
            f"(relative) and {overall:.0e}."
        )
    for case in cases:
        for player in ("ours", "floor", "reference"):
            if case[player] and case[player]["failure"]:
                sentences.append(f"{_size(case)}, {_model(case)}: {player} failed, {case[player]['failure']}.")
    return " ".join(sentences)


def _memory(content: Json) -> Sheet:
    cases = content["cases"]
    compared = any(case["reference"] is not None for case in cases)
    columns = ["data set", "nodes/clients", "model", "peak MB"] + ["ref. MB"] * compared + ["first CPU s"]
    rows = []
    for case in cases:
        players = ["ours"] + ["reference"] * compared
        peaks = [_megabytes(case[player] and case[player]["peak_bytes"]) for player in players]
        first = _seconds(case["ours"]["first_round_cpu_seconds"])
        rows.append([case["dataset"], _size(case), _model(case), *peaks, first])
    note = (
        "Largest resident set of each process; CPU time from its start, data included, to the end of its first round "
        "(first CPU s)."
    )
    return Sheet("Memory and start-up", columns, rows, sections=_new_sizes(cases), num_labels=3, note=note)


def _growth(content: Json) -> Sheet:
    columns = ["grows", "from", "to", "at", "model", "exponent", "growth"]
    rows = [
        [
            series["grows"],
            *(f"{series['sizes'][end]:,}" for end in (0, -1)),
            f"{series['at']:,} {series['stays']}",
            _model(series),
            f"{series['exponent']:.2f}",
            f"{series['growth']:.2f}",
        ]
        for series in content["scaling"]
    ]
    sections = [i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0]]
    note = "Exponent of the CPU time by least squares on logarithms; growth: cost at the last size over the first."
    return Sheet("How the cost of a round on banks grows", columns, rows, sections=sections, num_labels=5, note=note)


def _draw_series(axes: Axes, series: Sequence[Json]) -> None:
    grows, stays = series[0]["grows"], series[0]["stays"]
    several = len({s["at"] for s in series}) > 1
    for line in series:
        at = f", {line['at']:,} {stays}" if several else ""
        power = f"exponent {line['exponent']:.2f}" if grows == "nodes" else f"{line['growth']:.1f} times"
        axes.plot(
            line["sizes"],
            line["cpu_seconds"],
            marker=_MARKERS[line["backbone"]],
            color=_COLOURS[line["backbone"]],
            linestyle="-" if line["algorithm"] == "fedspray" else "--",
            alpha=1 if line["at"] == series[0]["at"] else 0.45,
            markersize=5,
            label=f"{_model(line)}{at}: {power}",
        )
    _scale(axes, series)
    axes.set_xlabel(grows if several else f"{grows} ({series[0]['at']:,} {stays})")
    axes.set_title(f"by {grows}", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    tidy(axes)


def _scale(axes: Axes, series: Sequence[Json]) -> None:
    """Logarithms; the sizes as ticks, and at least a decade of costs, so that noise does not look like growth."""
    from matplotlib.ticker import LogLocator

    sizes = sorted({size for line in series for size in line["sizes"]})
    costs = [cost for line in series for cost in line["cpu_seconds"]]
    centre, half = math.sqrt(min(costs) * max(costs)), max(math.sqrt(10), 1.3 * math.sqrt(max(costs) / min(costs)))
    axes.set(xscale="log", yscale="log", ylabel="CPU seconds per round", ylim=(centre / half, centre * half))
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_yticks([], minor=True)


def _new_sizes(cases: Sequence[Json]) -> list[int]:
    """Where another size or data set begins, if there are several models."""
    if len({_model(case) for case in cases}) == 1:
        return []
    return [i for i in range(1, len(cases)) if _where(cases[i]) != _where(cases[i - 1])]


def _where(case: Json) -> tuple[str, str]:
    return case["dataset"], _size(case)


def _size(case: Json) -> str:
    return _MISSING if case["nodes"] is None else f"{case['nodes']:,}/{case['clients']:,}"


def _model(case: Json) -> str:
    return f"{_NAMES[case['backbone']]} {_NAMES[case['algorithm']]}"


def _seconds(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _megabytes(value: int | None) -> str:
    return _MISSING if value is None else f"{value / 1e6:,.0f}"


def _times(ratio: Json | None) -> str:
    return _MISSING if ratio is None else f"{ratio['cpu']:.2f}" if ratio["cpu"] < 10 else f"{ratio['cpu']:.0f}"
