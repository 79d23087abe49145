"""A site's yes or no to a run: its engineer's, or that of its policy.

::

    KIT/state/RUN/consent.json    `offer`, what was asked; `answer`, "yes", "no" or null, `by` whom, when and why

A yes is for one run under one agreement. It can be taken back at any time: no answer leaves without it. A damaged file
says nothing: until somebody removes it, the site has not decided, whatever its policy. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from fedspray import files, stored
from fedspray.deploy import kinds, ledger
from fedspray.deploy.locks import Lock
from fedspray.deploy.site.policy import Offer, Policy, spent
from fedspray.errors import InputError, MissingDataError, printable
from fedspray.files import Json

FILE = "consent.json"
POLICY, ENGINEER = "policy", "engineer"


def ask(kit: Path, offer: Offer) -> Json:
    """What this site says to a run: what it said before, or what its policy says, or nothing yet."""
    with _changing(kit, offer.run) as file:
        try:
            found = _read(file) if file.exists() else None
        except InputError as error:
            return {"answer": None, "why": str(error)}
        if found is None or found["offer"]["agreement"] != offer.agreement:
            found = {"offer": asdict(offer), "asked": ledger.now(), "answer": None, "why": None}
            ledger.write_event(kit, "run asked", "coordinator", f"{offer.run}: {told(found)}")
        if found["answer"] is not None:
            return found
        try:
            why = Policy.read(kit).objection(offer, lambda: spent(kit, without=offer.run), datetime.now())
        except InputError as error:
            why = str(error)
        if why is None:
            return _answered(kit, file, {**found, "why": why}, "yes", POLICY)
        if why != found["why"]:
            files.write_sealed(file, found := {**found, "why": why})
        return found


def answer(kit: Path, run: str, yes: bool, reason: str | None = None) -> Json:
    """The engineer's answer to a run that was asked for."""
    known = {each["offer"]["run"]: each for each in answers(kit)}
    if run not in known:
        listed = ", ".join(known) or "none"
        raise MissingDataError(f"no run {run!r} has been asked for here, but one of these: {listed}")
    with _changing(kit, run) as file:
        return _answered(kit, file, _read(file), "yes" if yes else "no", ENGINEER, reason)


def answers(kit: Path) -> list[Json]:
    """Every run that was asked for, from old to new."""
    found = [_read(file) for file in (kit / "state").glob(f"*/{FILE}")]
    return sorted(found, key=lambda each: str(each["asked"]))


def carry_over(kit: Path, old: str, new: str) -> None:
    """What was said to runs under one agreement holds under another, which only adds sites: the site agreed to it."""
    for found in answers(kit):
        if found["offer"]["agreement"] == old:
            with _changing(kit, found["offer"]["run"]) as file:
                files.write_sealed(file, {**found, "offer": {**found["offer"], "agreement": new}})


def told(found: Json) -> str:
    """What a run asks, in words."""
    offer = found["offer"]
    privacy = "no dp" if offer["epsilon"] is None else f"ε = {offer['epsilon']:.3g}"
    return f"{offer['algorithm']}, {offer['rounds']:,} rounds, at most {offer['bytes']:,} bytes leave, {privacy}"


def _read(file: Path) -> Json:
    try:
        return stored.read(file, kinds.Consent)
    except MissingDataError:
        raise
    except InputError as error:
        raise InputError(f"{error}; remove it, and the run is asked about again") from None


def _answered(kit: Path, file: Path, found: Json, said: str, by: str, reason: str | None = None) -> Json:
    reason = None if reason is None else printable(reason)
    found = {**found, "answer": said, "by": by, "reason": reason, "time": ledger.now()}
    files.write_sealed(file, found)
    event = "run accepted" if said == "yes" else "run refused"
    ledger.write_event(kit, event, by, f"{found['offer']['run']}{f': {reason}' if reason else ''}")
    return found


@contextmanager
def _changing(kit: Path, run: str) -> Iterator[Path]:
    """The file of a run, which nobody else changes meanwhile."""
    lock = Lock(kit / "state" / run / "consent.lock")
    lock.acquire(5.0)
    try:
        yield kit / "state" / run / FILE
    finally:
        lock.release()
