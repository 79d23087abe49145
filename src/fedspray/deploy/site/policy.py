"""Which runs a site takes without asking anybody: `state/policy.toml`, which its engineer writes.

Without the file, or with ``unasked = false``, every run waits for `fedspray site accept`. Nothing here imports torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, time
from pathlib import Path
from typing import Any, Self

from fedspray import files
from fedspray.deploy import ledger
from fedspray.errors import InputError

FILE = "policy.toml"
EVERYTHING = """\
# Which runs this site accepts without asking. All others wait for: fedspray site accept KIT RUN
unasked = true

# Remove the # of a line to limit them; a run outside any limit waits for an answer.
# algorithms = ["fedspray", "fedavg"]
# max_rounds = 100              # of all seeds together
# max_bytes = 50_000_000        # that leave in one run, at most
# hours = ["20:00-06:00"]       # when a run may begin, by this machine's clock
# epsilon = 4.0                 # that all runs of this ledger may spend together; a run without dp waits
"""


@dataclass(frozen=True)
class Offer:
    """What a run asks of a site."""

    run: str
    agreement: str
    algorithm: str
    rounds: int
    """Of all seeds together."""
    bytes: int
    """That leave, at most."""
    epsilon: float | None
    """That it spends at the end of all rounds of all seeds; None without `dp`."""


@dataclass(frozen=True)
class Policy:
    """The limits within which runs are taken unasked."""

    unasked: bool = False
    algorithms: list[str] | None = None
    max_rounds: int | None = None
    max_bytes: int | None = None
    hours: list[str] | None = None
    epsilon: float | None = None

    @classmethod
    def read(cls, kit: Path) -> Self:
        """A site's policy; that of a kit without any asks about every run."""
        file = kit / "state" / FILE
        if not file.exists():
            return cls()
        try:
            content = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is not a TOML file that can be read ({error})") from None
        known = {each.name: _CHECKS[each.name] for each in fields(cls)}
        for name, value in content.items():
            if name not in known:
                raise InputError(f"{name} in {file} is not a limit: there are {', '.join(known)}")
            wanted, fits = known[name]
            if not fits(value):
                raise InputError(f"{name} in {file} is {value!r}, but must be {wanted}")
        return cls(**content)

    def objection(self, offer: Offer, spent: Callable[[], float], now: datetime) -> str | None:
        """Why a run is not taken unasked; None if it is."""
        if not self.unasked:
            return "the policy asks about every run"
        if self.algorithms is not None and offer.algorithm not in self.algorithms:
            return f"algorithm {offer.algorithm} is not in the policy"
        for name, limit in (("rounds", self.max_rounds), ("bytes", self.max_bytes)):
            if limit is not None and getattr(offer, name) > limit:
                return f"it takes {getattr(offer, name):,} {name}, but the policy allows {limit:,}"
        if self.hours is not None and not any(_within(now.time(), span) for span in self.hours):
            return f"it is {now:%H:%M}, but runs may begin at {', '.join(self.hours)}"
        if self.epsilon is None:
            return None
        if offer.epsilon is None:
            return "it has no dp, but the policy has a privacy budget"
        left = self.epsilon - spent()
        return None if offer.epsilon <= left else f"it spends ε = {offer.epsilon:.3g}, but {max(0.0, left):.3g} is left"


def accept_all(kit: Path) -> None:
    """Writes a policy that takes every run under the site's agreement."""
    (kit / "state").mkdir(exist_ok=True)
    files.write_text(kit / "state" / FILE, EVERYTHING)


def spent(kit: Path, without: str = "") -> float:
    """ε that all runs in a site's ledger spent together, those with the name ``without`` left out."""
    most: dict[tuple[Any, Any], float] = {}
    for line in ledger.read_answers(kit):
        if "privacy" in line and line["run"] != without:
            key = line["run"], line["seed"]
            most[key] = max(most.get(key, 0.0), float(line["privacy"]["epsilon"]))
    return sum(most.values())


def _span(text: str) -> tuple[time, time]:
    first, _, last = text.partition("-")
    return time.fromisoformat(first), time.fromisoformat(last)


def _within(now: time, span: str) -> bool:
    first, last = _span(span)
    return first <= now < last if first <= last else now >= first or now < last


def _is_span(value: Any) -> bool:
    try:
        _span(value)
    except (ValueError, AttributeError):
        return False
    return len(value) == len("08:00-18:00")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


_COUNT = ("a whole number from 0 on", lambda value: _is_number(value) and isinstance(value, int))
_CHECKS: dict[str, tuple[str, Any]] = {
    "unasked": ("true or false", lambda value: isinstance(value, bool)),
    "algorithms": (
        "a list of names",
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    ),
    "max_rounds": _COUNT,
    "max_bytes": _COUNT,
    "hours": (
        'a list of times like "08:00-18:00"',
        lambda value: isinstance(value, list) and all(map(_is_span, value)),
    ),
    "epsilon": ("a number from 0 on", _is_number),
}
