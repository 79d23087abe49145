"""docs/architecture.md names what the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedspray"
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()


def stream_names(source: str) -> set[str]:
    """Every word by which this code names a random stream."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    words = set()
    for call in calls:
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if called in ("generator", "torch_generator", "stream_key"):
            words |= {a.value for a in call.args[1:] if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return words


def table(first_column: str) -> str:
    """The rows of the table that begins with this column."""
    return DOCUMENT.split(f"| {first_column} |")[1].split("\n\n")[0]


def test_stream_names_are_found_in_code() -> None:
    source = """
draw = seeds.generator(seed, "a", k)
use(torch_generator(stream_key(seed, "b"), "c d", 1))
other(seed, "e")
"""
    assert stream_names(source) == {"a", "b", "c d"}


def test_every_random_stream_is_in_the_table_and_nothing_else() -> None:
    folders = (PACKAGE, ROOT / "reproduction", ROOT / "benchmarks")
    used = set().union(*(stream_names(file.read_text()) for folder in folders for file in folder.rglob("*.py")))
    assert set(re.findall(r'`"([^"]+)"`', table("draw"))) == used


def test_every_shared_module_is_mentioned() -> None:
    row = next(line for line in table("layer").splitlines() if line.startswith("| `nn` |"))
    for folder, text in (("nn", row), ("algorithms", DOCUMENT)):
        modules = {file.stem for file in (PACKAGE / folder).glob("*.py") if file.stem != "__init__"}
        shared = modules if folder == "nn" else {name for name in modules if name.startswith("_")}
        assert shared - set(re.findall(r"`(\w+)`", text)) == set()
