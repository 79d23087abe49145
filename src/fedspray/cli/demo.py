"""``fedspray demo``: what FedSpray is for, in about a minute."""

from __future__ import annotations

from typing import Annotated

from fedspray.cli.flags import Count, flag
from fedspray.cli.output import Output
from fedspray.cli.run import show_progress


def demo(
    *,
    rounds: Annotated[Count, flag("Number of rounds.", "R")] = 200,
) -> None:
    """Train FedAvg, FedSpray and FedSpray 2 on PubMed (or on `banks`, if PubMed is not available) and compare them."""
    from fedspray import build_federation, describe, run
    from fedspray.errors import MissingDataError
    from fedspray.report.clients import clients_table
    from fedspray.report.tables import comparison_table
    from fedspray.runs import benefit

    output = Output()
    try:
        with output.busy("preparing pubmed …"):
            federation = build_federation("pubmed")
    except MissingDataError as error:
        output.note(f"PubMed is not available here ({error}), so this uses the built-in data set banks.")
        federation = build_federation("banks")
    output.show(clients_table(describe(federation), output.width))
    summaries = []
    for algorithm in ("fedavg", "fedspray", "fedspray2"):
        with show_progress(output, rounds, (0,), label=algorithm) as on_record:
            result = run(federation, algorithm=algorithm, rounds=rounds, on_record=on_record)
        summaries.append(result.summary())
    output.show(comparison_table(summaries))
    for sentence in benefit.sentences(summaries[-1]):
        output.note(sentence)
    output.note(
        "Minority nodes are those outside their client's largest class. "
        "Next: fedspray run --help, or the Python quick start in README.md."
    )
