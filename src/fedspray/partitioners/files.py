"""Published node lists: a folder with one text file for each client, one node id on each line.

Ids are whole numbers, written as such or as floats (``12``, ``12.0``, ``1.2e+01``), as the authors of
FedSpray published theirs. Clients are named after their files and ordered by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedspray.errors import InputError, MissingDataError
from fedspray.partitioners.base import Partitioner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedspray.data.graph import Graph


@dataclass(frozen=True)
class Files(Partitioner):
    """One file of node ids for each client."""

    is_drawn: ClassVar[bool] = False
    lists_nodes: ClassVar[bool] = True

    partition_dir: Path = field(metadata={"help": "folder with one .txt file of node ids for each client"})

    def partition(self, graph: Graph, seed: int = 0) -> dict[str, NDArray[np.int64]]:
        """The node ids of each client, by the client's name; ignores the seed."""
        import numpy as np

        if not self.partition_dir.is_dir():
            raise MissingDataError(
                f"{self.partition_dir} is not a folder, but must hold one file of node ids per client "
                "(for those of FedSpray's authors see docs/datasets.md)"
            )
        visible = (file for file in self.partition_dir.glob("*.txt") if not file.name.startswith("."))
        files = sorted(visible, key=lambda file: file.stem)
        if not files:
            raise MissingDataError(f"{self.partition_dir} holds no .txt file, but must hold one per client")
        owner = np.full(graph.num_nodes, -1, dtype=np.int64)
        parts = {}
        for index, file in enumerate(files):
            nodes = _read_ids(file, graph.num_nodes)
            taken = nodes[owner[nodes] >= 0]
            if len(taken):
                other = files[owner[taken[0]]].name
                raise InputError(f"node {taken[0]} is in {other} and in {file.name}, but clients must be disjoint")
            owner[nodes] = index
            parts[file.stem] = np.sort(nodes)
        return parts


def _read_ids(file: Path, num_nodes: int) -> NDArray[np.int64]:
    import numpy as np

    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a readable text file ({error})") from None
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        node = _parse_id(line.strip())
        if node is None or not 0 <= node < num_nodes:
            raise InputError(
                f"{file}, line {number}: {line.strip()!r} is not a node id: it must be a whole number "
                f"from 0 to {num_nodes - 1}"
            )
        if node in seen:
            raise InputError(f"{file}, line {number}: node {node} is already on line {seen[node]}")
        seen[node] = number
    if not seen:
        raise InputError(f"{file} holds no node ids, but a client needs at least one node")
    return np.fromiter(seen, dtype=np.int64, count=len(seen))


def _parse_id(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # Floats above 2**53 skip whole numbers, but no graph here has so many nodes.
    return int(value) if value.is_integer() else None
