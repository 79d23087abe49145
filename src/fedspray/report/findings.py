"""The sentences of a report, all computed."""

from __future__ import annotations

from collections.abc import Sequence

from fedspray.display import count
from fedspray.evaluation.counting import BUCKET_NAMES
from fedspray.evaluation.intervals import Estimate
from fedspray.files import Json
from fedspray.report.card import Card
from fedspray.report.methods import Contender

ENOUGH_SEEDS = 5
"""Fewer seeds than this bring a caution."""
MAX_NAMED = 4
"""Clients named in one sentence."""
_ANY = {1: "the only client", 2: "either client"}
KEPT_BACK = "Figures of single clients stayed at the clients"


def privacy(spent: Json) -> str:
    """What the differential privacy of a run is."""
    outside = "".join(f", without {each}" for each in spent["outside"])
    return f"ε = {spent['epsilon']:.3g} at δ = {spent['delta']:g} for {spent['unit']}, of all that left it{outside}"


def headline(cards: Sequence[Card], clients: Sequence[str]) -> str:
    """The headline of the report card."""
    compared = [card for card in cards if card.reference is not None]
    if not compared:
        first, *others = sorted(cards, key=_on_minority, reverse=True)
        return _alone(first, clients) + _others(others)
    card = max(compared, key=_on_minority)
    best = card.cell().difference
    if best is None:
        return "There is no minority test node."
    helps = f"{card.method} helps minority nodes most:"
    doubt = f"No method clearly helps minority nodes: {card.method} comes closest with"
    return f"{helps if best.verdict == 'gain' else doubt} {line(card, clients)}"


def apart(reference: str, methods: Sequence[Contender]) -> str:
    """The sentence if no method shares a test node with the reference."""
    if any(method.kept_back for method in methods):
        return f"{KEPT_BACK}, so nothing can be compared with {reference} node by node."
    return f"No other method shares a test node with {reference}: use the same seeds."


def kept_back(methods: Sequence[Contender]) -> str:
    """The headline where figures of single clients are not known."""
    rates = [(m.label, m.spread("minority")["mean"], m.spread("majority")["mean"]) for m in methods]
    known = sorted((rate for rate in rates if rate[1] is not None), key=lambda rate: -rate[1])
    if not known:
        return (
            "No accuracy left the clients, so this page can't say how good the models are: each client knows its own."
        )
    (label, minority, majority), *others = known
    shown = (
        f"{label} is right about {100 * minority:.1f}% of minority nodes and {100 * majority:.1f}% of majority nodes."
    )
    return f"{shown}{_listed([(name, rate) for name, rate, _ in others])} {KEPT_BACK}."


def line(card: Card, clients: Sequence[str]) -> str:
    """One method against its reference."""
    difference = card.cell().difference
    if difference is None:
        return "has no minority test node."
    return f"{_difference(difference)} against {card.reference}. {_who(card, clients)}{_price(card)}"


def where(card: Card) -> str:
    """At which local homophily the differences are."""
    cells = [(name, card.cell(bucket=b)) for b, name in enumerate(BUCKET_NAMES)]
    known = [(cell.difference, name, count(cell.nodes, "node")) for name, cell in cells]
    clear = [(d.value, name, nodes) for d, name, nodes in known if d is not None and d.verdict != "unclear"]
    if not clear:
        return "The difference is not clear at any level of local homophily."
    parts = []
    for (value, name, nodes), word in ((max(clear), "gain"), (min(clear), "loss")):
        if (value > 0) == (word == "gain"):
            parts.append(f"the largest clear {word} is at {_bucket(name)} ({points(value)}, {nodes})")
    sentence = "; ".join(parts)
    return sentence[0].upper() + sentence[1:] + "."


def points(value: float) -> str:
    """A signed difference in percentage points: ``+4.2`` or ``−1.0``."""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def caution(methods: Sequence[Contender], first: str, clients: Sequence[str] = ()) -> str:
    """Cautions about the headline: few seeds, clients without a result, a method that was still improving."""
    methods = [method for method in methods if method.kept_back != "all"]  # nothing is said of these
    if not methods:
        return ""
    seeds = min(len(method.seeds) for method in methods)
    parts = [] if seeds >= ENOUGH_SEEDS else [f"only {count(seeds, 'seed')}, so other draws may move these figures"]
    gone = [name for name in clients if not any(name in run.metrics["clients"] for m in methods for run in m.seeds)]
    if gone and len(gone) < len(clients):  # with sums alone no client is known
        parts.append(f"{', '.join(gone)} did not answer at the end and {'is' if len(gone) == 1 else 'are'} not counted")
    runs = next((method.seeds for method in methods if method.label == first), ())
    growing = sum(run.metrics["best_round"] == run.metrics["rounds"] for run in runs)
    if growing:
        where = "" if len(runs) == 1 else f" under {growing} of {len(runs)} seeds"
        parts.append(f"the last round of {first} was still the best{where}, so more rounds may help it")
    return "; ".join(parts) + "." if parts else ""


def named(cards: Sequence[Card]) -> str:
    """The method that the headline is about."""
    compared = [card for card in cards if card.reference is not None] or list(cards)
    return max(compared, key=_on_minority).method if compared else ""


def _on_minority(card: Card) -> float:
    """The gain over the reference or, without one, the accuracy; smallest where there is no node."""
    cell = card.cell()
    found = cell.accuracy if card.reference is None else cell.difference
    return -2.0 if found is None else found.value


def _others(cards: Sequence[Card]) -> str:
    """Methods that can't be compared node by node."""
    rates = [(card.method, card.cell("minority").accuracy) for card in cards]
    return _listed([(name, rate.value) for name, rate in rates if rate is not None])


def _listed(rates: Sequence[tuple[str, float]]) -> str:
    shown = ", ".join(f"{name} {100 * rate:.1f}%" for name, rate in rates)
    return f" Others on minority nodes: {shown}." if shown else ""


def _alone(card: Card, clients: Sequence[str]) -> str:
    minority, majority = card.cell("minority").accuracy, card.cell("majority").accuracy
    if minority is None:
        return f"{card.method}: there is no minority test node."
    rest = "" if majority is None else f" and {100 * majority.value:.1f}% of majority nodes"
    sentence = (
        f"{card.method} is right about {100 * minority.value:.1f}% of minority nodes "
        f"(95% interval {100 * minority.low:.1f} to {100 * minority.high:.1f}){rest}."
    )
    cells = [(card.cell(client=k).accuracy, name) for k, name in enumerate(clients)]
    rates = [(accuracy.value, name) for accuracy, name in cells if accuracy is not None]
    if len(rates) > 1:
        low, high = min(rates), max(rates)
        sentence += f" Minority nodes fare worst at {low[1]} ({100 * low[0]:.0f}%), best at {high[1]}"
        sentence += f" ({100 * high[0]:.0f}%)."
    return sentence


def _difference(estimate: Estimate) -> str:
    return f"{points(estimate.value)} points (95% interval {points(estimate.low)} to {points(estimate.high)})"


def _who(card: Card, clients: Sequence[str]) -> str:
    verdicts = card.verdicts()
    total = sum(map(len, verdicts.values()))
    gain, loss = (_named(card, verdicts[name], clients) for name in ("gain", "loss"))
    if not verdicts["gain"] and not verdicts["loss"]:
        return f"The difference is not clear at {_ANY.get(total, f'any of the {total} clients')}."
    gains = f"Clear gains at {len(verdicts['gain'])} of {total} clients{gain}"
    losses = f"clear losses at {len(verdicts['loss']) or 'none'}{loss}"
    return f"{gains}, {losses}."


def _price(card: Card) -> str:
    """The difference on majority nodes."""
    difference = card.cell("majority").difference
    return "" if difference is None else f" Majority nodes: {_difference(difference)}."


def _named(card: Card, ids: Sequence[int], clients: Sequence[str]) -> str:
    if not ids:
        return ""
    shown = []
    for k in ids[:MAX_NAMED]:
        difference = card.cell(client=k).difference
        shown.append(f"{clients[k]} {points(difference.value)}" if difference is not None else clients[k])
    more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return f" ({', '.join(shown)}{more})"


def _bucket(name: str) -> str:
    return "nodes without a labelled neighbour" if name == "isolated" else f"homophily {name.replace('-', '–')}"
