"""A table as text, written once and shown in the terminal, in Markdown, in LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    "…": r"\ldots{}",
    "–": "--",
    **{
        mark: f"${text}$"
        for mark, text in {"−": "-", "±": r"\pm", "×": r"\times", "≤": r"\le", "≥": r"\ge", "→": r"\to"}.items()
    },
    **{
        mark: f"$\\{name}$"
        for marks, names in (
            ("αβγδεζηθικλμν", "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu"),
            ("ξπρστυφχψω", "xi pi rho sigma tau upsilon varphi chi psi omega"),
            ("ΓΔΘΛΞΠΣΦΨΩ", "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"),
        )
        for mark, name in zip(marks, names.split(), strict=True)
    },
}
_MARKDOWN = re.compile(r"[\\|]|<(?=[A-Za-z/!])")


@dataclass(frozen=True)
class Sheet:
    """A table of texts. The first `num_labels` columns are names, the others figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()
    """Cells (row, column) that stand out."""
    sections: Sequence[int] = field(default_factory=tuple)
    """Rows that a line is drawn above."""
    num_labels: int = 1
    note: str = ""

    def to_rich(self) -> Table:
        """For the terminal."""
        table = Table(
            title=escape(self.title),
            title_justify="left",
            title_style="bold",
            caption=f"{escape(self.note)}\n" if self.note else None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        for index, name in enumerate(self.columns):
            table.add_column(escape(name), justify="left" if index < self.num_labels else "right")
        for r, row in enumerate(self.rows):
            if r in self.sections and r > 0:
                table.add_section()
            table.add_row(*(self._marked(r, c, escape(text), "[bold]", "[/bold]") for c, text in enumerate(row)))
        return table

    def to_markdown(self) -> str:
        """A pipe table under its title, with the note below."""
        rule = [":--" if c < self.num_labels else "--:" for c in range(len(self.columns))]
        body = [
            [self._marked(r, c, markdown(text), "**", "**") for c, text in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]
        lines = ["| " + " | ".join(cells) + " |" for cells in (list(map(markdown, self.columns)), rule, *body)]
        note = f"\n{markdown(self.note)}\n" if self.note else ""
        return f"**{markdown(self.title)}**\n\n" + "\n".join(lines) + "\n" + note

    def to_latex(self) -> str:
        """A float with rules of the package booktabs."""
        align = "l" * self.num_labels + "r" * (len(self.columns) - self.num_labels)
        body = []
        for r, row in enumerate(self.rows):
            if r in self.sections and r > 0:
                body.append(r"\midrule")
            cells = [self._marked(r, c, latex(text), r"\textbf{", "}") for c, text in enumerate(row)]
            # After a rule or \\ a bracket would be read as a length.
            body.append(("{}" if cells[0].startswith("[") else "") + " & ".join(cells) + r" \\")
        caption = f"{self.title}. {self.note}".strip()
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex(caption)}}}",
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            " & ".join(map(latex, self.columns)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def _marked(self, r: int, c: int, text: str, before: str, after: str) -> str:
        return f"{before}{text}{after}" if (r, c) in self.bold and text else text


def markdown(text: str) -> str:
    """Text with Markdown's special characters escaped."""
    return _MARKDOWN.sub(r"\\\g<0>", text)


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(mark, mark) for mark in text)


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with a header; None is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
