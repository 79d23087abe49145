"""What the parties agreed on before anything runs: one file, the same on every machine.

A job names the agreement by its fingerprint and brings nothing else along, so a site can only be asked
to run what its own copy says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedspray import files, stored
from fedspray.algorithms.base import Algorithm
from fedspray.data.federation import Roster, Task
from fedspray.data.graph import repeated
from fedspray.data.splits import SplitRule
from fedspray.deploy import kinds
from fedspray.deploy.messages.schema import MessageSchema
from fedspray.deploy.messages.wire import HEAD
from fedspray.deploy.package import differences, digest, installed_files, module_hashes, shortened
from fedspray.errors import InputError, MissingDataError
from fedspray.experiment import RunSettings
from fedspray.files import Json
from fedspray.links.secure_sum import SecureSum
from fedspray.runs.leaves import Entry, sentences, what_leaves
from fedspray.runs.settings import Resolved, resolve

FILE = "agreement.json"
FORMAT = 1
RESERVED = ("server", "coordinator")
"""Names that kits of a project have already."""
MOST = 10_000_000
"""Features or classes that an agreement may have: a model for more of them does not fit into any memory."""


class Refused(InputError):
    """What is asked is not what was agreed. The coordinator is told the sentence: no path, nothing of a site's data."""


@dataclass(frozen=True)
class Agreement:
    """Who takes part, what the data look like, and what is run on them."""

    roster: Roster
    settings: RunSettings
    version: str = field(default_factory=lambda: version("fedspray"))
    """Of fedspray, the same on every machine: other versions may compute other bits."""
    coordinator: str | None = None
    """sha256 of the coordinator's public key: jobs that are not signed with it are refused."""
    code: Mapping[str, str] | None = field(default_factory=installed_files)
    """The files of fedspray and their hashes, the same on every machine; None in agreements that carry none."""
    outside: Mapping[str, str] | None = None
    """The modules of links that are not part of fedspray, and their hashes; None takes those that are here."""

    def __post_init__(self) -> None:
        if not self.roster.clients:
            raise InputError("the agreement names no site, but at least one is needed")
        for name in self.roster.clients:
            check_name("site", name)
        twice = repeated(self.roster.clients)
        if twice is not None:
            raise InputError(f"two sites are called {twice!r}, but names must differ")
        task = self.roster.task
        _check_count("num_features", task.num_features, task.feature_names)
        _check_count("num_classes", task.num_classes, task.class_names)
        scope = SplitRule.of(self.roster.settings).split_scope
        if not self.settings.keep_split and scope != "client":
            raise InputError(f"split-scope is {scope!r}, but a site can only draw its own split: keep the splits")
        for name in (self.settings.algorithm, self.settings.backbone, *self.settings.backbone_of.values()):
            if ":" in name:
                raise InputError(f"{name!r} is code from outside the package, but sites accept only links from outside")
        self._check_outside()
        _ = self.algorithms

    def _check_outside(self) -> None:
        """Before anything is imported: the modules of links are here, and are those that were agreed on."""
        stations = [text.partition(" ")[0] for text in self.settings.link]
        here = module_hashes([name.partition(":")[0] for name in stations if ":" in name])
        if self.outside is None:
            object.__setattr__(self, "outside", here)
        elif self.outside != here:
            raise InputError(f"links are not the agreed ones: {shortened(differences(self.outside, here))}")

    @classmethod
    def between(cls, name: str, sites: Sequence[str], task: Task, settings: RunSettings) -> Agreement:
        """An agreement of organisations that hold data of their own."""
        return cls(Roster(check_name("federation", name), tuple(sites), task, {"dataset": "own"}), settings)

    def fingerprint(self) -> str:
        """sha256 of everything in it."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @cached_property
    def resolved(self) -> Resolved:
        """What is run, as objects."""
        return resolve(self.settings)

    @cached_property
    def algorithms(self) -> list[Algorithm[Any, Any]]:
        """Of each site."""
        return self.resolved.for_clients(self.roster)

    @cached_property
    def largest_message(self) -> int:
        """Bytes of the largest message of the run, either way; what is larger is refused unread."""
        dtype = self.resolved.dtype
        schemas = [
            MessageSchema.of(each, self.roster.task, dtype, links=bool(self.settings.link))
            for each in dict.fromkeys(self.algorithms)
        ]
        parts = (("downlink",), ("uplink", "counts", "detail"))
        return self.protocol_bytes + max(schema.most_bytes(*part) for schema in schemas for part in parts)

    @property
    def secure_sum(self) -> SecureSum | None:
        """The link after which the server sees sums only, if it was agreed on."""
        last = self.resolved.links[-1:]
        return last[0] if last and isinstance(last[0], SecureSum) else None

    @property
    def protocol_bytes(self) -> int:
        """Bytes of a message that carries keys and shares instead of numbers, at most."""
        return 0 if self.secure_sum is None else self.secure_sum.most_bytes(self.roster.num_clients)

    def leaves(self) -> dict[str, str]:
        """What sites send, field by field: what the server gets, what that reveals, and what protects it."""
        return sentences(self.resolved, self.roster.task) | {name: f"it reveals {text}" for name, text in HEAD.items()}

    def entries(self) -> list[Json]:
        """The same with shapes and bytes, for a site's ledger."""
        entries = what_leaves(self.resolved, self.roster.task)
        head = [Entry(name, "each answer", "", {}, 0, "each site's own", text, "") for name, text in HEAD.items()]
        return [entry.to_json() for entry in (*entries, *head)]

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        roster, task = self.roster, self.roster.task
        return {
            "format": FORMAT,
            "fedspray": self.version,
            **({} if self.coordinator is None else {"coordinator": self.coordinator}),
            "federation": roster.name,
            "sites": list(roster.clients),
            "num_features": task.num_features,
            "num_classes": task.num_classes,
            "class_names": None if task.class_names is None else list(task.class_names),
            **({} if task.feature_names is None else {"feature_names": list(task.feature_names)}),
            "data": dict(roster.settings),
            "run": self.settings.to_json(),
            "largest_message": self.largest_message,
            "leaves": self.leaves(),
            **({} if self.code is None else {"code": dict(self.code)}),
            **({"outside": dict(self.outside)} if self.outside else {}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str) -> Agreement:
        """Reads what `to_json` wrote; refuses anything wrong with one sentence."""
        if content.get("format") != FORMAT:
            raise InputError(f"{where} has format {content.get('format')!r}, but this version reads format {FORMAT}")
        stored.check(dict(content), kinds.AgreementFile, where)
        names = (content["class_names"], content.get("feature_names"))
        classes, features = (None if known is None else tuple(known) for known in names)
        task = Task(content["num_features"], content["num_classes"], classes, features)
        try:
            roster = Roster(content["federation"], tuple(content["sites"]), task, content["data"])
            settings = RunSettings(**content["run"])
            agreed = content.get("coordinator"), content.get("code"), content.get("outside", {})
            return cls(roster, settings, content["fedspray"], *agreed)
        except TypeError as error:  # a setting that this version does not know
            raise InputError(f"{where} is not a complete agreement ({error})") from None
        except InputError as error:
            raise InputError(f"{where} cannot be agreed on: {error}") from None

    def joins(self, new: Agreement) -> tuple[str, ...]:
        """The sites that another agreement adds to this one; none if it changes anything else too."""
        old, other, count = self.to_json(), new.to_json(), len(self.roster.clients)
        first, added = other["sites"][:count], other["sites"][count:]
        return tuple(added) if {**other, "sites": first} == old else ()

    def check_version(self) -> Agreement:
        """This agreement, if it was made with this version of fedspray, file by file."""
        otherwise = "or agree again (fedspray deploy amend, fedspray site agree)"
        if self.version != version("fedspray"):
            raise Refused(
                f"the agreement is for fedspray {self.version}, but this is {version('fedspray')}: "
                f"install the same version, {otherwise}"
            )
        differing = [] if self.code is None else differences(self.code, installed_files())
        if differing:
            raise Refused(
                f"fedspray is not installed here as the agreement has it: {shortened(differing)}. "
                f"Install the same wheel everywhere, {otherwise}"
            )
        return self

    def lines(self) -> list[str]:
        """All of it, a line for each value."""
        return [f"{name}: {value!r}" for name, value in sorted(self._shown().items())]

    def changes(self, new: Agreement) -> list[str]:
        """What another agreement changes, a line for each."""
        old, other = self._shown(), new._shown()
        lines = [
            f"{name}: {old.get(name)!r} → {other.get(name)!r}"
            for name in sorted(old | other)
            if old.get(name) != other.get(name)
        ]
        files = differences(self.code, new.code) if self.code is not None and new.code is not None else []
        return [*lines, f"code: {shortened(files)}"] if files else lines

    def _shown(self) -> dict[str, Any]:
        """Every value by its name, and one hash for all files of the code."""
        code = {} if self.code is None else {"code": digest(self.code)[:12]}
        return _flat({**self.to_json(), **code})

    def save(self, folder: Path) -> None:
        """Writes the agreement into ``folder``."""
        files.write_json(folder / FILE, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Agreement:
        """Reads an agreement: the file, or the folder that holds it."""
        file = path / FILE if path.is_dir() else path
        if not file.is_file():
            raise MissingDataError(f"{file} is missing, but an agreement is needed")
        return cls.from_json(files.read_json(file), str(file))


def _check_count(name: str, count: int, names: Sequence[str] | None) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
        raise InputError(f"{name} is {count!r}, but must be a whole number from 1 to {MOST:,}")
    if names is not None and len(names) != count:
        raise InputError(f"{name} is {count}, but there are {len(names)} names")


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    parts = [_flat(v, f"{prefix}{k}.") if isinstance(v, Mapping) else {f"{prefix}{k}": v} for k, v in content.items()]
    return {name: value for part in parts for name, value in part.items()}


def check_name(kind: str, name: str) -> str:
    """A name that is safe in a path and in a certificate."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
        article = "an" if kind[0] in "aeiou" else "a"
        raise InputError(
            f"{name!r} is not {article} {kind} name: use at most 63 letters, digits, '_' and '-', "
            "and start with a letter or digit"
        )
    if kind == "site" and name.lower() in RESERVED:
        raise InputError(f"a site cannot be called {name!r}: {' and '.join(RESERVED)} are kits of every project")
    return name
