"""The public names: all of them, quick to import, and none that tells about a node."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import fedspray as fs
from fedspray import plugins
from fedspray.display import LONGEST


def test_every_public_name_is_there() -> None:
    assert len(fs.__all__) > 90
    assert all(getattr(fs, name) is not None for name in fs.__all__)


@pytest.mark.parametrize("package", ["algorithms", "backbones", "partitioners"])
def test_every_plugin_is_public(package: str) -> None:
    bases = {"algorithms": fs.Algorithm, "backbones": fs.Backbone, "partitioners": fs.Partitioner}
    for name in plugins.names(f"fedspray.{package}"):
        found = plugins.load_class(f"fedspray.{package}", package, name, bases[package])
        assert getattr(fs, found.__name__) is found
        assert plugins.name_of(f"fedspray.{package}", package, found) == name


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_it_imports_nothing_else() -> None:
    heavy = python("import sys, fedspray; print([m for m in ('torch', 'numpy', 'pandas', 'rich') if m in sys.modules])")
    assert heavy == "[]\n"


@pytest.mark.slow
def test_report_is_the_function_whatever_was_imported_before() -> None:
    code = "import fedspray.report.html; from fedspray import report; print(fedspray.report is report, report)"
    shown = python(f"import warnings; warnings.simplefilter('error'); {code}")
    assert shown.startswith("True <function report ")


# ---- nothing about a node --------------------------------------------------------------------------------------------

NODES = 40
FEATURE = 0.4711003255844116  # a float32
SECRETS = ("acct-no", "0.4711", "4711", "[1, 0, 0, 1", "[1 0 0 1", "1, 0, 0, 1", "array(", "tensor(")


def secret_graph(seed: int = 0) -> fs.Graph:
    draw = np.random.default_rng(seed)
    labels = np.resize([1, 0, 0, 1, 1], NODES)
    features = np.full((NODES, 3), FEATURE) + np.eye(NODES, 3)
    edges = draw.integers(0, NODES, size=(2, 3 * NODES))
    return fs.Graph.from_arrays(features, edges, labels, node_names=[f"acct-no-{i}" for i in range(NODES)])


@pytest.fixture(scope="module")
def federation() -> fs.Federation:
    return fs.Federation.from_graphs({"north": secret_graph(), "south": secret_graph(1)}, name="ours")


@pytest.fixture(scope="module")
def objects(federation: fs.Federation) -> list[Any]:
    """One of every public class, and what hangs on them."""
    result = fs.run(federation, fs.FedSpray(distill_weight=2), backbone=fs.GCN(hidden=4), rounds=2, seeds=2)
    batch = fs.GraphBatch.from_clients(federation.clients, [0, 1])
    params = {"w": torch.full((2, 3, 2), FEATURE)}
    state = fs.AdamState.zeros(params, 2)
    statistics = fs.inspect(federation)
    client = federation.clients[0]
    return [
        *(federation, federation.roster, federation.task, client, client.graph, client.split),
        *(batch, batch.rows, state, fs.Adam(params, state, lr=0.1), fs.SGD(params, lr=0.1)),
        *(statistics, statistics.clients[0]),
        *(result, result.seeds[0], result.models["north"], result.overall, result.minority),
        fs.compare(federation, ["local", fs.FedAvg()], backbones=fs.MLP(hidden=4), rounds=1, bootstrap=0),
        fs.Outputs(torch.full((NODES, 2), FEATURE), torch.full((NODES, 4), FEATURE), fs.Adam(params, state, lr=0.1)),
        *(fs.algorithms.find(name)() for name in fs.algorithms.names()),
        fs.FedSpray(encoder_lr=0.1, proxy_lr=0.2, confidence=0.9, backbone=fs.GAT(heads=2, hidden=16)),
        *(fs.backbones.make(name) for name in fs.backbones.names()),
        fs.ModuleBackbone(target="torch.nn:Bilinear"),
        *(fs.Banks(), fs.Citation(), fs.Twitch()),
        *(fs.Louvain(3), fs.Metis(3), fs.LabelSkew(3), fs.Files(Path("lists"))),
        *fs.datasets.catalogue().values(),
        fs.Callback(),
        fs.Schema(name="ours"),
        *(fs.Link(), *(fs.links.make(name) for name in fs.links.names())),
        fs.Trip(0, 1, 0, fs.FedAvg.uplink, torch.float32, 3, received={"w": torch.full((1, 3), FEATURE)}),
    ]


def check(text: str, longest: int) -> None:
    assert len(text) <= longest
    assert [secret for secret in SECRETS if secret in text] == []


def test_every_public_class_is_looked_at(objects: list[Any]) -> None:
    classes = {getattr(fs, name) for name in fs.__all__ if isinstance(getattr(fs, name), type)}
    concrete = {c for c in classes if not inspect.isabstract(c) and not issubclass(c, Exception)}
    assert {c.__name__ for c in concrete - {type(each) for each in objects}} == set()


def test_no_line_and_no_table_tells_about_a_node(objects: list[Any]) -> None:
    for each in objects:
        check(repr(each), LONGEST)
        check(str(each), LONGEST)
        if hasattr(each, "_repr_html_"):
            check(each._repr_html_(), 10_000)


def test_tables_are_there_and_escaped(objects: list[Any]) -> None:
    shown = {type(each) for each in objects if hasattr(each, "_repr_html_")}
    assert {fs.Federation, fs.FederationStatistics, fs.RunResult, fs.ComparisonResult} <= shown
    named = fs.Federation("<b>", (fs.Federation.from_graphs({"a": secret_graph()}).clients[0],))
    assert "<b>" not in named._repr_html_()
    assert "&lt;b&gt;" in fs.inspect(named)._repr_html_()


def missing_features() -> nx.Graph:
    graph = nx.Graph()
    graph.add_node("acct-no-1")
    return graph


def sick_graph() -> fs.Graph:
    graph = secret_graph()
    return fs.Graph.from_arrays(graph.features, graph.edges, graph.labels, node_names=["acct-no"] * NODES)


MISTAKES: dict[str, Callable[[fs.Federation, Any], object]] = {
    "run on a graph": lambda federation, model: fs.run(federation.clients[0].graph),  # type: ignore[arg-type]
    "run on a list": lambda federation, model: fs.run(list(federation.clients)),  # type: ignore[arg-type]
    "run of a graph": lambda federation, model: fs.run(federation, federation.clients[0].graph),  # type: ignore[arg-type]
    "backbone": lambda federation, model: fs.run(federation, backbone=federation.clients[0]),  # type: ignore[arg-type]
    "inspect": lambda federation, model: fs.inspect(federation.clients[0].graph),  # type: ignore[arg-type]
    "compare": lambda federation, model: fs.compare([federation.clients[0].graph], ["local"]),  # type: ignore[list-item]
    "compare methods": lambda federation, model: fs.compare(federation, federation.clients[0].graph),  # type: ignore[arg-type]
    "build": lambda federation, model: fs.build_federation(federation.clients[0].graph),
    "report": lambda federation, model: fs.report([federation], "x.html"),  # type: ignore[list-item]
    "predict array": lambda federation, model: model.predict(federation.clients[0].graph.features),
    "predict frame": lambda federation, model: model.predict(pd.DataFrame({"acct-no": [FEATURE]})),
    "predict dict": lambda federation, model: model.predict({"x": FEATURE, "name": "acct-no"}),
    "other features": lambda federation, model: model.predict(fs.Graph.from_arrays([[FEATURE]], np.zeros((2, 0)))),
    "same names": lambda federation, model: sick_graph(),
    "networkx": lambda federation, model: fs.Graph.from_networkx(missing_features()),
    "fewer classes": lambda federation, model: federation.clients[0].graph.with_num_classes(1),
    "twice": lambda federation, model: fs.Federation("x", (federation.clients[0],) * 2),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_error_tells_about_a_node(mistake: str, federation: fs.Federation, objects: list[Any]) -> None:
    (model,) = [each for each in objects if isinstance(each, fs.PersonalModel)]
    with pytest.raises(fs.InputError) as refusal:
        MISTAKES[mistake](federation, model)
    check(str(refusal.value), LONGEST)
    assert "\n" not in str(refusal.value)
