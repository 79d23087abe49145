"""`build_federation`: from a name and a few choices to a `Federation`."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedspray import datasets, plugins
from fedspray.data import preparation
from fedspray.data.federation import Federation
from fedspray.data.graph import Graph
from fedspray.data.reading import read_federation, read_graph
from fedspray.data.splits import SCOPES, SplitRule
from fedspray.datasets.base import ClientGraphs, DatasetCard, FederationCard
from fedspray.errors import InputError, MissingDataError, unknown
from fedspray.partitioners.base import Partitioner
from fedspray.partitioners.files import Files
from fedspray.partitioners.label_skew import LabelSkew

DEFAULT_PARTITIONER = "louvain"


def build_federation(
    dataset: str | Path | DatasetCard | FederationCard | ClientGraphs,
    *,
    partitioner: str | Partitioner | type[Partitioner] | None = None,
    partition_dir: Path | None = None,
    clients: int | None = None,
    nodes: int | None = None,
    alpha: float | None = None,
    partition_seed: int = 0,
    prepare: str | None = None,
    split: str | None = None,
    split_scope: str | None = None,
    seed: int | None = None,
) -> Federation:
    """Makes, cuts or opens a federation; choices that contradict each other are refused.

    Args:
        dataset: a name from `datasets.names`, the path of a graph in npz format, or a folder: a saved federation, or
            a graph in npz format for each client. A path with a ``/`` may start in ``FEDSPRAY_DATA``. In Python also a
            card, or an object such as `Banks` with all its settings.
        partitioner: how one graph is cut, `louvain` by default, or ``package.module:Name``; in Python also an object,
            which has the number of clients and all its settings, or a class.
        partition_dir: for the partitioner `files`, which it implies: the folder of node lists, here or in
            ``FEDSPRAY_DATA``.
        clients: K; by default what the data set's card says.
        nodes: for `banks`: nodes of all clients together.
        alpha: for the partitioner `label-skew`: concentration of the Dirichlet distribution.
        partition_seed: decides who owns which node; for `banks`, it draws the graphs.
        prepare: what is done to the graph first, names from `fedspray.data.preparation.STEPS` joined by commas.
        split: percent of the labelled nodes for training, validation and test, ``40/30/30`` by default.
        split_scope: ``client`` (by default) if every client draws its own split, ``graph`` if one is drawn on the whole
            graph, so that clients have other shares.
        seed: draws the splits; 0 by default, a saved federation keeps its own.
    """
    cards = datasets.catalogue()
    card, source = _card_of(dataset, cards)
    if card is not None:
        dataset = card.name
    if not isinstance(dataset, str | Path):
        raise InputError(
            f"dataset is a {type(dataset).__name__}, but must be a name or a path: Federation.from_graph cuts a Graph, "
            "Federation.from_graphs joins several"
        )
    dataset = str(dataset)
    for name, value in (("clients", clients), ("nodes", nodes), ("seed", seed), ("partition_seed", partition_seed)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InputError(f"{name} is {value!r}, but must be a whole number")
    given = {
        "partitioner": partitioner,
        "partition_dir": partition_dir,
        "clients": clients,
        "nodes": nodes,
        "alpha": alpha,
        "partition_seed": partition_seed or None,
        "prepare": prepare,
    }
    steps = preparation.steps_of(prepare)
    rule = SplitRule.of({"split": split, "split_scope": split_scope})
    card = card or cards.get(dataset)
    if isinstance(card, FederationCard):
        return _open_clients(card, source, given, rule, seed or 0, partition_seed)
    _refuse(given, ("nodes",), f"only 'banks' has a free number of nodes, {dataset!r} has its own")
    if card is None:
        dataset = str(located(dataset))
    if card is None and Path(dataset).is_dir():
        _refuse(given, tuple(given), f"{dataset} holds a federation, whose clients are fixed")
        saved = read_federation(dataset)
        if seed is None and split is None and split_scope is None:
            return saved
        return saved.with_split(int(saved.settings.get("split_seed", 0)) if seed is None else seed, split, split_scope)
    chosen = _partitioner_name(partitioner) or (DEFAULT_PARTITIONER if partition_dir is None else "files")
    if card is None and not Path(dataset).is_file():
        raise _not_found(dataset)
    if isinstance(partitioner, Partitioner):
        _refuse(given, ("clients", "alpha", "partition_dir"), f"{partitioner} has all its settings")
        cutter = partitioner
    else:
        cutter = _make_partitioner(chosen, given, None if card is None else card.default_clients)
    graph = read_graph(dataset) if card is None else card.load()
    whole = preparation.prepare(graph, steps)
    if isinstance(cutter, Files) and whole.num_nodes != graph.num_nodes:
        lists = f"the node lists in {cutter.partition_dir} are for {graph.num_nodes} nodes"
        raise InputError(f"{lists}, but {prepare!r} leaves {whole.num_nodes}: use another partitioner")
    parts = cutter.partition(whole, partition_seed)
    settings = {
        "dataset": Path(dataset).name if card is None else dataset,
        "partitioner": chosen,
        **{key: _plain(value) for key, value in vars(cutter).items()},
        "num_clients": len(parts),
        "partition_seed": partition_seed,
        "graph_sha256": _content_hash(graph),
        **({} if prepare is None else {"prepare": prepare}),
        **({"tidied": graph.tidied()} if card is None and graph.tidied() else {}),
    }
    name = Path(dataset).stem if card is None else dataset
    return Federation.from_graph(whole, parts, name=name, seed=seed or 0, settings=settings, **vars(rule))


DATA_KEYS = tuple(name for name in inspect.signature(build_federation).parameters if name != "seed")
"""What names the data of an experiment: the arguments of `build_federation` are its keys and flags."""


def located(dataset: str) -> Path:
    """The path of a data set that is not a name: here, or in the data folder if it has a ``/``."""
    path = Path(dataset)
    return datasets.DataFolders.from_environment().located(path) if len(path.parts) > 1 else path


def _card_of(
    dataset: object, cards: Mapping[str, DatasetCard | FederationCard]
) -> tuple[DatasetCard | FederationCard | None, ClientGraphs | None]:
    """The card that is given, or that of the clients' graphs that are given, with these; None for a name or path."""
    if isinstance(dataset, DatasetCard | FederationCard):
        return dataset, None
    if not isinstance(dataset, ClientGraphs):
        return None, None
    kind = type(dataset)
    known = (card for card in cards.values() if isinstance(card, FederationCard) and card.source is kind)
    return next(known, FederationCard(name=kind.__name__.lower(), title=kind.__name__, source=kind)), dataset


def _open_clients(
    card: FederationCard,
    source: ClientGraphs | None,
    given: dict[str, Any],
    rule: SplitRule,
    seed: int,
    partition_seed: int,
) -> Federation:
    _refuse(given, ("partitioner", "partition_dir", "alpha"), f"{card.name!r} comes as separate clients already")
    if rule.split_scope != SCOPES[0]:
        raise InputError(
            f"split-scope {rule.split_scope!r} makes no sense here: {card.name!r} is not cut from one graph"
        )
    if not card.source.is_drawn:
        _refuse(given, ("clients", "nodes", "partition_seed"), f"{card.name!r} has the clients that its files hold")
    if source is None:
        source = card.source(**{f"num_{key}": given[key] for key in ("clients", "nodes") if given[key] is not None})
    else:
        _refuse(given, ("clients", "nodes"), f"{source} has all its settings")
    settings = {"dataset": card.name, **source.settings()}
    if given["prepare"] is not None:
        settings["prepare"] = given["prepare"]
    if card.source.is_drawn:
        settings["partition_seed"] = partition_seed
    steps = preparation.steps_of(given["prepare"])
    graphs = {name: preparation.prepare(graph, steps) for name, graph in card.load(source, partition_seed).items()}
    return Federation.from_graphs(graphs, name=card.name, seed=seed, split=rule.split, settings=settings)


def _partitioner_name(given: str | Partitioner | type[Partitioner] | None) -> str | None:
    """The name that a federation remembers."""
    if given is None or isinstance(given, str):
        return given
    found = given if isinstance(given, type) else type(given)
    if not issubclass(found, Partitioner):
        raise InputError(f"the partitioner is a {found.__name__}, but must be a name, a Partitioner or its class")
    return plugins.name_of("fedspray.partitioners", "partitioner", found)


def _make_partitioner(name: str, given: dict[str, Any], default_clients: int | None) -> Partitioner:
    cutter: Any = plugins.load_class("fedspray.partitioners", "partitioner", name, Partitioner)
    if cutter is not LabelSkew:
        _refuse(given, ("alpha",), f"the partitioner {name!r} has no alpha, only 'label-skew' has")
    if cutter is Files:
        _refuse(
            given,
            ("clients", "partition_seed"),
            "the partitioner 'files' takes the clients that the folder lists",
        )
        if given["partition_dir"] is None:
            raise InputError(
                "the partitioner 'files' needs partition_dir, a folder with one file of node ids per client"
            )
        folder = datasets.DataFolders.from_environment().located(Path(given["partition_dir"]))
        return Files(partition_dir=folder)
    _refuse(given, ("partition_dir",), f"the partitioner {name!r} reads no files, only 'files' does")
    num_clients = given["clients"] if given["clients"] is not None else default_clients
    if num_clients is None:
        raise InputError("the number of clients is missing: a graph of your own has no default, so say how many")
    skew = {} if given["alpha"] is None else {"alpha": given["alpha"]}
    made: Partitioner = cutter(num_clients=num_clients, **skew)
    return made


def _refuse(given: dict[str, Any], forbidden: tuple[str, ...], reason: str) -> None:
    for key in forbidden:
        if given[key] is not None:
            raise InputError(f"{key.replace('_', '-')} {str(given[key])!r} makes no sense here: {reason}")


def _not_found(dataset: str) -> InputError:
    if dataset.endswith(".npz") or Path(dataset).name != dataset:
        return MissingDataError(f"{dataset} does not exist: give a data set's name, a graph .npz or a saved folder")
    return unknown("data set", dataset, datasets.names())


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, Path) else value


def _content_hash(graph: Graph) -> str:
    features: Any = graph.features
    arrays = (features.data, features.indices, features.indptr) if graph.is_sparse else (features,)
    digest = hashlib.sha256(repr((features.shape, graph.num_classes)).encode())
    for array in (*arrays, graph.edges, graph.labels):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
