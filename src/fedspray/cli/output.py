"""What goes where: results to standard output, everything else to standard error.

With ``--json`` standard output holds one JSON object and nothing else, so it can be piped; tables are
for people and then go to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console, RenderableType
from rich.text import Text

from fedspray.errors import one_line


class Output:
    """The two streams of one command."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._results = Console(stderr=as_json)
        self.messages = Console(stderr=True)
        """Standard error: hand it to progress displays."""

    @property
    def width(self) -> int:
        """Columns of text that `show` has."""
        return self._results.width

    def show(self, content: RenderableType) -> None:
        """Prints a table or text for people; with ``--json`` it goes to standard error."""
        self._results.print(content)

    def result(self, content: Mapping[str, Any] | list[dict[str, Any]]) -> None:
        """Prints the command's JSON, if ``--json`` asked for it."""
        if self.as_json:
            sys.stdout.write(to_json(content))
            sys.stdout.flush()

    def note(self, sentence: str) -> None:
        """One line on standard error."""
        self.messages.print(Text(one_line(sentence), style="dim"), soft_wrap=True)

    @contextmanager
    def busy(self, sentence: str) -> Iterator[None]:
        """A spinner on standard error during slow steps; silent without a terminal."""
        if not self.messages.is_terminal:
            yield
            return
        with self.messages.status(Text(sentence)):
            yield


def to_json(content: Mapping[str, Any] | list[dict[str, Any]]) -> str:
    """Strict JSON (NaN is an error, not a value), indented, with a newline at the end."""
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def print_alert(kind: Literal["error", "warning"], sentence: str) -> None:
    """``error: …`` in red or ``warning: …`` in yellow, on one line of standard error."""
    colour = "red" if kind == "error" else "yellow"
    text = Text(f"{kind}: ", style=f"bold {colour}").append(one_line(sentence), style=colour)
    Console(stderr=True).print(text, soft_wrap=True)
