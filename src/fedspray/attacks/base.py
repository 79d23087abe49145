"""The contract of an attack: from what a server has at the end of a run to scores beside those of a guess.

The attacker is the server. It keeps to the protocol, knows all settings, the data's shape and the label distribution of
all clients together, and keeps everything that arrives, as it arrives: after noise, or as sums alone if the run has
`secure-sum`. The truth is only for scoring.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedspray.data.federation import Federation
from fedspray.nn.tree import Message
from fedspray.runs.models import PersonalModel
from fedspray.runs.settings import Resolved


@dataclass(frozen=True)
class Exchange:
    """What crossed in one round."""

    round_index: int
    sent: Mapping[int, Message]
    """By client: what the server sent, [1, …]."""
    updates: Mapping[int, Message]
    """By client: its update, [1, …]; where only sums are seen, what they combine to, the same for all."""
    counts: Mapping[int, Message]
    """By client: its evaluation counts; where only sums are seen, the sums."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What the server has at the end of a run."""

    run: Resolved
    exchanges: Sequence[Exchange]
    only_sums: bool
    models: Mapping[str, PersonalModel]
    """The personal models, for attacks on models that were given away."""
    shadows: Mapping[str, PersonalModel]
    """The attacker's own: of an unprotected run whose training nodes were drawn again."""


@dataclass(frozen=True)
class Finding:
    """One score of an attack."""

    measure: str
    value: float
    guess: float
    """The score without anything that clients sent."""
    source: str
    """What it was found from."""


@dataclass(frozen=True)
class Attack(ABC):
    """Base of all attacks."""

    summary: ClassVar[str]
    """One line for lists."""
    batches: ClassVar[tuple[int | None, ...]] = (None,)
    """How many training nodes each client has in the runs that are attacked; None: all."""
    rounds: ClassVar[int | None] = None
    """After how many rounds the server has seen enough; None: at the end."""
    needs_shadows: ClassVar[bool] = False

    @abstractmethod
    def findings(self, seen: Seen, truth: Federation) -> list[Finding]:
        """The scores; none if nothing is sent that this attack reads."""
