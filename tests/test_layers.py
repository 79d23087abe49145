"""Imports go one way: a layer may import the layers that are listed for it, and nothing above."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

TOP = "fedspray"
"""The package's own `__init__`: the public API, above everything but the command line."""

_BASE = {"display", "errors", "files", "knob", "memory", "seeds", "stored", "plugins"}
_DATA = _BASE | {"data"}
_NN = _DATA | {"nn"}
_EXPERIMENT = _DATA | {"datasets", "partitioners", "experiment"}
_ALGORITHMS = _NN | {"messages", "backbones", "algorithms"}
_ENGINE = _ALGORITHMS | {"evaluation", "experiment", "links", "engine"}
_FEDERATE = _EXPERIMENT | {"federate"}

MAY_IMPORT: dict[str, set[str]] = {
    "display": _BASE,
    "errors": _BASE,
    "memory": _BASE,
    "stored": _BASE,
    "files": _BASE,
    "seeds": _BASE,
    "plugins": _BASE,
    "data": _DATA,
    "tables": _DATA | {"tables"},
    "datasets": _DATA | {"datasets"},
    "partitioners": _DATA | {"partitioners"},
    "knob": _BASE,
    "experiment": _EXPERIMENT,
    "federate": _FEDERATE,
    "nn": _NN,
    "messages": _NN | {"messages"},
    "backbones": _NN | {"backbones"},
    "algorithms": _ALGORITHMS,
    "links": _EXPERIMENT | _NN | {"messages", "backbones", "links"},
    "evaluation": _NN | {"messages", "evaluation"},
    "engine": _ENGINE,
    "objects": _ALGORITHMS | {"objects"},
    "runs": _ENGINE | _FEDERATE | {"tables", "runs"},
    "attacks": _ENGINE | _FEDERATE | {"runs", "attacks"},
    "studies": _ENGINE | _FEDERATE | {"runs", "studies"},
    "deploy": _ENGINE | _FEDERATE | {"runs", "deploy"},
    "report": _DATA | {"evaluation", "experiment", "runs", "studies", "deploy", "report"},
    "testing": _ALGORITHMS | {"testing"},
}
"""The layers from low to high. `cli` and the public API stand on top and may import anything."""

ANYTHING = {"__main__", "api", "cli", "progress", TOP}

PLUGIN_LAYERS = {"datasets", "partitioners", "backbones", "algorithms", "links", "attacks"}


@dataclass(frozen=True)
class Import:
    """One module of this package that another one asks for."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported} (line {self.line})"


def find_violations(source: Path) -> list[str]:
    """Every import under ``source`` that goes the wrong way."""
    modules = {_module_name(file, source): file for file in sorted((source / TOP).rglob("*.py"))}
    imports = [found for name, file in modules.items() for found in _imports(name, file, set(modules))]
    unplaced = sorted({_layer(name) for name in modules} - set(MAY_IMPORT) - ANYTHING)
    problems = [f"{layer} has no layer: give it one in {Path(__file__).name}" for layer in unplaced]
    for found in imports:
        low, high = _layer(found.importer), _layer(found.imported)
        if low in MAY_IMPORT and high not in MAY_IMPORT[low]:
            problems.append(f"{found}, but {low} is below {high}")
        elif low == high and low in PLUGIN_LAYERS and not _is_shared(found):
            problems.append(f"{found}, but plug-ins do not import each other")
    return problems


def _is_shared(found: Import) -> bool:
    package = f"{TOP}.{_layer(found.importer)}"
    if package in (found.importer, found.imported):
        return True
    name = found.imported.removeprefix(f"{package}.")
    return name == "base" or name.startswith("_")  # shared machinery, not a plug-in


def _imports(name: str, file: Path, modules: set[str]) -> Iterator[Import]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in _nodes(file.read_text()):
        for target in _targets(node, package, modules):
            if target.split(".")[0] == TOP and target != name:
                yield Import(name, target, node.lineno)  # type: ignore[attr-defined]


@cache
def _nodes(text: str) -> list[ast.AST]:
    """Those that can name a module."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant)
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def _targets(node: ast.AST, package: str, modules: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, *([base] if base else [])])
        names = [f"{base}.{alias.name}" for alias in node.names]
        return [name if name in modules else base for name in names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # A module that is named in a string is imported through `plugins` or importlib.
        return [node.value] if re.fullmatch(rf"{TOP}(\.\w+)+", node.value) and node.value in modules else []
    return []


def _module_name(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layer(module: str) -> str:
    return TOP if module == TOP else module.split(".")[1]


# ---- the package --------------------------------------------------------------------------------


def test_imports_go_one_way() -> None:
    assert find_violations(SOURCE) == []


LABORATORY = {"reproduction", "benchmarks"}
"""Beside the package, above all of it, and not part of its wheel."""


@pytest.mark.parametrize("folder", ["src", *sorted(LABORATORY)])
def test_nobody_imports_the_laboratory(folder: str) -> None:
    found = set()
    for file in (SOURCE.parent / folder).rglob("*.py"):
        for node in _nodes(file.read_text()):
            found |= {(file.name, name.split(".")[0]) for name in _targets(node, folder, set())}
    assert {(file, name) for file, name in found if name in LABORATORY - {folder}} == set()


# ---- the check itself ---------------------------------------------------------------------------

CLEAN = {
    "__init__": "from fedspray.runs.store import save",
    "errors": "",
    "data.graph": "from fedspray.errors import InputError",
    "nn.ops": "import torch\nfrom fedspray.data import graph",
    "algorithms.base": "from fedspray.nn.ops import spread",
    "algorithms.fedavg": "from fedspray.algorithms.base import Algorithm",
    "algorithms.local": "",
    "engine.rounds": 'NAME = "fedspray.algorithms"',
    "runs.store": "from fedspray.engine import rounds",
    "cli.main": "def run():\n    from fedspray.runs import store",
}


def write_tree(folder: Path, modules: dict[str, str]) -> Path:
    for name, text in modules.items():
        file = folder.joinpath(TOP, *name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for parent in file.relative_to(folder).parents:
            if parent != Path() and not (folder / parent / "__init__.py").exists():
                (folder / parent / "__init__.py").write_text("")
    return folder


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    assert find_violations(write_tree(tmp_path, CLEAN)) == []


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("data.graph", "import fedspray.nn.ops", "fedspray.data.graph imports fedspray.nn.ops (line 1)"),
        ("data.graph", "from fedspray.cli import main", "data is below cli"),
        ("data.graph", "def lazy():\n    from fedspray import nn", "fedspray.data.graph imports fedspray.nn (line 2)"),
        ("data.graph", "from ..engine.rounds import run_rounds", "data is below engine"),
        ("data.graph", 'LAZY = "fedspray.algorithms.fedavg"', "data is below algorithms"),
        ("data.graph", "from fedspray import save", "data is below fedspray"),
        ("errors", "from fedspray.data import graph", "errors is below data"),
        ("engine.rounds", "if TYPE_CHECKING:\n    from fedspray.runs import store", "engine is below runs"),
        ("algorithms.fedavg", "from fedspray.algorithms import local", "plug-ins do not import each other"),
        ("algorithms.fedavg", "from .local import Local", "plug-ins do not import each other"),
        ("helpers.misc", "", "helpers has no layer"),
    ],
)
def test_an_offending_tree_fails(tmp_path: Path, module: str, text: str, complaint: str) -> None:
    problems = find_violations(write_tree(tmp_path, {**CLEAN, module: text}))
    assert len(problems) == 1
    assert complaint in problems[0]
