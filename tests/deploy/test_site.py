"""A site goes on from its memories only with the data that they were made on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sites import Sites
from toys import ragged_federation

from fedspray.data.federation import Client, Task
from fedspray.data.graph import Graph
from fedspray.deploy.agreement import Agreement, Refused
from fedspray.deploy.messages.wire import Ask, Reply
from fedspray.deploy.site.kit import SchemaError, Site, check_schema
from fedspray.deploy.site.run import SiteRun
from fedspray.engine.worker import Request
from fedspray.experiment import RunSettings
from fedspray.runs import store
from fedspray.runs.models import PersonalModel
from fedspray.runs.settings import resolve

SITE = "client_01"


def make(folder: Path, keep_split: bool = False) -> tuple[Agreement, Path]:
    """What was agreed, and the kit of a site whose data are a folder."""
    federation = ragged_federation()
    settings = RunSettings(algorithm="fedavg", values={"rounds": 3}, keep_split=keep_split)
    agreement = Agreement(federation.roster, settings)
    Sites(folder, federation, agreement)
    return agreement, folder / SITE


def play(agreement: Agreement, kit: Path, round_index: int) -> Reply:
    """One round, in a process of its own."""
    algorithm: Any = resolve(agreement.settings).for_clients(agreement.roster)[1]
    message = algorithm.broadcast(algorithm.init_server(agreement.roster.task, 0), [1])
    run = SiteRun(Site.open(kit), "run", agreement.fingerprint())
    try:
        return run.answer(Ask(0, Request(round_index, evaluate=False), message))
    finally:
        run.close()


def in_another_order(client: Client) -> Client:
    order = np.arange(client.graph.num_nodes)[::-1].copy()
    split = {part: getattr(client.split, part)[order] for part in ("train", "val", "test")}
    return replace(client, graph=client.graph.subgraph(order), split=replace(client.split, **split))


def with_another_label(client: Client) -> Client:
    graph = client.graph
    return replace(client, graph=replace(graph, labels=(graph.labels + 1) % graph.num_classes))


def with_another_split(client: Client) -> Client:
    return replace(client, split=replace(client.split, train=client.split.test, test=client.split.train))


@pytest.mark.parametrize(
    ("change", "keep_split"), [(in_another_order, False), (with_another_label, False), (with_another_split, True)]
)
def test_other_data_are_refused(tmp_path: Path, change: Any, keep_split: bool) -> None:
    agreement, kit = make(tmp_path, keep_split)
    data = Site.open(kit).data
    assert data is not None
    play(agreement, kit, 1)
    change(Client.load(data)).save(tmp_path / "changed")
    replace(Site.open(kit), data=tmp_path / "changed").save()
    with pytest.raises(Refused, match="client_01 are not") as refusal:
        play(agreement, kit, 2)
    assert str(tmp_path) not in str(refusal.value)
    replace(Site.open(kit), data=data).save()
    assert play(agreement, kit, 2).trained


def test_the_same_data_from_another_file_are_taken(tmp_path: Path) -> None:
    agreement, kit = make(tmp_path)
    data = Site.open(kit).data
    assert data is not None
    play(agreement, kit, 1)
    Graph.from_npz(data / "graph.npz").to_npz(tmp_path / "moved.npz")
    replace(Site.open(kit), data=tmp_path / "moved.npz").save()
    assert play(agreement, kit, 2).trained


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"feature_names": tuple("abdce")}, "feature 2 of the data is 'd', but 'c' is agreed"),
        ({"class_names": ("x", "z", "y")}, "class 1 of the data is 'z', but 'y' is agreed"),
    ],
)
def test_data_that_name_features_or_classes_otherwise_are_refused(names: dict[str, Any], sentence: str) -> None:
    graph = ragged_federation().clients[0].graph
    task = Task(graph.num_features, graph.num_classes, ("x", "y", "z"), tuple("abcde"))
    assert check_schema(replace(graph, feature_names=tuple("abcde"), class_names=("x", "y", "z")), task)
    assert check_schema(graph, task)
    with pytest.raises(SchemaError) as refusal:
        check_schema(replace(graph, **names), task)
    assert str(refusal.value) == sentence


def test_memories_of_before_data_were_hashed_are_taken(tmp_path: Path) -> None:
    agreement, kit = make(tmp_path)
    play(agreement, kit, 1)
    for file in (kit / "state" / "run" / "seed-0").glob("memory-*"):
        tensors, meta = store.read_tensors(file)
        assert set(meta) == {"round", "data"}
        store.write_tensors(file, tensors, {"round": meta["round"]})
    assert play(agreement, kit, 2).trained


def test_a_job_is_refused_where_the_code_is_not_the_agreed_one(tmp_path: Path) -> None:
    agreement, kit = make(tmp_path)
    other = replace(agreement, code={**(agreement.code or {}), "deploy/site/handler.py": "0123456789abcdef"})
    other.save(kit / "local")
    with pytest.raises(Refused, match=r"deploy/site/handler\.py is changed"):
        play(other, kit, 1)


def test_a_sites_model_keeps_the_schema_of_its_own_tables(tmp_path: Path) -> None:
    federation = ragged_federation()
    clients = tuple(replace(c, graph=replace(c.graph, schema=f"# of {c.name}")) for c in federation.clients)
    agreement = Agreement(federation.roster, RunSettings(algorithm="fedavg", values={"rounds": 1}))
    Sites(tmp_path, replace(federation, clients=clients), agreement).run()
    model = PersonalModel.load(tmp_path / SITE / "models" / "run" / "seed-0.safetensors")
    assert model.task.schema == f"# of {SITE}"
