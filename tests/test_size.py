"""Code that is easy to read: no long function, and nothing written twice."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = {
    file: file.read_text() for folder in ("src", "reproduction", "benchmarks") for file in (ROOT / folder).rglob("*.py")
}

LONGEST = 60
"""Lines of a function."""
SAME = 8
"""Identical lines that may stand in two places, imports and empty lines not counted."""


def lines_of(text: str) -> dict[str, int]:
    """How long every function is."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes}


def repeated(files: dict[Path, str], count: int) -> list[str]:
    """Where a block of ``count`` lines stands for the second time."""
    first: dict[tuple[str, ...], tuple[Path, int]] = {}
    found = []
    for file, text in sorted(files.items()):
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        left_out = {number for node in imports for number in range(node.lineno, (node.end_lineno or 0) + 1)}
        numbered = [(n, line.strip()) for n, line in enumerate(text.splitlines(), start=1) if n not in left_out]
        lines = [(number, line) for number, line in numbered if line]
        for start in range(len(lines) - count + 1):
            place = (file, lines[start][0])
            block = tuple(line for _, line in lines[start : start + count])
            before = first.setdefault(block, place)
            if before != place:
                found.append(f"{file}:{place[1]} repeats {before[0]}:{before[1]}")
    return found


def test_functions_are_short() -> None:
    found = {(file.name, name): lines for file, text in FILES.items() for name, lines in lines_of(text).items()}
    assert {place: lines for place, lines in found.items() if lines > LONGEST} == {}


def test_nothing_is_written_twice() -> None:
    assert repeated(FILES, SAME + 1) == []


def test_the_checks_find_what_they_look_for() -> None:
    block = "".join(f"value_{i} = {i}\n" for i in range(SAME + 1))
    twice = {Path("a.py"): f"import os\n{block}", Path("b.py"): f"other = 1\n\n{block}"}
    assert repeated(twice, SAME + 1) == ["b.py:3 repeats a.py:2"]
    assert repeated({Path("a.py"): f"{block}\n{block}"}, SAME + 1) == [f"a.py:{SAME + 3} repeats a.py:1"]
    long = ["def long() -> None:", *["    pass"] * LONGEST]
    assert lines_of("\n".join(["def short() -> None:", "    pass", *long])) == {"short": 2, "long": LONGEST + 1}
