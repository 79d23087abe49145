"""`build_federation`: from a name and a few choices to a `Federation`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspray import datasets, plugins
from fedspray.data import preparation
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph, as_graph
from fedspray.data.reading import read_federation, read_graph
from fedspray.data.splits import SCOPES, SplitRule
from fedspray.data.traps import Trap, find_traps
from fedspray.datasets.base import ClientGraphs, DatasetCard, FederationCard
from fedspray.errors import InputError, MissingDataError, unknown
from fedspray.experiment import Data, data_knobs, located, owned_fields, partitioners
from fedspray.knob import kind_of
from fedspray.partitioners.base import Partitioner

if TYPE_CHECKING:
    from torch_geometric.data import Data as PygData

DEFAULT_PARTITIONER = "louvain"

_ALWAYS = ("prepare", "split", "split_scope")
"""Knobs for all data sets that are built rather than opened."""


def build_federation(
    dataset: str | Path | DatasetCard | FederationCard | ClientGraphs | type[ClientGraphs] | Graph | PygData,
    *,
    partitioner: str | Partitioner | type[Partitioner] | None = None,
    seed: int | None = None,
    **knobs: Any,
) -> Federation:
    """Builds, cuts or opens a federation; refuses contradictory options.

    Args:
        dataset: a name from `datasets.names`, the path of a graph in npz format, or a folder: a saved federation, or
            a graph in npz format for each client. A path with a ``/`` may start in ``FEDSPRAY_DATA``. In Python also a
            card, a class such as `Banks`, an object of it with all its settings, or one graph: a `Graph` or a PyTorch
            Geometric ``Data``.
        partitioner: how one graph is cut, `louvain` by default, or ``package.module:Name``; in Python also an object,
            which has the number of clients and all its settings, or a class. A setting that only one partitioner
            has implies it: ``partition_dir`` implies `files`.
        seed: draws the splits; 0 by default, a saved federation keeps its own.
        knobs: the other fields of `fedspray.experiment.Data` (``clients``, ``partition_seed``, ``prepare``, ``split``,
            ``split_scope``) and the settings of the data set or partitioner, such as ``nodes``, ``alpha`` or
            ``resolution``; ``fedspray inspect --help`` lists all of them.
    """
    cards = datasets.catalogue()
    card, source = _card_of(dataset, cards)
    if card is not None:
        dataset = card.name
    elif not isinstance(dataset, str | Path):
        dataset = as_graph(dataset, "dataset", "a name, a path, a data set, a Graph or a PyTorch Geometric Data")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise InputError(f"seed is {seed!r}, but must be a whole number")
    given = _checked(knobs) | ({} if partitioner is None else {"partitioner": partitioner})
    if isinstance(dataset, Graph):
        return _cut(dataset, given, seed or 0)
    card, path = card or cards.get(str(dataset)), located(str(dataset))
    if isinstance(card, FederationCard):
        return _open_clients(card, source, given, seed or 0)
    if card is None and path.is_dir():
        return _open_folder(path, given, seed)
    if card is None and not path.is_file():
        raise _not_found(str(dataset))
    return _cut(card or path, given, seed or 0)


def traps_of(federation: Federation) -> list[Trap]:
    """What would train silently to nonsense, for data of one's own: those of the catalogue are known."""
    return [] if federation.settings.get("dataset") in datasets.names() else find_traps(federation)


def open_data(data: Data) -> Federation:
    """The federation that an experiment names."""
    return build_federation(**data.to_json())


def _checked(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The given values, checked by their knobs; a partition seed of 0 counts as not given."""
    known, given = data_knobs(), {}
    for name, value in knobs.items():
        if name not in known:
            raise unknown("data option", name, [each for each in known if each != "dataset"])
        if value is not None and not (name == "partition_seed" and value == 0):
            given[name] = known[name].read(value)
            if isinstance(value, str) and not isinstance(given[name], str):
                raise InputError(f"{name} is the text {value!r}, but must be {given[name]}, without quotes")
    return given


def _card_of(
    dataset: object, cards: Mapping[str, DatasetCard | FederationCard]
) -> tuple[DatasetCard | FederationCard | None, ClientGraphs | None]:
    """The given card, or one for the given object or class of clients' graphs; None for anything else."""
    if isinstance(dataset, DatasetCard | FederationCard):
        return dataset, None
    kind = dataset if isinstance(dataset, type) else type(dataset)
    if not issubclass(kind, ClientGraphs):
        return None, None
    known = (card for card in cards.values() if isinstance(card, FederationCard) and card.source is kind)
    card = next(known, FederationCard(name=kind.__name__.lower(), title=kind.__name__, source=kind))
    return card, dataset if isinstance(dataset, ClientGraphs) else None


def _open_clients(card: FederationCard, source: ClientGraphs | None, given: dict[str, Any], seed: int) -> Federation:
    own = owned_fields(card.source) if source is None else {}
    taken = [*own, *_ALWAYS, *(["partition_seed"] if card.source.is_drawn else [])]
    reason = f"{card.name!r} comes as separate clients already" if source is None else f"{source} has all its settings"
    _refuse_others(given, taken, reason, card.name)
    rule = SplitRule.of(given)
    if rule.split_scope != SCOPES[0]:
        raise InputError(
            f"split-scope {rule.split_scope!r} doesn't apply here: {card.name!r} is not cut from one graph"
        )
    if source is None:
        source = card.source(**{each.name: given[knob] for knob, each in own.items() if knob in given})
    partition_seed = given.get("partition_seed", 0)
    settings = {
        "dataset": card.name,
        **source.settings(),
        **({"prepare": given["prepare"]} if "prepare" in given else {}),
        **({"partition_seed": partition_seed} if card.source.is_drawn else {}),
    }
    steps = preparation.steps_of(given.get("prepare"))
    graphs = {name: preparation.prepare(graph, steps) for name, graph in card.load(source, partition_seed).items()}
    return Federation.from_graphs(graphs, name=card.name, seed=seed, split=rule.split, settings=settings)


def _open_folder(folder: Path, given: dict[str, Any], seed: int | None) -> Federation:
    _refuse_others(given, ("split", "split_scope"), f"{folder} holds a federation, whose clients are fixed")
    saved = read_federation(folder)
    if seed is None and not given:
        return saved
    own = int(saved.settings.get("split_seed", 0))
    return saved.with_split(own if seed is None else seed, given.get("split"), given.get("split_scope"))


def _cut(source: DatasetCard | Path | Graph, given: dict[str, Any], seed: int) -> Federation:
    card = source if isinstance(source, DatasetCard) else None
    name, cutter = _partitioner(given, None if card is None else card.default_clients)
    if isinstance(source, Graph):
        graph, dataset, called = source, "graph", "graph"
    elif isinstance(source, Path):
        graph, dataset, called = read_graph(source), source.name, source.stem
    else:
        graph, dataset, called = source.load(), source.name, source.name
    whole = preparation.prepare(graph, preparation.steps_of(given.get("prepare")))
    if cutter.lists_nodes and whole.num_nodes != graph.num_nodes:
        raise InputError(
            f"the node lists are for {graph.num_nodes} nodes, but {given['prepare']!r} leaves {whole.num_nodes}: "
            "use another partitioner"
        )
    partition_seed = given.get("partition_seed", 0)
    parts = cutter.partition(whole, partition_seed)
    settings = {
        "dataset": dataset,
        "partitioner": name,
        **{key: each.name if isinstance(each, Path) else each for key, each in plugins.settings_of(cutter).items()},
        "num_clients": len(parts),
        "partition_seed": partition_seed,
        "graph_sha256": _content_hash(graph),
        **({"prepare": given["prepare"]} if "prepare" in given else {}),
        **({"tidied": graph.tidied()} if card is None and graph.tidied() else {}),
    }
    return Federation.from_graph(whole, parts, name=called, seed=seed, settings=settings, **vars(SplitRule.of(given)))


def _partitioner(given: dict[str, Any], default_clients: int | None) -> tuple[str, Partitioner]:
    """The chosen partitioner with its settings, and its name in the federation's settings."""
    chosen = given.get("partitioner") or _implied(given)
    if not isinstance(chosen, str):
        found = chosen if isinstance(chosen, type) else type(chosen)
        if not issubclass(found, Partitioner):
            raise InputError(f"the partitioner is a {found.__name__}, but must be a name, a Partitioner or its class")
        name = plugins.name_of("fedspray.partitioners", "partitioner", found)
    else:
        name, found = chosen, plugins.load_class("fedspray.partitioners", "partitioner", chosen, Partitioner)
    taken = ["partitioner", *_ALWAYS, *(["partition_seed"] if found.is_drawn else [])]
    if isinstance(chosen, Partitioner):
        _refuse_others(given, taken, f"{chosen} has all its settings", name)
        return name, chosen
    own, values = owned_fields(found), {}
    _refuse_others(given, [*taken, *own], f"the partitioner {name!r} has no such setting")
    for knob, each in own.items():
        if knob in given:
            values[each.name] = _folder(given[knob]) if kind_of(each) == "Path" else given[knob]
        elif knob == "clients" and default_clients is not None:
            values[each.name] = default_clients
        elif knob == "clients":
            raise InputError(
                "the number of clients is missing: your own graph has no default, so set it "
                "(--clients K, or clients= in Python)"
            )
        elif each.default is MISSING:
            raise InputError(f"the partitioner {name!r} needs {knob}: {each.metadata['help']}")
    return name, found(**values)


def _implied(given: Mapping[str, Any]) -> str:
    """The partitioner that requires one of the given knobs, or the default."""
    for name, found in partitioners().items():
        needed = {knob for knob, each in owned_fields(found).items() if each.default is MISSING} - {"clients"}
        if needed and needed <= set(given):
            return name
    return DEFAULT_PARTITIONER


def _folder(value: str) -> Path:
    return datasets.DataFolders.from_environment().located(Path(value))


def _refuse_others(given: Mapping[str, Any], taken: Collection[str], reason: str, here: str = "") -> None:
    """Refuses what is not taken for a reason, unless it belongs to others than the plug-in ``here``."""
    for name, value in given.items():
        if name not in taken:
            owners = data_knobs()[name].owners
            why = f"only {' and '.join(map(repr, owners))} can take it" if owners and here not in owners else reason
            raise InputError(f"{name.replace('_', '-')} {str(value)!r} doesn't apply here: {why}")


def _not_found(dataset: str) -> InputError:
    if dataset.endswith(".npz") or Path(dataset).name != dataset:
        return MissingDataError(f"{dataset} does not exist: give a data set's name, a graph .npz or a saved folder")
    return unknown("data set", dataset, datasets.names())


def _content_hash(graph: Graph) -> str:
    features: Any = graph.features
    arrays = (features.data, features.indices, features.indptr) if graph.is_sparse else (features,)
    digest = hashlib.sha256(repr((features.shape, graph.num_classes)).encode())
    for array in (*arrays, graph.edges, graph.labels):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
