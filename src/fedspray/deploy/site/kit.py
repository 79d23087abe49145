"""A site's folder, its own settings and its data.

::

    KIT/startup/                 certificates and addresses, made by the coordinator (NVFlare's)
    KIT/local/agreement.json     what this site agreed to run
    KIT/local/site.json          this site's own: its name, where its data are, threads
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspray import files, stored
from fedspray.data.federation import Client, Task
from fedspray.data.graph import Graph
from fedspray.data.reading import MASKS, read_graph_and_split
from fedspray.data.splits import SplitRule, draw_split
from fedspray.deploy import kinds
from fedspray.deploy.agreement import Agreement, Refused, check_name
from fedspray.deploy.site import proxy
from fedspray.deploy.site.status import card_of
from fedspray.errors import InputError

CARD = "site.json"
WRITTEN = ("state", "models", "transfer", "ledger.jsonl", "console.log", "status.json")
"""What a running site writes inside its folder, beside NVFlare's logs."""


class SchemaError(InputError):
    """The data are not as the agreement describes them."""


@dataclass(frozen=True)
class Site:
    """A site's folder and its own settings."""

    folder: Path
    name: str
    data: Path | None
    threads: int = 1
    expected_nodes: int | None = None
    """How many nodes the coordinator expects, if it said so."""
    proxy: str | None = None
    """The organisation's own proxy on the way to the server."""

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Reads ``local/site.json``."""
        card = card_of(folder)
        content = stored.read(card, kinds.SiteCard)
        data, threads = content.get("data"), content.get("threads", 1)
        if not 1 <= threads <= 4096:
            raise InputError(f"threads in {card} is {threads}, but must be from 1 to 4096")
        name, where = check_name("site", content["name"]), None if data is None else Path(data)
        return cls(folder, name, where, threads, content.get("expected_nodes"), proxy.of(folder))

    def save(self) -> None:
        """Writes ``local/site.json``."""
        content = {"name": self.name, "data": None if self.data is None else str(self.data), "threads": self.threads}
        if self.expected_nodes is not None:
            content["expected_nodes"] = self.expected_nodes
        if self.proxy is not None:
            content["proxy"] = self.proxy
        files.write_json(self.folder / "local" / CARD, content)

    def check_writable(self) -> None:
        """What a running site writes to; ``startup`` and ``local`` may be read-only."""
        for path in (self.folder, *(self.folder / name for name in WRITTEN)):
            if path.exists() and not os.access(path, os.W_OK):
                raise InputError(
                    f"{path} is not writable, but {self.name} must write there: only startup and local may be read-only"
                )

    def agreement(self) -> Agreement:
        """This site's copy of the agreement."""
        agreement = Agreement.load(self.folder / "local")
        if self.name not in agreement.roster.clients:
            raise Refused(f"{self.name!r} is not in the agreement, whose sites are {agreement.roster.clients}")
        return agreement.check_version()

    def client(self, agreement: Agreement, seed: int) -> Client:
        """This site's data, with the split of a seed."""
        if self.data is None:
            raise InputError(f"no data folder is set: set it with fedspray site check {self.folder} --data PATH")
        graph, split = read_graph_and_split(self.data)
        if not agreement.settings.keep_split:
            split = draw_split(graph, seed, self.name, SplitRule.of(agreement.roster.settings))
        elif split is None:
            raise InputError(
                f"{self.data} has no split, but the agreement keeps the sites' own: give a client's folder, or an "
                f"npz file with {', '.join(MASKS)}"
            )
        graph = check_schema(graph, agreement.roster.task)
        return Client(self.name, graph, split, np.arange(graph.num_nodes))


def check_schema(graph: Graph, task: Task) -> Graph:
    """The graph as the agreement wants it, or an error that says what differs."""
    if graph.num_features != task.num_features:
        raise SchemaError(f"the data have {graph.num_features} features per node, but {task.num_features} are agreed")
    if graph.num_classes > task.num_classes:
        raise SchemaError(f"the data have {graph.num_classes} classes, but {task.num_classes} are agreed")
    different = task.difference(graph)
    if different is not None:
        which, given, agreed = different
        raise SchemaError(f"{which} of the data is {given}, but {agreed} is agreed")
    return graph.with_num_classes(task.num_classes)
