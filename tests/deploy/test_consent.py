"""A site's yes or no to a run: nothing leaves without it, and its policy gives it only within its limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch
from sites import Crash, Sites
from toys import ragged_federation

from fedspray.cli.main import run_command
from fedspray.deploy import ledger
from fedspray.deploy.agreement import Agreement, Refused
from fedspray.deploy.messages import wire
from fedspray.deploy.messages.wire import CONSENT, Ask, Reply, freeze, hold, thaw
from fedspray.deploy.site import consent, policy, run
from fedspray.deploy.site.handler import RequestHandler
from fedspray.deploy.site.kit import Site
from fedspray.deploy.site.policy import Offer, Policy
from fedspray.engine.worker import Request
from fedspray.errors import InputError, MissingDataError, RunStopped
from fedspray.experiment import RunSettings
from fedspray.runs.settings import resolve

SITE = "client_01"
OFFER = Offer("run", "f" * 64, "fedavg", 10, 1000, 2.0)
NOON, NIGHT = datetime(2026, 1, 1, 12, 0), datetime(2026, 1, 1, 23, 30)


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    federation = ragged_federation()
    settings = RunSettings(algorithm="fedavg", values={"rounds": 3, "min_clients": 2})
    return Sites(tmp_path, federation, Agreement(federation.roster, settings))


def asks_about_everything(sites: Sites) -> Path:
    kit = sites.folder / SITE
    (kit / "state" / policy.FILE).unlink()
    return kit


def asked(sites: Sites, stopped: Callable[[], bool] = lambda: True) -> Reply:
    handler = RequestHandler(sites.folder / SITE, SITE, "run", sites.agreement.fingerprint())
    head, arrays = Ask(0, Request(1, train=False, evaluate=False), {}, CONSENT).pack()
    answer, values = handler.answer(head, freeze(arrays), stopped)
    handler.close()
    return Reply.unpack(answer, thaw(values, 1000))


def events(kit: Path) -> list[tuple[str, str]]:
    return [(event["event"], event["sender"]) for event in ledger.read_events(kit)]


# ---- what a site says ---------------------------------------------------------------------------


def test_without_a_yes_nothing_leaves_but_that(sites: Sites) -> None:
    kit = asks_about_everything(sites)
    assert SITE not in sites.run()["models"]
    lines = ledger.read_answers(kit)
    assert len(lines) > 3
    assert not any(field.startswith(("uplink", "counts")) for line in lines for field in line["fields"])
    (found,) = consent.answers(kit)
    assert (found["answer"], found["why"]) == (None, "the policy asks about every run")
    assert events(kit) == [("run asked", "coordinator")]


def test_an_answer_is_waited_for(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LOOK_EVERY", 0.01)
    kit = asks_about_everything(sites)
    said: list[Reply] = []
    waiting = threading.Thread(target=lambda: said.append(asked(sites, lambda: False)))
    waiting.start()
    time.sleep(0.5)
    assert waiting.is_alive()
    consent.answer(kit, "run", True)
    waiting.join(10)
    assert [reply.error for reply in said] == [None]
    assert events(kit) == [("run asked", "coordinator"), ("run accepted", "engineer")]


def test_a_site_that_has_not_decided_says_so_and_may_be_asked_again(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HOLD", 0.1)
    monkeypatch.setattr(run, "LOOK_EVERY", 0.01)
    kit = asks_about_everything(sites)
    first = asked(sites, lambda: False)
    assert (first.undecided, first.error) == (True, None)
    consent.answer(kit, "run", True)
    assert not asked(sites, lambda: False).undecided
    assert len(ledger.read_answers(kit)) == 2
    assert events(kit) == [("run asked", "coordinator"), ("run accepted", "engineer")]


def test_a_yes_in_the_last_moment_counts(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look comes after the time is over."""
    monkeypatch.setattr(wire, "HOLD", 0.5)
    monkeypatch.setattr(run, "LOOK_EVERY", 1.0)
    kit = asks_about_everything(sites)
    threading.Timer(0.45, consent.answer, [kit, "run", True]).start()
    asked(sites)
    assert not asked(sites, lambda: False).undecided


def test_who_has_not_decided_is_asked_less_and_less_often() -> None:
    """So that the ledger, which has a line for each answer, has at most 300 of them after a day."""
    assert [hold(turn) for turn in (1, 2, 3, 4, 5, 6, 10**30)] == [30, 60, 120, 240, 300, 300, 300]
    assert hold(-(10**30)) == 30
    assert (24 * 3600 - sum(hold(turn) for turn in range(1, 6))) / hold(6) + 5 < 300


def test_what_was_sent_is_not_sent_again_after_a_refusal(sites: Sites) -> None:
    """An answer that got lost is sent again, but not without a yes."""
    kit = sites.folder / SITE
    handler = RequestHandler(kit, SITE, "run", sites.agreement.fingerprint())
    asks: list[Ask] = []

    def keep(name: str, ask: Ask) -> None:
        if name == SITE:
            asks.append(ask)
            raise Crash

    sites.trouble = keep
    with pytest.raises(Crash):
        sites.run()
    head, arrays = asks[0].pack()

    def answered() -> Reply:
        packed, values = handler.answer(head, freeze(arrays))
        return Reply.unpack(packed, thaw(values, 1 << 30))

    first, again = answered(), answered()
    assert first.uplink
    assert again.seconds == first.seconds, "it was kept"
    consent.answer(kit, "run", False, "an audit")
    assert (answered().error, answered().uplink) == (f"Refused: {SITE} refused this run: an audit", {})
    consent.answer(kit, "run", True)
    assert answered().seconds == first.seconds
    handler.close()


def test_a_refusal_is_named_with_its_reason_and_can_come_later(sites: Sites) -> None:
    kit = sites.folder / SITE
    assert asked(sites).error is None
    consent.answer(kit, "run", False, "the model is of no use\x1b to us")
    said = f"Refused: {SITE} refused this run: the model is of no use to us"
    assert asked(sites).error == said
    records: list[object] = []
    sites.trouble = lambda name, ask: records.append((name, ask.request.round_index)) if name == SITE else None
    sites.run()
    lines = [line for line in ledger.read_answers(kit) if line["round"] is not None]
    assert not any(field.startswith("uplink") for line in lines for field in line["fields"])
    consent.answer(kit, "run", True)
    assert asked(sites).error is None


def test_a_run_that_too_many_refuse_stops_with_their_reasons(sites: Sites) -> None:
    for name in sites.agreement.roster.clients[:-1]:
        (sites.folder / name / "state" / policy.FILE).unlink()
    with pytest.raises(RunStopped, match=f"{SITE}.*has not agreed to this run yet"):
        sites.run()


def test_a_yes_is_for_one_agreement(sites: Sites) -> None:
    kit = asks_about_everything(sites)
    assert asked(sites).undecided
    consent.answer(kit, "run", True)
    old = sites.agreement
    new = replace(old, settings=replace(old.settings, values={"rounds": 4, "min_clients": 2}))
    sites.agree(new)
    (kit / "state" / policy.FILE).unlink()
    assert asked(sites).undecided
    assert consent.answers(kit)[0]["offer"]["rounds"] == 4


def test_agreeing_to_further_sites_is_a_yes_to_runs_that_go_on(sites: Sites) -> None:
    kit = asks_about_everything(sites)
    asked(sites)
    consent.answer(kit, "run", True)
    old = sites.agreement
    new = replace(old, roster=replace(old.roster, clients=(*old.roster.clients, "east")))
    consent.carry_over(kit, old.fingerprint(), new.fingerprint())
    new.save(kit / "local")
    sites.agreement = new
    assert asked(sites).error is None


def test_only_runs_that_were_asked_for_are_answered(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(MissingDataError, match="no run 'other' has been asked for here, but one of these: none"):
        consent.answer(tmp_path, "other", True)


def changed(content: str) -> list[str]:
    """Damaged and doctored versions of a yes by a site's engineer."""
    flipped = content.replace('"rounds": 3', '"rounds": 2')
    other = content.replace('"asked"', '"answer": "yes", "asked"').replace('"answer": "yes",', '"answer": true,')
    assert len({content, flipped, other}) == 3
    return ["", "{", "[]", "null", '{"answer": "yes"}', content[:-30], flipped, other, "\xff"]


def test_a_damaged_answer_is_none(sites: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    kit = sites.folder / SITE
    file = kit / "state" / "run" / consent.FILE
    asked(sites)
    consent.answer(kit, "run", True)
    whole = file.read_text()
    for content in changed(whole):
        file.write_bytes(content.encode("latin-1"))  # the policy would say yes, but perhaps a person said no
        assert asked(sites).undecided
        assert file.read_bytes() == content.encode("latin-1")
        for command in (["runs", str(kit)], ["accept", str(kit), "run"]):
            assert run_command(["site", *command]) == 2
            assert str(file) in capsys.readouterr().err.replace("\n", "")
    assert SITE not in sites.run()["models"]
    assert not any(field.startswith("uplink") for line in ledger.read_answers(kit) for field in line["fields"])
    file.write_text(whole)
    assert not asked(sites).undecided


# ---- what a policy says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "now", "spent", "why"),
    [
        ({}, NOON, 0.0, None),
        ({"unasked": False}, NOON, 0.0, "the policy asks about every run"),
        ({"algorithms": ["fedavg"], "max_rounds": 10, "max_bytes": 1000}, NOON, 0.0, None),
        ({"algorithms": ["fedspray"]}, NOON, 0.0, "algorithm fedavg is not in the policy"),
        ({"max_rounds": 9}, NOON, 0.0, "it takes 10 rounds, but the policy allows 9"),
        ({"max_bytes": 999}, NOON, 0.0, "it takes 1,000 bytes, but the policy allows 999"),
        ({"hours": ["08:00-18:00"]}, NOON, 0.0, None),
        ({"hours": ["08:00-12:00"]}, NOON, 0.0, "it is 12:00, but runs may begin at 08:00-12:00"),
        ({"hours": ["20:00-06:00"]}, NIGHT, 0.0, None),
        ({"hours": ["20:00-06:00"]}, NOON, 0.0, "it is 12:00, but runs may begin at 20:00-06:00"),
        ({"epsilon": 3.0}, NOON, 1.0, None),
        ({"epsilon": 3.0}, NOON, 1.5, "it spends ε = 2, but 1.5 is left"),
    ],
)
def test_what_is_taken_unasked(limits: dict[str, object], now: datetime, spent: float, why: str | None) -> None:
    given = Policy(**{"unasked": True, **limits})  # type: ignore[arg-type]
    assert given.objection(OFFER, lambda: spent, now) == why


def test_a_budget_is_for_runs_with_dp() -> None:
    bare = replace(OFFER, epsilon=None)
    assert "no dp" in str(Policy(unasked=True, epsilon=9.0).objection(bare, lambda: 0.0, NOON))


def test_privacy_that_was_spent_is_read_from_the_ledger(tmp_path: Path) -> None:
    def enter(run: str, seed: int, epsilon: float) -> None:
        ledger.write_answer(tmp_path, {"run": run, "seed": seed, "round": 1, "privacy": {"epsilon": epsilon}})

    for line in (("a", 0, 0.5), ("a", 0, 0.75), ("a", 1, 0.25), ("b", 0, 1.0)):
        enter(*line)
    assert policy.spent(tmp_path) == 2.0
    assert policy.spent(tmp_path, without="b") == 1.0


def test_a_run_with_dp_spends_what_its_offer_says(tmp_path: Path) -> None:
    federation = ragged_federation()
    settings = RunSettings(algorithm="fedavg", values={"rounds": 2}, link=("dp noise=5 clip=1",))
    sites = Sites(tmp_path, federation, Agreement(federation.roster, settings))
    kit = tmp_path / SITE
    sites.run()
    offer = consent.answers(kit)[0]["offer"]
    assert policy.spent(kit) == pytest.approx(offer["epsilon"])
    answers = [line for line in ledger.read_answers(kit) if line["run"] == "run"]
    assert sum(line["bytes"] for line in answers) < offer["bytes"]


def test_with_dp_a_round_is_answered_for_one_message(tmp_path: Path) -> None:
    """The same noise under another message would give the data away; after a restart too."""
    federation = ragged_federation()
    settings = RunSettings(algorithm="fedavg", values={"rounds": 2}, link=("dp noise=5 clip=1",))
    agreement = Agreement(federation.roster, settings)
    Sites(tmp_path, federation, agreement)
    algorithm = resolve(settings).for_clients(agreement.roster)[1]
    message = algorithm.broadcast(algorithm.init_server(agreement.roster.task, 0), [1])
    ask = Ask(0, Request(1, evaluate=False), message)

    def answer(wanted: Ask) -> Reply:
        site = run.SiteRun(Site.open(tmp_path / SITE), "run", agreement.fingerprint())
        try:
            return site.answer(wanted)
        finally:
            site.close()

    one, two = (answer(each).uplink for each in (ask, replace(ask, request=replace(ask.request, from_round=0))))
    assert one
    assert all(torch.equal(one[name], two[name]) for name in one)
    with pytest.raises(Refused, match="round 1 for another message"):
        answer(replace(ask, message={name: value + 1 for name, value in message.items()}))


def test_what_accept_all_writes_can_be_read_with_every_limit(tmp_path: Path) -> None:
    policy.accept_all(tmp_path)
    file = tmp_path / "state" / policy.FILE
    assert Policy.read(tmp_path) == Policy(unasked=True)
    file.write_text(file.read_text().replace("# algorithms", "algorithms").replace("# max_", "max_"))
    file.write_text(file.read_text().replace("# hours", "hours").replace("# epsilon", "epsilon"))
    assert Policy.read(tmp_path) == Policy(
        unasked=True,
        algorithms=["fedspray", "fedavg"],
        max_rounds=100,
        max_bytes=50_000_000,
        hours=["20:00-06:00"],
        epsilon=4.0,
    )


@pytest.mark.parametrize(
    "text",
    [
        "unasked = 1",
        "unasked = true\nmax_rounds = 1.5",
        "max_bytes = true",
        'hours = ["8-18"]',
        'hours = "08:00-18:00"',
        "epsilon = -1",
        'algorithms = "fedavg"',
        "limit = 3",
        "unasked = ",
    ],
)
def test_a_policy_that_is_wrong_is_refused_and_takes_nothing(sites: Sites, text: str) -> None:
    kit = sites.folder / SITE
    (kit / "state" / policy.FILE).write_text(text)
    with pytest.raises(InputError, match=r"policy\.toml"):
        Policy.read(kit)
    assert asked(sites).undecided
    assert "policy.toml" in consent.answers(kit)[0]["why"]
