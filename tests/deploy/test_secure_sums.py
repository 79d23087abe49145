"""Secure sums between organisations, without the network: the same run, sites that are lost, servers that lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from nvflare.lighter.utils import Identity
from sites import Crash, Sites
from toys import permuted_federation

from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import read_answers
from fedspray.deploy.messages.wire import SUM, Ask, Reply, freeze
from fedspray.deploy.provisioning import certificates
from fedspray.deploy.provisioning.authority import Authority
from fedspray.deploy.site.identity import CertificateIdentity
from fedspray.engine.secure import Unsafe
from fedspray.engine.worker import Request
from fedspray.errors import RunStopped
from fedspray.experiment import RunSettings

FEDERATION = permuted_federation(40)
"""Six sites, of which five suffice to open a sum."""


@cache
def authority() -> Authority:
    return Authority.make("federation", 30)


@cache
def key(index: int) -> rsa.RSAPrivateKey:
    return certificates.new_key()


def certify(kit: Path, name: str, index: int, by: Authority | None = None) -> None:
    """A site's key, its certificate and that of the authority."""
    startup = kit / "startup"
    startup.mkdir(exist_ok=True)
    certificates.write_key(startup / certificates.KEY, key(index))
    issued = (by or authority()).issue(Identity(name, "org", "client"), key(index).public_key())
    (startup / certificates.CERTIFICATE).write_bytes(issued)
    authority().save(kit)
    (kit / certificates.AUTHORITY).rename(startup / certificates.AUTHORITY)


def make(folder: Path, *chain: str, algorithm: str = "fedspray") -> Sites:
    settings = RunSettings(algorithm=algorithm, values={"rounds": 5, "hidden": 8}, link=chain)
    sites = Sites(folder, FEDERATION, Agreement(FEDERATION.roster, settings))
    for index, name in enumerate(FEDERATION.roster.clients):
        certify(folder / name, name, index)
    return sites


def lost_from(round_index: int, *names: str) -> Callable[[str, Ask], str | None]:
    return lambda name, ask: "lost" if name in names and ask.request.round_index >= round_index else None


def told(summary: dict[str, Any]) -> dict[str, float]:
    (row,) = summary["seeds"]
    return {name: row[name] for name in ("best_round", "overall", "minority", "macro_f1", "auc", "loss")}


def records(sites: Sites) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sites.folder / "run" / "seed-0" / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedspray", "fedspray2"])
def test_the_same_run_with_a_site_lost_in_the_middle(tmp_path: Path, algorithm: str) -> None:
    found = []
    for folder, chain in (("plain", ()), ("secure", ("secure-sum key_rounds=3",))):
        (tmp_path / folder).mkdir()
        sites = make(tmp_path / folder, *chain, algorithm=algorithm)
        sites.trouble = lost_from(3, "c2")
        found.append((told(sites.run()), [(r["trained"], r["val"]["overall"]) for r in records(sites)]))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-5)
    assert found[1][1] == found[0][1]
    assert found[1][1][-1][0] == [0, 1, 3, 4, 5]
    site = tmp_path / "secure" / "c0"
    assert json.loads((site / "models" / "run" / "seed-0.figures.json").read_text())["nodes"] > 0
    assert len(json.loads((site / "state" / "run" / "peers.json").read_text())) == 6
    left = {name for line in read_answers(site) for name in line["fields"] if name.startswith(("uplink", "counts"))}
    assert not {name for name in left if name.startswith(("counts", "uplink.evaluation", "uplink.num"))}
    assert "uplink.masked" in left


@pytest.mark.slow
@pytest.mark.parametrize("step", ["keys", "shares", SUM, "confirm", "unmask"])
def test_a_site_lost_at_any_step(tmp_path: Path, step: str) -> None:
    """In round 3 and not later; keys are made anew for round 4, and the site is back."""
    sites = make(tmp_path, "secure-sum key_rounds=2")
    sites.trouble = lambda name, ask: "lost" if (name, ask.request.round_index, ask.step) == ("c1", 3, step) else None
    sites.run()
    trained = [record["trained"] for record in records(sites)]
    alone = [0, 2, 3, 4, 5]
    everyone = [0, 1, 2, 3, 4, 5]
    third = everyone if step in ("confirm", "unmask") else alone
    assert trained[:3] == [everyone, everyone, third]
    assert trained[4] == everyone


@pytest.mark.slow
def test_too_many_sites_lost(tmp_path: Path) -> None:
    sites = make(tmp_path, "secure-sum")
    sites.trouble = lost_from(3, "c1", "c2", "c3", "c4")
    with pytest.raises(RunStopped, match="secure-sum needs 3"):
        sites.run()
    sites.trouble = lambda name, ask: None
    assert len(sites.run()["seeds"]) == 1  # they are back


@pytest.mark.slow
@pytest.mark.parametrize("step", ["keys", SUM, "unmask"])
def test_a_server_that_dies_goes_on(tmp_path: Path, step: str) -> None:
    sites = make(tmp_path, "secure-sum")
    died: list[bool] = []

    def die_once(name: str, ask: Ask) -> None:
        due = ask.step == step and ask.request.round_index >= (1 if step == "keys" else 3)
        if due and name == "c3" and not died:
            died.append(True)
            raise Crash

    sites.trouble = die_once
    with pytest.raises(Crash):
        sites.run()
    sites.restart()
    assert [record["round"] for record in records(sites)] == [1] if step != "keys" else True
    sites.run()
    assert [record["round"] for record in records(sites)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_round_is_not_opened_for_other_sites_after_a_restart(tmp_path: Path) -> None:
    """The server opened round 1, lost what it wrote, and comes back without one site."""
    sites = make(tmp_path, "secure-sum")

    def dies(name: str, ask: Ask) -> None:
        if ask.request.round_index == 2:
            raise Crash

    sites.trouble = dies
    with pytest.raises(Crash):
        sites.run()
    for file in (tmp_path / "run" / "seed-0").glob("checkpoint*"):  # back to the beginning
        file.unlink()
    sites.restart()
    sites.trouble = lost_from(1, "c5")
    with pytest.raises(RunStopped, match="1 was added up"):
        sites.run()


def test_a_server_that_asks_for_a_sites_own_numbers(tmp_path: Path) -> None:
    sites = make(tmp_path, "secure-sum")
    handler = sites._handler("c0")
    for step in (None, "everything"):
        head, _ = Ask(0, Request(1), {}, step).pack()
        reply, _ = handler.answer(head, freeze({}))
        assert "is asked for, but the agreement has" in reply["error"]


def test_certificates_of_others_are_refused(tmp_path: Path) -> None:
    names = ["c0", "c1"]
    for index, name in enumerate(names):
        (tmp_path / name).mkdir()
        certify(tmp_path / name, name, index)
    one, other = (CertificateIdentity(tmp_path / name, names) for name in names)
    one.check(1, other.certificate, other.sign(b"text"), b"text")
    assert one.peers.keys() == {"c1"}
    with pytest.raises(Unsafe, match="not signed"):
        one.check(1, other.certificate, other.sign(b"text"), b"other text")
    with pytest.raises(Unsafe, match="belongs to somebody else"):
        one.check(1, one.certificate, one.sign(b"text"), b"text")
    (tmp_path / "foreign").mkdir()
    certify(tmp_path / "foreign", "c1", 1, by=Authority.make("another", 30))
    foreign = CertificateIdentity(tmp_path / "foreign", names)
    with pytest.raises(Unsafe, match="not signed"):
        one.check(1, foreign.certificate, foreign.sign(b"text"), b"text")


@pytest.mark.slow
def test_a_site_that_sends_a_wrong_share_or_size_is_named(tmp_path: Path) -> None:
    sites = make(tmp_path, "secure-sum")

    def changed(name: str, ask: Ask, reply: Reply) -> Reply:
        if name == "c4" and ask.step == SUM and ask.request.round_index == 2:
            return replace(reply, uplink={"masked": reply.uplink["masked"][:, :-1]})
        return reply

    sites.changed = changed
    sites.run()
    assert records(sites)[1]["failed"] == {"c4": "its part of the sum is not of the algorithm's size"}


@pytest.mark.slow
@pytest.mark.parametrize("chain", [("dp epsilon=8",), ("dp epsilon=8", "secure-sum")])
def test_a_privacy_budget_between_sites(tmp_path: Path, chain: tuple[str, ...]) -> None:
    """No evaluation and no hash of a model leaves, and every line of the ledger says what is spent."""
    pytest.importorskip("dp_accounting")
    (row,) = make(tmp_path, *chain, algorithm="fedavg").run()["seeds"]
    assert row["privacy"]["epsilon"] <= 8
    assert (row["overall"], row["models"]) == (None, {})
    lines = [line for line in read_answers(tmp_path / "c0") if "privacy" in line]
    assert lines[-1]["privacy"]["outside"] == []
    assert "model" not in {name for line in read_answers(tmp_path / "c0") for name in line["fields"]}
    assert json.loads((tmp_path / "c0" / "models" / "run" / "seed-0.figures.json").read_text())["overall"] is not None
    secrets = {(tmp_path / name / "state" / "run" / "seed-0" / "secret.json").read_text() for name in ("c0", "c1")}
    assert len(secrets) == 2
