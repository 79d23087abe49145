"""What leaves a client: every field, its shape and bytes, what the server gets, what it reveals, what protects it.

All of it follows from what the algorithm, the evaluation and the links declare; `fedspray algorithms`, agreements, the
ledger of a site and the report show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from fedspray.data.federation import Task
from fedspray.engine.layouts import play
from fedspray.errors import InputError
from fedspray.evaluation.counting import COUNT_KEYS, DETAIL_KEYS, SUM_KEYS
from fedspray.evaluation.metrics import Counts
from fedspray.experiment import RunSettings
from fedspray.files import Json
from fedspray.messages import Key, fates, pattern_of
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.runs.settings import Resolved, resolve

UNDECLARED = "an unknown amount (`reveals` is not declared)"
KEPT = "does not leave: every client sends the counts of no node"
ROUND, END, LINK = "each round", "once, at the end", "by its link"


@dataclass(frozen=True)
class Entry:
    """One key that leaves a client, or all keys with one prefix."""

    field: str
    when: str
    what: str
    shapes: Mapping[str, tuple[int, ...]]
    """By name, without the client's axis; none for keys that these settings do not send."""
    bytes: int
    """As the algorithm sends it, before links."""
    server_gets: str
    reveals: str
    protection: str

    def to_json(self) -> Json:
        """As JSON values."""
        return asdict(self) | {"shapes": {name: list(shape) for name, shape in self.shapes.items()}}

    @property
    def said(self) -> str:
        """In one sentence: what the server gets, what that reveals, and what protects it."""
        if self.protection:
            return f"{self.server_gets}; {self.protection}; unprotected it would reveal {self.reveals}"
        return f"{self.server_gets}; it reveals {self.reveals}"


def what_leaves(run: Resolved, task: Task) -> list[Entry]:
    """The entries of a run: its algorithm's keys, evaluation counts, and what links add."""
    found = play(run.algorithm, task, run.dtype)
    uplink = _entries(ROUND, fates(run.algorithm.uplink), found.uplink)
    entries = [_protected(entry, run, found.uplink) for entry in uplink]
    sums = run.links[-1] if run.links and run.links[-1].only_sums else None
    counts, detail = found.counts, found.detail
    if sums is not None:
        counts, detail = (Counts.from_message(message).summands() for message in (counts, detail))
    declared = {**COUNT_KEYS, **DETAIL_KEYS} if sums is None else SUM_KEYS
    kept = any(link.hides_evaluation for link in run.links)
    for when, message in ((ROUND, counts), (END, {name: detail[name] for name in detail.keys() - counts.keys()})):
        keys = {name: key for name, key in declared.items() if name in message}
        for entry in _entries(when, keys, message):
            masks = "" if sums is None else sums.protection(entry.field, message[entry.field], declared)
            entries.append(replace(entry, protection=KEPT if kept else masks))
    for text, link in zip(run.settings.link, run.links, strict=True):
        name = text.split()[0]
        entries += [
            Entry(key, LINK, f"added by {name}", {}, 0, "each client's own", said, "")
            for key, said in link.adds.items()
        ]
    return entries


def of_settings(content: Mapping[str, Any], sizes: Mapping[str, Any] | None) -> list[Entry]:
    """The entries of a stored run, by its settings; none if this version cannot tell, as with code that is gone.

    ``sizes`` are ``num_features`` and ``num_classes``; without them there are no shapes and bytes.
    """
    known = {name: content["run"][name] for name in (f.name for f in fields(RunSettings)) if name in content["run"]}
    try:
        run = resolve(RunSettings(**known))
        if sizes is None:
            return [replace(entry, shapes={}, bytes=0) for entry in what_leaves(run, Task(1, 2))]
        return what_leaves(run, Task(sizes["num_features"], sizes["num_classes"]))
    except InputError:
        return []


def sentences(run: Resolved, task: Task) -> dict[str, str]:
    """By field, and by link, what is said of it in an agreement."""
    found = {entry.field: entry.said for entry in what_leaves(run, task) if entry.when != LINK}
    for text, link in zip(run.settings.link, run.links, strict=True):
        found[f"link {text}"] = "; it reveals ".join(filter(None, (link.summary, link.reveals)))
    return found


def _entries(when: str, declared: Mapping[str, Key], message: Message) -> Iterable[Entry]:
    for pattern, key in declared.items():
        parts = {name: value for name, value in message.items() if pattern_of(declared, name) == pattern}
        shapes = {name: tuple(value.shape[1:]) for name, value in sorted(parts.items())}
        size = tree.num_bytes(parts)
        yield Entry(pattern, when, key.text, shapes, size, key.told, key.reveals or UNDECLARED, "")


def _protected(entry: Entry, run: Resolved, message: Message) -> Entry:
    """With what the links say of its first tensor: they treat all of one declaration alike."""
    name = next(iter(entry.shapes), None)
    if name is None:
        return entry
    said = [link.protection(name, message[name], run.algorithm.uplink) for link in run.links]
    return replace(entry, protection="; then ".join(filter(None, said)))
