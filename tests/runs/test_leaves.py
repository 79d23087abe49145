from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from sites import Sites

from fedspray import algorithms, links
from fedspray.data.federation import Task
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import what_left
from fedspray.deploy.messages.wire import HEAD, Reply
from fedspray.engine.crossing import ClientEnd, trip_of
from fedspray.engine.layouts import play
from fedspray.engine.sums import LocalSums, as_secure_sum
from fedspray.errors import InputError
from fedspray.evaluation.counting import COUNT_KEYS, DETAIL_KEYS, SUM_KEYS
from fedspray.experiment import RunSettings
from fedspray.messages import fates, pattern_of
from fedspray.runs import run
from fedspray.runs.leaves import KEPT, UNDECLARED, Entry, of_settings, what_leaves
from fedspray.runs.settings import Resolved, resolve
from fedspray.testing import ragged_federation

TASK = Task(5, 3)
CHAINS = [("noise sigma=0.1",), ("dp",), ("used-rows", "compress up_bits=4"), ("compress up_bits=16",), ("robust",)]


def resolved(algorithm: str, *link: str, **values: Any) -> Resolved:
    return resolve(RunSettings(algorithm=algorithm, link=link, values={"rounds": 3, "hidden": 4, **values}))


def by_field(found: Resolved) -> dict[str, Entry]:
    return {entry.field: entry for entry in what_leaves(found, TASK)}


@pytest.mark.parametrize("algorithm", algorithms.names())
def test_every_key_of_every_algorithm_says_what_it_reveals(algorithm: str) -> None:
    shift = {} if "prior_shift" in algorithms.find(algorithm).ignores else {"prior_shift": "auto"}
    found = resolved(algorithm, **shift)
    entries = by_field(found)
    assert [entry.field for entry in entries.values() if entry.reveals == UNDECLARED] == []
    assert entries.keys() == {*fates(found.algorithm.uplink), *COUNT_KEYS, *DETAIL_KEYS}
    sent = play(found.algorithm, TASK, found.dtype).uplink
    shapes = {name: shape for entry in entries.values() for name, shape in entry.shapes.items()}
    assert {name: tuple(value.shape[1:]) for name, value in sent.items()}.items() <= shapes.items()
    own = sum(entry.bytes for entry in entries.values() if entry.field in fates(found.algorithm.uplink))
    assert own == sum(value.nbytes for value in sent.values())


def test_a_key_without_an_entry_is_noticed() -> None:
    found = resolved("fedavg")
    wider = {**found.algorithm.uplink, "gnn.*": "whatever"}
    other = type("Other", (type(found.algorithm),), {"uplink": wider})(backbone=found.algorithm.backbone)
    assert by_field(replace(found, algorithm=other))["gnn.*"].reveals == UNDECLARED


def chained() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in algorithms.names():
        for chain in CHAINS:
            try:
                resolved(name, *chain)
            except InputError:  # not for this algorithm
                continue
            yield name, chain


def test_every_key_that_a_link_sends_is_declared() -> None:
    combined = list(chained())
    assert len(combined) > 2 * len(CHAINS)
    for name, chain in combined:
        found = resolved(name, *chain)
        played = play(found.algorithm, TASK, found.dtype)
        trip = replace(trip_of(found.algorithm, TASK, 0, found.dtype), columns=torch.tensor([0, 2]))
        end = ClientEnd(found.links, trip)
        end.receive(played.downlink, 1)
        added = {pattern for link in found.links for pattern in link.adds}
        for key in end.send(played.uplink, 1, 0):
            known = pattern_of(found.algorithm.uplink, key) is not None
            assert known or any(fnmatchcase(key, pattern) for pattern in added), (name, chain, key)


def test_every_message_of_secure_sums_is_declared() -> None:
    seen: list[str] = []
    add_up = LocalSums.add_up

    def watched(self: LocalSums, *arguments: Any) -> Any:
        answers = add_up(self, *arguments)
        seen.extend(key for _, _, message in self.seen for key in message)
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalSums, "add_up", watched)
        run.carry_out(
            ragged_federation(), RunSettings(algorithm="fedspray", link=("secure-sum",), values={"rounds": 2}), None
        )
    patterns = as_secure_sum(links.make("secure-sum")).adds
    assert {key for key in seen if not any(fnmatchcase(key, pattern) for pattern in patterns)} == set()
    assert {pattern for pattern in patterns if not any(fnmatchcase(key, pattern) for key in seen)} == set()


def test_protection_is_in_the_entry() -> None:
    plain, noisy = by_field(resolved("fedspray")), by_field(resolved("fedspray", "dp epsilon=8"))
    assert {entry.protection for entry in plain.values()} == {""}
    assert noisy["num_train"].protection == "not sent: every client sends 1"
    assert noisy["class_ratios"].protection.startswith("clipped to 1, Gaussian noise")
    assert noisy["evaluation.confusion"].protection == KEPT
    assert all(entry.protection for entry in noisy.values() if entry.shapes)
    record = by_field(resolved("fedspray2", "dp level=record", record_clip=1.0))
    assert record["choice_counts"].protection == "not sent: every client sends 0"
    assert "noise" in record["gradient.*"].protection
    masked = by_field(resolved("fedavg", "secure-sum clients=4"))
    assert {name for name in masked if name.startswith("evaluation.")} == set(SUM_KEYS)
    assert {masked[name].protection for name in ("gnn.*", "num_train", *SUM_KEYS)} == {
        "masked: the server learns the sum over 4 clients or more"
    }
    both = by_field(resolved("fedavg", "dp", "secure-sum"))["gnn.*"].protection
    assert both.index("noise") < both.index("masked")
    some = by_field(resolved("fedspray", "noise sigma=0.5 keys=class_proxies"))
    assert [name for name, entry in some.items() if entry.protection] == ["class_proxies"]


def test_every_field_of_an_answer_says_what_it_reveals() -> None:
    assert {*HEAD, "uplink", "counts"} == {each.name for each in fields(Reply)}


@pytest.mark.parametrize("chain", [(), ("dp",), ("used-rows", "compress")])
def test_the_ledger_of_a_site_says_of_every_field_what_it_reveals(chain: tuple[str, ...], tmp_path: Path) -> None:
    federation = ragged_federation(sparse=True)
    settings = RunSettings(algorithm="fedavg", values={"rounds": 2, "hidden": 4}, link=chain)
    agreement = Agreement(federation.roster, settings)
    Sites(tmp_path, federation, agreement).run()
    (found,) = what_left(tmp_path / federation.clients[0].name).values()
    assert [name for name, entry in found["fields"].items() if not entry["reveals"]] == []
    if chain == ("dp",):
        assert "noise" in found["fields"]["uplink.gnn.conv1.weight"]["protection"]
        assert "unprotected it would reveal" in agreement.leaves()["gnn.*"]


def test_entries_of_a_stored_run_follow_from_its_settings() -> None:
    content = {"run": {"algorithm": "fedavg", "backbone": "gcn", "values": {"hidden": 4}, "seeds": [0], "link": ["dp"]}}
    known = of_settings(content, {"num_features": 5, "num_classes": 3})
    assert known[0].shapes["gnn.conv1.weight"] == (5, 4)
    assert all(entry.shapes == {} for entry in of_settings(content, None))
    assert of_settings({"run": {**content["run"], "algorithm": "gone.away:Gone"}}, None) == []
