"""What stored JSON holds, field by field: the one reader of stored files holds them to it.

Keys that came later are not required, since files of older versions lack them; keys that nobody knows are ignored, so
that a file of a newer version can be read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Required

from annotated_types import Ge, MinLen
from typing_extensions import TypedDict

from fedspray import files
from fedspray.display import cut
from fedspray.errors import InputError

Number = float | None


class Part(TypedDict, total=False):
    """Metrics of training, validation or test nodes."""

    overall: Required[Number]
    minority: Required[Number]
    majority: Number
    balanced: Number
    overall_client_mean: Number
    minority_client_mean: Number
    macro_f1: Number
    balanced_accuracy: Number
    loss: Number
    auc: Number
    auprc: Number
    recall_at_budget: Number
    calibration_error: Number
    recall: list[Number]


class OfClient(Part, total=False):
    """Test metrics of one client."""

    nodes: Required[int]
    minority_nodes: Required[int]
    round: int


class Bucket(TypedDict):
    """Nodes of similar homophily."""

    accuracy: Number
    nodes: int


class Seed(Part, total=False):
    """``seed-S/result.json``."""

    best_round: Required[int | None]
    rounds: Required[int]
    by_homophily: dict[str, Bucket]
    recall_by_budget: dict[str, Number]
    clients: Required[dict[str, OfClient]]
    val: Required[Part]
    train: Part
    bytes_up: Required[int]
    bytes_down: Required[int]
    bytes_evaluation: int
    failures: int
    seconds: Required[float]
    cpu_seconds: float
    models: Required[dict[str, str]]
    against_local: dict[str, dict[str, Any]]


class Federated(TypedDict, total=False):
    """What a run was on, in short."""

    num_clients: Required[Annotated[int, Ge(1)]]


class Header(TypedDict, total=False):
    """What settings and results say of a run."""

    dataset: Required[str]
    algorithm: Required[str]
    backbone: Required[str]
    preset: str | None
    backbone_of: dict[str, str]
    link: list[str]
    settings: Required[dict[str, Any]]
    federation: Required[Federated]
    device: str


class Run(TypedDict, total=False):
    """The settings of a run."""

    algorithm: Required[str]
    backbone: Required[str]
    preset: str | None
    values: Required[dict[str, Any]]
    backbone_of: dict[str, str]
    seeds: Required[Annotated[list[int], MinLen(1)]]
    keep_split: bool
    baseline: str | None
    dtype: str
    device: str
    link: list[str]


class Settings(Header, total=False):
    """``settings.json``."""

    run: Required[Run]
    source: Required[dict[str, Any] | None]
    fingerprint: Required[str | None]
    splits: str | None
    threads: Required[int]
    versions: Required[dict[str, str]]
    started: str


class Spread(TypedDict):
    """A metric over seeds."""

    mean: Number
    std: Number


class SeedOfResult(Seed, total=False):
    """A seed in a run's result."""

    seed: Required[int]


class Estimate(TypedDict, total=False):
    """How much better a client is off than alone, on one group of nodes."""

    nodes: Required[int]
    difference: Required[float]
    low: Required[float]
    high: Required[float]
    verdict: Required[str]
    validation: Number


class Groups(TypedDict):
    """The same on all and on minority nodes."""

    all: Estimate | None
    minority: Estimate | None


class Benefit(TypedDict):
    """Whom federating helped."""

    clients: dict[str, Groups]
    validation: Groups


class Result(Header, total=False):
    """``result.json``."""

    benefit: Benefit

    seeds: Required[Annotated[list[SeedOfResult], MinLen(1)]]
    overall: Required[Spread]
    minority: Required[Spread]


class Record(TypedDict, total=False):
    """A line of ``rounds.jsonl``."""

    round: Required[int]
    trained: list[int]
    failed: dict[str, str]
    bytes_down: Required[int]
    bytes_up: Required[int]
    bytes_evaluation: int
    bytes_up_by_client: list[int]
    bytes_down_by_client: list[int]
    seconds: Required[float]
    cpu_seconds: float
    diagnostics: dict[str, Any]
    train: Part
    val: Required[Part]
    test: Required[Part]
    evaluated: list[int]
    clients: dict[str, dict[str, Any]]


class Nodes(TypedDict, total=False):
    """``nodes.json``."""

    clients: Required[list[str]]
    counts: Required[list[list[list[int]]]]
    majority: Required[list[int]]
    test: Required[str]
    correct: Required[str]


class OfFederation(TypedDict, total=False):
    """One client in ``federation.json``."""

    name: Required[str]
    num_nodes: Required[int]
    num_edges: Required[int]
    isolated_nodes: int
    label_counts: Required[list[int]]
    unlabelled_nodes: int
    majority_class: int | None
    majority_nodes: int
    minority_nodes: Required[int]
    majority_homophily: Number
    minority_homophily: Number
    class_homophily: list[Number]
    label_divergence: Number
    edges_lost: int


class Description(TypedDict, total=False):
    """``federation.json``."""

    name: Required[str]
    num_clients: Required[Annotated[int, Ge(1)]]
    num_features: Required[int]
    num_classes: Required[int]
    class_names: list[str] | None
    total_nodes: Required[int]
    total_edges: Required[int]
    clients: Required[list[OfFederation]]
    label_counts: list[int]
    settings: dict[str, Any]


class Card(TypedDict, total=False):
    """``client.json``."""

    format: Required[int]
    name: Required[str]
    num_features: int
    num_classes: int
    edges_lost: Required[int]
    files: Required[dict[str, str]]


class Manifest(TypedDict, total=False):
    """``manifest.json`` of a saved federation."""

    format: Required[int]
    name: Required[str]
    clients: Required[list[str]]
    class_names: list[str] | None
    settings: Required[dict[str, Any]]
    files: Required[dict[str, str]]


class Cell(TypedDict, total=False):
    """A finished cell of a study."""

    key: Required[str]
    seed: Required[int]
    dataset: Required[str]
    algorithm: Required[str]
    backbone: Required[str]
    settings: Required[dict[str, Any]]
    federation: Required[dict[str, Any]]
    graphs: Required[str]
    versions: Required[dict[str, str]]
    finished: Required[str]
    metrics: Required[dict[str, Any]]
    """As in `Seed`, unless it is without test nodes."""
    curves: Required[dict[str, dict[str, list[Number]]]]
    nodes: Nodes | None
    validation_only: Required[bool]


def read(path: Path, kind: Any, what: str = "a run folder") -> dict[str, Any]:
    """Reads a stored JSON object, which must be of this kind; ``what`` should hold it."""
    return check(files.read_json(path, what), kind, path)


def read_seed(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result and the records in the folder of a finished seed."""
    metrics, file = read(folder / "result.json", Seed), folder / "rounds.jsonl"
    return metrics, [check(record, Record, file) for record in files.read_chain(file, metrics["rounds"])[1]]


def read_lines(path: Path, kind: Any) -> list[dict[str, Any]]:
    """The JSON objects of this kind in a file of lines; lines that a crash cut off, or others, are left out."""
    return [line for line in files.read_lines(path) if fits(line, kind)]


def fits(content: Any, kind: Any) -> bool:
    """Whether content is of this kind."""
    try:
        check(content, kind, "")
    except InputError:
        return False
    return True


def check(content: dict[str, Any], kind: Any, path: object) -> dict[str, Any]:
    """The content, if it is of this kind."""
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, found = ".".join(map(str, first["loc"])), cut(repr(first["input"]), 60)
        said = "is missing" if first["type"] == "missing" else f"is {found}: {first['msg']}"
        raise InputError(f"{path} is damaged, or not what this version reads: {where} {said}") from None
    return content


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
