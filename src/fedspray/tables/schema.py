"""`Schema`: what the columns of an organisation's files mean, as a TOML file that people read, edit and agree on.

    format = 1
    [nodes]      where the rows are, which column is the id, which the label, and the classes in order
    [edges]      where the edges are, and which columns hold their two ends
    [split]      which nodes are for training, validation and test
    [[features]] one for each column, or for several that are treated alike

Paths are relative to the schema's folder. A ``{client}`` in a path stands for the client's name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedspray.data.graph import repeated
from fedspray.data.splits import SPLIT, SplitRule
from fedspray.display import count, line
from fedspray.errors import InputError, MissingDataError, unknown
from fedspray.tables import toml
from fedspray.tables.feature import Feature

FORMAT = 1
CLIENT = "{client}"
"""Stands for the client's name in the path of a file."""

SPLITS = ("random", "stratified", "time", "column")
DIRECTIONS = ("either", "mutual")
WEIGHT_SCALES = ("none", "log")
STRUCTURE = ("degree", "neighbour_degree", "clustering", "core")

Files = tuple[str, ...] | Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """What nodes and edges have in common: files, and how their text is read."""

    files: Files = ()
    query: str | None = None
    delimiter: str | None = None
    encoding: str = "utf-8"
    header: bool = True
    missing: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise InputError(f"delimiter is {self.delimiter!r}, but must be one character")
        if isinstance(self.files, Mapping):
            wrong = next((name for name in self.files if not re.fullmatch(r"[A-Za-z_]\w*", name)), None)
            if wrong is not None:
                raise InputError(f"files has a table {wrong!r}, but a name in SQL must be letters, digits and _")
            if self.query is None:
                raise InputError("files names several tables, so a query must say how they make one")


@dataclass(frozen=True)
class Nodes(Table):
    """The table of nodes."""

    id: str | None = None
    label: str | None = None
    classes: tuple[str, ...] | None = None
    """Values of the label column in the order of class numbers."""
    class_names: tuple[str, ...] | None = None
    client: str | None = None
    structure: tuple[str, ...] = ()
    """Features made from the edges."""
    sparse: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = next((name for name in self.structure if name not in STRUCTURE), None)
        if wrong is not None:
            raise unknown("structural feature", wrong, STRUCTURE)
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise InputError("classes lists a value twice, but each is one class")
        if self.class_names is not None and (self.classes is None or len(self.classes) != len(self.class_names)):
            raise InputError("class_names must have one name for each value in classes")
        if self.label is None and self.classes is not None:
            raise InputError("classes are given without label, the column that holds them")


@dataclass(frozen=True)
class Edges(Table):
    """The table of edges."""

    source: str | None = None
    target: str | None = None
    weight: str | None = None
    weight_scale: str = "none"
    time: str | None = None
    until: str | None = None
    direction: str = "either"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction not in DIRECTIONS:
            raise unknown("direction", self.direction, DIRECTIONS)
        if self.weight_scale not in WEIGHT_SCALES:
            raise unknown("weight_scale", self.weight_scale, WEIGHT_SCALES)
        toml.check_moment("until", self.until)
        if self.until is not None and self.time is None:
            raise InputError("until is given without time, the column that says when an edge was")


@dataclass(frozen=True)
class SplitChoice:
    """Which nodes are for training, validation and test."""

    kind: str = "random"
    parts: str = SPLIT
    column: str | None = None
    """Of the part's name (kind 'column') or of the moment (kind 'time')."""
    train: str = "train"
    val: str = "val"
    test: str = "test"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in SPLITS:
            raise unknown("kind of split", self.kind, SPLITS)
        needs = self.kind in ("column", "time")
        if needs != (self.column is not None):
            raise InputError(
                f"column is {self.column!r}, but kind {self.kind!r} " + ("needs one" if needs else "has none")
            )
        _ = SplitRule(self.parts)


@dataclass(frozen=True)
class Schema:
    """The meaning of an organisation's tables."""

    nodes: Nodes = Nodes()
    edges: Edges = Edges()
    split: SplitChoice = SplitChoice()
    features: tuple[Feature, ...] = ()
    name: str | None = None
    folder: Path = field(default=Path(), compare=False)
    """What relative paths start from."""

    def __repr__(self) -> str:
        label = None if self.nodes.label is None else f"label {self.nodes.label}"
        return line(self, self.name, label, count(len(self.features), "entry for features", "entries for features"))

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Reads and checks a TOML file; an error names the first mistake and its place."""
        file = Path(path)
        if not file.is_file():
            raise MissingDataError(f"{file} is not a file, but a schema in TOML is needed: fedspray import --suggest")
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file} is not text in UTF-8 ({error})") from None
        return replace(cls.from_toml(text, str(file)), folder=file.parent)

    @classmethod
    def from_toml(cls, text: str, where: str = "the schema") -> Schema:
        """From the text of a TOML file."""
        try:
            content = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not TOML: {error}") from None
        toml.check_known(content, ("format", "name", "nodes", "edges", "split", "features"), where)
        if content.get("format") != FORMAT:
            raise InputError(f"{where}: format is {content.get('format')!r}, but this version reads {FORMAT}")
        listed = content.get("features", [])
        if not isinstance(listed, list):
            raise InputError(f"{where}: features is a table, but must be a list of tables: [[features]]")
        features = tuple(
            _section(Feature, part, f"{where}, [[features]] number {number}")
            for number, part in enumerate(listed, start=1)
        )
        twice = repeated(column for feature in features for column in feature.columns if "*" not in column)
        if twice is not None:
            raise InputError(f"{where}: column {twice!r} is in two features, but must be in one")
        sections = {"nodes": Nodes, "edges": Edges, "split": SplitChoice}
        read = {key: _section(kind, content.get(key, {}), f"{where}, [{key}]") for key, kind in sections.items()}
        return cls(**read, features=features, name=toml.text(content["name"], where) if "name" in content else None)

    def to_toml(self, notes: Mapping[str, str] | None = None) -> str:
        """The text of a TOML file; ``notes`` are comments, by section or by a feature's title."""
        notes = notes or {}
        lines = [f"format = {FORMAT}"] + ([f"name = {toml.toml(self.name)}"] if self.name else [])
        for key in ("nodes", "edges", "split"):
            lines += ["", *toml.comment(notes.get(key)), f"[{key}]", *toml.lines_of(getattr(self, key))]
        for feature in self.features:
            lines += ["", *toml.comment(notes.get(feature.title)), "[[features]]", *toml.lines_of(feature)]
        return "\n".join(lines) + "\n"


# ---- reading ------------------------------------------------------------------------------------


def _section(kind: Any, content: object, where: str) -> Any:
    if not isinstance(content, dict):
        raise InputError(f"{where} is {content!r}, but must be a table")
    known = {f.name: f for f in fields(kind)}
    toml.check_known(content, tuple(known), where)
    needed = ("columns", "kind") if kind is Feature else ()
    absent = next((key for key in needed if key not in content), None)
    if absent is not None:
        raise InputError(f"{where} has no {absent!r}, but needs it")
    values = {}
    for key, value in content.items():
        reader = _READERS.get(key) or _READERS_BY_TYPE[str(known[key].type)]
        values[key] = reader(value, f"{where}: {key}")
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _paths(value: object, where: str) -> Files:
    return (
        {name: toml.text(path, where) for name, path in value.items()}
        if isinstance(value, dict)
        else toml.texts(value, where)
    )


_READERS: dict[str, Callable[[object, str], Any]] = {
    **dict.fromkeys(("classes", "class_names"), toml.texts),
    "vocabulary": toml.words,
    "files": _paths,
}
_READERS_BY_TYPE: dict[str, Callable[[object, str], Any]] = {
    "str": toml.text,
    "str | None": toml.moment,
    "bool": toml.flag,
    "bool | None": toml.flag,
    "int": toml.whole,
    "float | None": toml.number,
    "str | float | None": lambda value, where: value if isinstance(value, str) else toml.number(value, where),
    "tuple[str, ...]": toml.texts,
}
