"""What the JSON files of a federation between organisations hold, field by field; `fedspray.stored` reads them."""

from __future__ import annotations

from typing import Any, Literal, Required

from typing_extensions import TypedDict


class AgreedRun(TypedDict, total=False):
    """``run`` in an agreement; settings that are missing have their defaults."""

    algorithm: str
    backbone: str
    preset: str | None
    values: dict[str, Any]
    backbone_of: dict[str, str]
    seeds: Required[list[int]]
    keep_split: bool
    baseline: str | None
    dtype: str
    device: str
    link: list[str]


class AgreementFile(TypedDict, total=False):
    """``agreement.json``."""

    format: Required[int]
    fedspray: Required[str]
    coordinator: str
    federation: Required[str]
    sites: Required[list[str]]
    num_features: Required[int]
    num_classes: Required[int]
    class_names: Required[list[str] | None]
    feature_names: list[str] | None
    data: Required[dict[str, Any]]
    run: Required[AgreedRun]
    largest_message: int
    leaves: dict[str, str]
    code: dict[str, str]
    outside: dict[str, str]


class ProjectCard(TypedDict, total=False):
    """``project.json``."""

    host: Required[str]
    port: Required[int]
    grace: Required[float]
    organisations: dict[str, str]
    about: dict[str, dict[str, Any]]


class SiteCard(TypedDict, total=False):
    """``local/site.json`` of a site's kit."""

    name: Required[str]
    data: str | None
    threads: int
    expected_nodes: int | None
    proxy: str | None


class ServerCard(TypedDict):
    """``local/server.json`` of the server's kit."""

    runs: str


class MemberEntry(TypedDict, total=False):
    """A site in ``local/members.json`` of the server's kit."""

    key: str | None
    disabled: bool
    left: bool


Members = dict[str, MemberEntry]


class Job(TypedDict):
    """A job of a run."""

    id: str
    time: float


class Jobs(TypedDict):
    """``jobs.json`` of a run."""

    jobs: list[Job]


class Progress(TypedDict, total=False):
    """``progress.json`` of a run."""

    job: str
    pid: int
    state: str
    reason: str | None
    seed: int
    round: int
    waiting_for: list[str] | None
    waiting_since: float | None
    absent: list[str]
    time: float


class Status(TypedDict, total=False):
    """``status.json`` of a site's kit."""

    pid: Required[int]
    state: Required[str]
    since: Required[str | None]
    reason: Required[str | None]
    time: Required[str]


class Offered(TypedDict):
    """``offer`` in `Consent`: `fedspray.deploy.site.policy.Offer`."""

    run: str
    agreement: str
    algorithm: str
    rounds: int
    bytes: int
    epsilon: float | None


class Consent(TypedDict, total=False):
    """``consent.json`` of a run at a site."""

    offer: Required[Offered]
    asked: Required[str]
    answer: Required[Literal["yes", "no"] | None]
    why: Required[str | None]
    by: str
    reason: str | None
    time: str


class Benefit(TypedDict, total=False):
    """What a site reads of ``seed-S.benefit.json``."""

    said: str | None


class Secret(TypedDict):
    """``secret.json`` of a run at a site."""

    secret: int


Answered = dict[str, str]
"""``answered.json`` of a run at a site: by round, the sha256 of what it was answered for."""
Released = dict[str, list[int]]
"""``released.json`` of a run at a site: by sum, the clients for which shares were given."""


class Head(TypedDict):
    """``state/ledger.json`` of a site's kit."""

    head: str


class Event(TypedDict, total=False):
    """A line of a ledger or of ``events.jsonl`` that is an event."""

    event: Required[str]
    time: str
    sender: str
    what: str


class Spent(TypedDict):
    """What a privacy budget says of a round."""

    epsilon: float


class Said(TypedDict):
    """What a ledger says of a field."""

    field: str
    when: str
    server_gets: str
    reveals: str
    protection: str


class Answer(TypedDict, total=False):
    """A line of a ledger that is an answer."""

    time: str
    run: Required[str]
    seed: Required[int | None]
    round: Required[int | None]
    bytes: int
    fields: dict[str, int]
    leaves: list[Said]
    server_gets: dict[str, str]
    privacy: Spent


class OfSite(TypedDict, total=False):
    """A site's answer in an exchange."""

    failed: Required[str | None]
    bytes_up: int
    bytes_down: int
    seconds: float | None
    ledger: str | None


class Exchange(TypedDict, total=False):
    """A line of ``seed-S/exchanges.jsonl``."""

    round: Required[int]
    time: Required[float]
    sites: Required[dict[str, OfSite]]
