"""What each link does to a message, by hand, and that a chain of them changes nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import ragged_federation

import fedspray
from fedspray import links
from fedspray.algorithms.fedavg import FedAvg
from fedspray.algorithms.gcfl import GCFL
from fedspray.engine.crossing import ClientEnd, ServerEnd
from fedspray.errors import InputError
from fedspray.links.base import Trip
from fedspray.nn.tree import Message, num_bytes
from fedspray.runs import run
from fedspray.studies.study import Study

TRIP = Trip(0, 1, 0, FedAvg.uplink, torch.float32, num_features=5)


def received(**values: Any) -> Trip:
    return Trip(0, 1, 0, FedAvg.uplink, torch.float32, 5, received={k.replace("_", "."): v for k, v in values.items()})


def trained(**settings: Any) -> tuple[dict[str, str], int, int]:
    """The models of a short run on sparse features, and its bytes."""
    values = {"rounds": 4, "hidden": 8, "progress": False, **settings}
    (seed,) = fedspray.run(ragged_federation(sparse=True), **values).seeds
    return seed.metrics["models"], seed.metrics["bytes_up"], seed.metrics["bytes_down"]


# ---- texts ------------------------------------------------------------------------------------------


def test_a_link_from_a_text() -> None:
    made: Any = links.make("noise sigma=0.5 per_key=true")
    assert (made.sigma, made.clip, made.per_key) == (0.5, 0.0, True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("noises", "noises"),
        ("noise sigma", "'sigma' is not"),
        ("noise size=1", "size"),
        ("noise sigma=-1", "sigma is -1.0"),
        ("compress up_bits=5", "up_bits is 5"),
        ("noise keys=alpha", "'alpha' names no"),
    ],
)
def test_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        links.chain([text], FedAvg.uplink)
    assert sentence in str(caught.value)


def test_noise_is_refused_where_the_server_needs_every_client() -> None:
    with pytest.raises(InputError, match="names no key"):
        links.chain(["noise sigma=1"], GCFL.uplink)


# ---- noise ------------------------------------------------------------------------------------------


def test_an_update_is_clipped_as_a_whole_or_key_by_key() -> None:
    """Changes of length 3 and 4 are 5 long together."""
    message = {"gnn.a": torch.tensor([[4.0]]), "gnn.b": torch.tensor([[4.0]]), "num_train": torch.tensor([7.0])}
    trip = received(gnn_a=torch.tensor([[1.0]]))  # b did not come down: it counts from 0
    whole, _ = links.make("noise clip=2.5").to_server(message, {}, trip)
    assert {k: v.item() for k, v in whole.items()} == pytest.approx({"gnn.a": 2.5, "gnn.b": 2.0, "num_train": 7})
    apart, _ = links.make("noise clip=2.5 per_key=true").to_server(message, {}, trip)
    assert {k: v.item() for k, v in apart.items()} == pytest.approx({"gnn.a": 3.5, "gnn.b": 2.5, "num_train": 7})


def test_noise_has_its_size_and_its_own_draw_for_each_client_and_round() -> None:
    message: Message = {"gnn.a": torch.zeros(1, 40_000)}
    link = links.make("noise sigma=0.5")
    draws = [
        link.to_server(message, {}, Trip(k, r, 0, FedAvg.uplink, torch.float32, 5))[0]["gnn.a"]
        for k, r in ((0, 1), (0, 1), (1, 1), (0, 2))
    ]
    assert draws[0].std().item() == pytest.approx(0.5, abs=0.01)  # four times its own error
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[3])


# ---- compression --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "numbers"), [(4, 64 // 2 + 4 + 8), (8, 64 + 4), (16, 2 * 64), (32, 4 * 64)])
def test_what_is_sent_and_what_is_left_make_up_the_change(bits: int, numbers: int) -> None:
    change = torch.linspace(-1, 1, 64)[None]
    trip = received(gnn_a=torch.ones(1, 64))
    link = links.make(f"compress up_bits={bits}")
    sent, left = link.to_server({"gnn.a": 1 + change, "num_train": torch.tensor([3.0])}, {}, trip)
    assert num_bytes(sent) == numbers + 4  # and the count, as it is
    arrived, _ = link.at_server(sent, {}, trip)
    assert torch.allclose(arrived["gnn.a"] + left.get("gnn.a", 0), 1 + change, atol=1e-6)
    assert (arrived["gnn.a"] - 1 - change).abs().max() <= {4: 1 / 14, 8: 1 / 254, 16: 1e-3, 32: 0}[bits] + 1e-6
    assert arrived["num_train"].tolist() == [3.0]


def test_error_feedback_sends_in_later_rounds_what_rounding_left_out() -> None:
    """A change of 0.04 beside one of 1 is below half a step of 1/7: it is sent as a whole step now and then."""
    change = torch.full((1, 64), 0.04).index_fill(1, torch.tensor([0]), 1.0)
    trip = received(gnn_a=torch.zeros(1, 64))
    link, total = links.make("compress up_bits=4"), torch.zeros(1, 64)
    memory: dict[str, torch.Tensor] = {}
    for _ in range(50):
        sent, memory = link.to_server({"gnn.a": change}, memory, trip)
        total += link.at_server(sent, {}, trip)[0]["gnn.a"]
    assert torch.allclose(total / 50, change, atol=1 / 7 / 50)


def test_a_run_with_few_bits_needs_few_bytes() -> None:
    plain, few = trained(algorithm="fedavg", hidden=64), trained(algorithm="fedavg", hidden=64, link=["compress"])
    assert plain[0] != few[0]
    assert few[1] < 0.4 * plain[1]  # the toys' output layers are small tensors, which travel as they are
    assert few[2] < 0.4 * plain[2]


# ---- rows in use --------------------------------------------------------------------------------------


def one_client() -> tuple[ServerEnd, ClientEnd]:
    trip = Trip(0, 0, 0, FedAvg.uplink, torch.float32, 5, frozenset({"gnn.w"}), torch.tensor([1, 3]))
    chain = links.chain(["used-rows"], FedAvg.uplink)
    return ServerEnd(chain, trip), ClientEnd(chain, trip)


def test_only_rows_in_use_travel_from_the_second_round_on() -> None:
    server, client = one_client()
    weights = torch.arange(10.0).view(1, 5, 2)
    sizes = []
    for round_index in (1, 2):
        sent = server.send({"gnn.w": weights}, 0, round_index)
        there = client.receive(sent, round_index)
        assert torch.equal(there["gnn.w"][:, [1, 3]], weights[:, [1, 3]])
        back = client.send({"gnn.w": there["gnn.w"] + 1}, round_index, round_index - 1)
        sizes.append((num_bytes(sent), num_bytes(back)))
        arrived = server.receive(back, 0, round_index)["gnn.w"]
        assert torch.equal(arrived[:, [1, 3]], weights[:, [1, 3]] + 1)
    assert sizes == [(40, 17), (17, 17)]  # 2 rows of 2 numbers, and a bit for each of 5 features


@pytest.mark.parametrize("algorithm", ["fedavg", "fedspray", "fedspray2", "fedproto"])
def test_leaving_out_unused_rows_changes_no_prediction(algorithm: str) -> None:
    """Models differ in the weights that nobody asks; all else is the same, to the bit."""
    federation = ragged_federation(sparse=True)
    plain, cut = (
        fedspray.run(federation, algorithm, rounds=4, hidden=8, link=link, progress=False).seeds[0]
        for link in ((), ("used-rows",))
    )
    for mine, other in zip(plain.records, cut.records, strict=True):
        assert (mine["test"], mine["val"]) == (other["test"], other["val"])


# ---- chains -------------------------------------------------------------------------------------------

CHAIN = ["used-rows", "noise sigma=0.01 clip=1", "compress up_bits=4"]


def story(folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    models = json.loads((folder / "result.json").read_text())["models"]
    records = [json.loads(line) for line in (folder / "seed-0" / "rounds.jsonl").read_text().splitlines()]
    return models, [{key: record[key] for key in record if not key.endswith(("seconds", "seal"))} for record in records]


def test_a_broken_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    federation, whole, broken = ragged_federation(sparse=True), tmp_path / "whole", tmp_path / "broken"
    fedspray.run(federation, "fedavg", rounds=6, hidden=16, participation=0.67, link=CHAIN, out=whole, progress=False)
    settings, content = run.load_settings(whole)
    assert content["link"] == CHAIN
    run.begin(broken, federation, settings, None)

    def crash(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run.carry_out(federation, settings, broken, checkpoint_every=1, on_record=crash)
    run.carry_out(federation, settings, broken)
    assert story(broken) == story(whole)


def test_a_method_of_a_comparison_may_have_links() -> None:
    entries = ["fedavg", {"name": "few bits", "algorithm": "fedavg", "link": ["compress up_bits=4"]}]
    plan = Study.from_values({"dataset": "banks", "nodes": 200, "compare": {"algorithms": entries}}, "here")
    plain, few = plan.rows()
    assert (plain.run.link, few.run.link) == ((), ("compress up_bits=4",))
    (cell,), (other,) = plain.cells(), few.cells()
    assert "link" not in cell.identity()
    assert cell.key() != other.key()
