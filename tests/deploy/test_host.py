"""A deployed run is the in-process run, whatever happens on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sites import Crash, Sites, stable
from toys import fast, ragged_federation

from fedspray import algorithms
from fedspray.data.federation import Federation
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import read_answers
from fedspray.deploy.messages.wire import Ask, Reply
from fedspray.deploy.server.progress import SHARED
from fedspray.engine.local import single_blocks
from fedspray.errors import RunStopped
from fedspray.experiment import RunSettings
from fedspray.files import read_json
from fedspray.runs import run as runs
from fedspray.runs import store
from fedspray.runs.models import PersonalModel


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-process engine trains client by client, as sites do; stacked it is equal up to rounding."""
    monkeypatch.setattr("fedspray.engine.local.choose_blocks", lambda federation, _, **more: single_blocks(federation))


def make(folder: Path, federation: Federation, **settings: Any) -> Sites:
    return Sites(folder, federation, Agreement(federation.roster, RunSettings(**settings)))


def in_process(federation: Federation, **settings: Any) -> dict[str, Any]:
    """The result of the same run in one process."""
    known = json.dumps([federation.fingerprint(), settings], sort_keys=True)
    if known not in IN_PROCESS:
        IN_PROCESS[known] = stable(runs.carry_out(federation, RunSettings(**settings), None).summary())
    return IN_PROCESS[known]


IN_PROCESS: dict[str, dict[str, Any]] = {}


def die_once(sites: Sites, when: Callable[[str, Ask], bool]) -> None:
    """The server dies before it asks a site, the first time that `when` says so."""
    died: list[bool] = []

    def trouble(name: str, ask: Ask) -> None:
        if not died and when(name, ask):
            died.append(True)
            raise Crash

    sites.trouble = trouble


@pytest.mark.parametrize("algorithm", fast(algorithms.names(), "fedspray", "fedspray2", "gcfl-plus", "scaffold"))
def test_every_algorithm_ends_with_the_same_bits(tmp_path: Path, algorithm: str) -> None:
    federation = ragged_federation()
    settings = {"algorithm": algorithm, "values": {"rounds": 2, "hidden": 8}}
    assert stable(make(tmp_path, federation, **settings).run()) == in_process(federation, **settings)


def test_several_seeds_part_of_the_clients_and_other_backbones(tmp_path: Path) -> None:
    federation = ragged_federation()
    settings = {
        "values": {"rounds": 4, "hidden": 8, "participation": 0.7, "selection": "accuracy"},
        "seeds": (0, 3),
        "backbone_of": {federation.clients[1].name: "mlp"},
    }
    assert stable(make(tmp_path, federation, **settings).run()) == in_process(federation, **settings)


@pytest.mark.parametrize("later", [0, 1, 2])
def test_patience_ends_a_deployed_run_where_it_ends_the_other(tmp_path: Path, later: int) -> None:
    """The server dies in the last round's exchange, in the closing one or while it asks for the report."""
    federation = ragged_federation()
    settings = {"algorithm": "fedavg", "values": {"rounds": 40, "hidden": 8, "lr": 0.3, "patience": 3}}
    expected = in_process(federation, **settings)
    rounds = expected["seeds"][0]["rounds"]
    assert rounds < 40
    sites, victim = make(tmp_path, federation, **settings), federation.clients[1].name
    die_once(sites, lambda name, ask: ask.request.round_index == rounds + later and name == victim)
    with pytest.raises(Crash):
        sites.run()
    assert stable(sites.run()) == expected


@pytest.mark.parametrize("exchange", fast([1, 3, 5, 6, 7], 3))
@pytest.mark.parametrize("site", [1])
def test_a_server_that_dies_at_any_moment_changes_nothing(tmp_path: Path, exchange: int, site: int) -> None:
    """The sites before `site` have done the exchange, the others have not; all processes start again."""
    federation = ragged_federation()
    settings = {"algorithm": "fedspray", "values": {"rounds": 5, "hidden": 8}}
    sites = make(tmp_path, federation, **settings)
    victim = federation.clients[site].name
    die_once(sites, lambda name, ask: ask.request.round_index == exchange and name == victim)
    with pytest.raises(Crash):
        sites.run()
    assert stable(sites.run()) == in_process(federation, **settings)


def test_an_answer_that_is_late_is_as_if_never_trained(tmp_path: Path) -> None:
    federation = ragged_federation()
    settings = {"algorithm": "scaffold", "values": {"rounds": 5, "hidden": 8}}
    slow = federation.clients[2].name
    late, away = make(tmp_path / "late", federation, **settings), make(tmp_path / "away", federation, **settings)
    late.late = lambda name, ask: name == slow and ask.request.round_index in (2, 3)
    away.trouble = lambda name, ask: "late" if name == slow and ask.request.round_index in (2, 3) else None
    result = stable(late.run())
    assert result == stable(away.run())
    assert result["seeds"][0]["failures"] == 2
    records = (tmp_path / "late" / "run" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert [(f'"{slow}": "late"' in line) for line in records] == [False, True, True, False, False]


def test_slow_sites_are_waited_for_as_long_as_their_training_is_needed(tmp_path: Path) -> None:
    """One of three trains; the answers of the two that evaluate are there long before."""
    federation = ragged_federation()
    settings = {"algorithm": "fedavg", "values": {"rounds": 4, "hidden": 8, "participation": 0.34}}
    sites = make(tmp_path, federation, **settings)
    sites.slow = lambda name, ask: ask.request.train
    assert stable(sites.run()) == in_process(federation, **settings)


def test_an_error_is_not_one_of_the_answers_that_are_needed(tmp_path: Path) -> None:
    """One must train: the first site fails, so the first of the slow ones is waited for, and the second is late."""
    federation = ragged_federation()
    broken, *others = (client.name for client in federation.clients)
    sites = make(tmp_path, federation, algorithm="fedavg", values={"rounds": 2, "hidden": 8, "min_clients": 1})
    (tmp_path / broken / "local" / "agreement.json").unlink()
    sites.slow = lambda name, ask: name in others and ask.request.train
    sites.run()
    records = (tmp_path / "run" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["trained"] for line in records] == [[1], [1]]
    assert json.loads(records[0])["failed"] == {
        broken: "MissingDataError (the site's log says more)",
        others[1]: "late",
    }


def part(name: str, **values: Any) -> Callable[[Reply], Reply]:
    """An answer with some fields of its uplink or counts changed; None takes them away."""

    def change(reply: Reply) -> Reply:
        message = {**getattr(reply, name), **{key.replace("__", "."): value for key, value in values.items()}}
        kept: dict[str, Any] = {name: {key: value for key, value in message.items() if value is not None}}
        return replace(reply, **kept)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (part("uplink", class_proxies=None), "its uplink is not the algorithm's: class_proxies is missing"),
        (part("uplink", more=torch.zeros(1)), "its uplink is not the algorithm's: 'more' is not part of it"),
        (part("uplink", class_proxies=torch.zeros(1, 2)), "its uplink is not the algorithm's: class_proxies has type"),
        (part("uplink", num_train=torch.full((1,), torch.nan)), "num_train is not finite"),
        (part("uplink", num_train=-torch.ones(1)), "num_train holds -1, but 0 to 1e+09 is allowed"),
        (part("uplink", num_train=torch.full((1,), 1e8)), "num_train is 1e+08, but evaluation.confusion counts "),
        (part("uplink", class_proxies=torch.full((1, 3, 64), 9e11)), "class_proxies holds 9e+11, but -1e+06 to 1e+06"),
        (part("uplink", class_ratios=torch.full((1, 3), 3e38)), "class_ratios holds 3e+38, but 0 to 1 is allowed"),
        (part("counts", evaluation__loss=None), "its counts is not the algorithm's: evaluation.loss is missing"),
        (
            part("counts", evaluation__confusion=torch.full((1, 3, 3, 3), -5, dtype=torch.int32)),
            "evaluation.confusion holds -5, but 0 to 1e+09 is allowed",
        ),
        (
            part("counts", evaluation__majority=torch.tensor([3], dtype=torch.int32)),
            "evaluation.majority holds 3, but -1 to 2 is allowed",
        ),
        (lambda reply: replace(reply, round_index=1), "it answered something that it was not asked"),
        (lambda reply: replace(reply, trained=False), "it answered something that it was not asked"),
    ],
)
def test_a_site_that_sends_something_else_is_as_if_away(
    tmp_path: Path, without_the_first: dict[str, Any], change: Callable[[Reply], Reply], reason: str
) -> None:
    """Also where it is one of two: the form is the algorithm's, not that of most."""
    odd = two_sites(tmp_path)
    odd.changed = lambda site, ask, reply: change(reply) if (site, ask.request.round_index) == ODD else reply
    assert stable(odd.run()) == without_the_first
    records = (tmp_path / "run" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(records[1])["failed"][ODD[0]].startswith(reason)


ODD = ("client_00", 2)


def two_sites(folder: Path) -> Sites:
    federation = ragged_federation()
    federation = replace(federation, clients=federation.clients[:2])
    return make(folder, federation, algorithm="fedspray", values={"rounds": 3, "hidden": 8, "min_clients": 1})


@pytest.fixture(scope="module")
def without_the_first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    away = two_sites(tmp_path_factory.mktemp("away"))
    away.trouble = lambda site, ask: "away" if (site, ask.request.round_index) == ODD else None
    return stable(away.run())


def test_a_site_and_nobody_else_is_told_whether_federating_helped_it(tmp_path: Path) -> None:
    federation, settings = ragged_federation(), RunSettings(algorithm="fedspray2", values={"rounds": 3, "hidden": 8})
    assert "benefit" not in Sites(tmp_path, federation, Agreement(federation.roster, settings)).run()
    known = runs.carry_out(federation, settings, None).summary()["benefit"]["clients"]
    for client in federation.clients:
        told = read_json(tmp_path / client.name / "models" / "run" / "seed-0.benefit.json")
        assert told.pop("said").startswith(f"{client.name}: ")
        assert told == known[client.name]


def test_models_ledger_and_shared_part_are_where_they_belong(tmp_path: Path) -> None:
    federation = ragged_federation()
    sites = make(tmp_path, federation, algorithm="fedspray", values={"rounds": 4, "hidden": 8})
    result = sites.run()
    for client in federation.clients:
        model = PersonalModel.load(tmp_path / client.name / "models" / "run" / "seed-0.safetensors")
        assert model.digest() == result["models"][client.name]
        assert model.predict(client.graph).shape == (client.graph.num_nodes, federation.task.num_classes)
        ledger = read_answers(tmp_path / client.name)
        assert [line["round"] for line in ledger] == [1, 2, 3, 4, 5, 6]
        assert any(name.startswith("uplink.") for name in ledger[0]["fields"])
        assert "counts.evaluation.confusion" in ledger[-1]["fields"]
        memories = sorted(file.name for file in (tmp_path / client.name / "state" / "run" / "seed-0").iterdir())
        assert memories == ["memory-4.safetensors", "memory-6.safetensors"]
    assert not list((tmp_path / "run").rglob("models"))
    shared, meta = store.read_tensors(tmp_path / "run" / "seed-0" / SHARED)
    assert meta["round"] == result["seeds"][0]["best_round"]
    message = model.snapshot.message  # FedSpray sends the same to everybody
    assert torch.equal(shared["server.class_proxies"], message["class_proxies"][0])


SETTLES = {"algorithm": "fedspray", "values": {"rounds": 4, "hidden": 8, "lr": 0.05}}
"""Settings with which the reported round is the third of four."""


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The reported round of an undisturbed run, and its shared part."""
    folder = tmp_path_factory.mktemp("whole")
    result = make(folder, ragged_federation(), **SETTLES).run()
    return result["seeds"][0]["best_round"], folder / "run" / "seed-0" / SHARED


@pytest.mark.parametrize("exchange", fast([2, 3, 4, 5, 6], 4))
def test_after_a_crash_the_shared_part_is_still_that_of_the_reported_round(
    tmp_path: Path, settled: tuple[int, Path], exchange: int
) -> None:
    best_round, whole = settled
    assert best_round == 3
    sites = make(tmp_path / "crash", ragged_federation(), **SETTLES)
    die_once(sites, lambda name, ask: ask.request.round_index == exchange)
    with pytest.raises(Crash):
        sites.run()
    assert sites.run()["seeds"][0]["best_round"] == best_round
    expected, _ = store.read_tensors(whole)
    folder = tmp_path / "crash" / "run" / "seed-0"
    assert [file.name for file in folder.iterdir() if "shared" in file.name] == [SHARED]
    shared, meta = store.read_tensors(folder / SHARED)
    assert meta["round"] == best_round
    assert shared.keys() == expected.keys()
    assert all(torch.equal(shared[name], expected[name]) for name in expected)


def test_a_site_refuses_what_it_did_not_agree_to(tmp_path: Path) -> None:
    federation = ragged_federation()
    sites = make(tmp_path, federation, algorithm="fedspray", values={"rounds": 2, "hidden": 8})
    other = Agreement(federation.roster, RunSettings(algorithm="fedavg", values={"rounds": 2, "hidden": 8}))
    for client in federation.clients[:2]:
        other.save(tmp_path / client.name / "local")
    with pytest.raises(Exception, match="Refused: the job"):
        sites.run()


def test_without_enough_answers_the_run_stops_and_can_go_on(tmp_path: Path) -> None:
    federation = ragged_federation()
    settings = {"algorithm": "fedavg", "values": {"rounds": 3, "hidden": 8, "min_clients": 3}}
    sites = make(tmp_path, federation, **settings)
    sites.trouble = lambda name, ask: "away" if ask.request.round_index == 2 else None
    with pytest.raises(RunStopped, match="no client answered"):
        sites.run()
    sites.trouble = lambda name, ask: None
    assert stable(sites.run()) == in_process(federation, **settings)


@pytest.mark.parametrize("algorithm", ["fedspray", "scaffold"])
@pytest.mark.parametrize("exchange", fast([1, 2, 3, 4], 2))
def test_a_round_that_failed_at_one_site_is_repeated_as_if_it_had_not_been(
    tmp_path: Path, algorithm: str, exchange: int
) -> None:
    """All are needed and one fails, twice; the others did what they were asked and must go back."""
    federation = ragged_federation()
    settings = {"algorithm": algorithm, "values": {"rounds": 4, "hidden": 8, "min_clients": 3}}
    sites = make(tmp_path, federation, **settings)
    victim = federation.clients[1].name
    sites.trouble = lambda name, ask: "away" if name == victim and ask.request.round_index == exchange else None
    for _ in range(2):
        with pytest.raises(RunStopped, match="away"):
            sites.run()
    sites.trouble = lambda name, ask: None
    assert stable(sites.run()) == in_process(federation, **settings)


@pytest.mark.parametrize("exchange", [5, 6])
def test_an_ending_that_failed_is_repeated_from_the_last_round(tmp_path: Path, exchange: int) -> None:
    """Exchange 5 evaluates the last model, exchange 6 reports; both come after the last checkpoint."""
    federation = ragged_federation()
    settings = {"algorithm": "fedspray", "values": {"rounds": 4, "hidden": 8}}
    sites = make(tmp_path, federation, **settings)
    sites.trouble = lambda name, ask: "away" if ask.request.round_index == exchange else None
    with pytest.raises(RunStopped, match="away"):
        sites.run()
    sites.trouble = lambda name, ask: None
    assert stable(sites.run()) == in_process(federation, **settings)


def test_a_checkpoint_knows_nothing_of_the_exchange_after_it(tmp_path: Path) -> None:
    """One site missed round 2, so it goes on from round 1 in round 4 as well, should round 3 be repeated."""
    federation = ragged_federation()
    settings = {"algorithm": "fedspray", "values": {"rounds": 4, "hidden": 8, "min_clients": 2}}
    sites, calm = make(tmp_path / "sites", federation, **settings), make(tmp_path / "calm", federation, **settings)
    first, second, third = (client.name for client in federation.clients)
    calm.trouble = lambda name, ask: "away" if (name, ask.request.round_index) == (first, 2) else None
    sites.trouble = lambda name, ask: (
        "away" if (name, ask.request.round_index) in ((first, 2), (second, 3), (third, 3)) else None
    )
    with pytest.raises(RunStopped):
        sites.run()
    checkpoint, meta = store.read_tensors(tmp_path / "sites" / "run" / "seed-0" / store.CHECKPOINT)
    assert meta["progress"]["round_index"] == 2
    assert checkpoint["engine.heard"].tolist() == [1, 2, 2]
    assert not [name for name in checkpoint if name.startswith("proxies.3")]
    sites.trouble = calm.trouble
    assert stable(sites.run()) == stable(calm.run())


# ---- sites that come and go ---------------------------------------------------------------------


def rows_of(sites: Sites, client_ids: tuple[int, ...], since: int) -> list[Any]:
    """What these clients evaluated, round by round."""
    lines = (sites.folder / "run" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [[each["clients"][str(k)] for k in client_ids] for each in records if each["round"] >= since]


def fail_in(sites: Sites, name: str, rounds: range) -> None:
    away = "it is away"
    sites.trouble = lambda asked, ask: away if asked == name and ask.request.round_index in rounds else None


@pytest.mark.parametrize("algorithm", fast(["fedavg", "fedspray", "fedspray2"], "fedspray2"))
def test_a_site_that_leaves_for_good(tmp_path: Path, algorithm: str) -> None:
    """The others go on as if it failed from then on; the result is without it."""
    federation = ragged_federation()
    settings: dict[str, Any] = {"algorithm": algorithm, "values": {"rounds": 5, "min_clients": 1}}
    sites = make(tmp_path / "leaves", federation, **settings)
    die_once(sites, lambda name, ask: ask.request.round_index == 3)
    with pytest.raises(Crash):
        sites.run()
    sites.left = frozenset({"client_01"})
    result = sites.run()
    others = tuple(k for k, name in enumerate(federation.roster.clients) if name != "client_01")
    assert set(result["seeds"][0]["clients"]) == set(federation.roster.clients) - {"client_01"}
    assert result["seeds"][0]["failures"] == 0
    away = make(tmp_path / "away", federation, **settings)
    fail_in(away, "client_01", range(3, 99))
    away.run()
    assert rows_of(sites, others, 1) == rows_of(away, others, 1)


@pytest.mark.parametrize("algorithm", fast(["fedavg", "fedspray", "fedspray2"], "fedspray2"))
def test_a_site_that_joins_a_run(tmp_path: Path, algorithm: str) -> None:
    """It is as if it had been away until then."""
    federation = ragged_federation()
    names = federation.roster.clients
    settings: dict[str, Any] = {"algorithm": algorithm, "values": {"rounds": 6, "min_clients": 1}}
    whole = Agreement(federation.roster, RunSettings(**settings))
    first = replace(whole, roster=replace(federation.roster, clients=names[:-1]))
    assert first.joins(whole) == names[-1:]
    assert whole.joins(first) == ()
    assert replace(first, version="0").joins(whole) == ()
    sites = Sites(tmp_path / "joins", federation, first)
    die_once(sites, lambda name, ask: ask.request.round_index == 3)
    with pytest.raises(Crash):
        sites.run()
    sites.agree(whole)
    result = sites.run()
    away = Sites(tmp_path / "away", federation, whole)
    fail_in(away, names[-1], range(3))
    expected = away.run()
    everybody = tuple(range(len(names)))
    assert rows_of(sites, everybody, 3) == rows_of(away, everybody, 3)
    assert result["models"] == expected["models"]
