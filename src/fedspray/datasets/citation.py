"""`citation`: papers in three bibliographic databases, each a client: ACM, Citation (from MAG) and DBLP.

All count the same 6,775 words and have the same five classes. A paper that has two of them is unlabelled,
so nothing is learnt or scored on it. The files are MATLAB's, as the authors of ACDNE published them, or the same
arrays as npz: CSR ``attr_*`` and ``adj_*``, and ``classes`` [N, 5].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from fedspray.data.graph import UNLABELLED, Graph, read_csr
from fedspray.datasets._files import DataFolders, from_urls, provide, reading
from fedspray.datasets.base import ClientGraphs, FederationCard

OFFICIAL = "https://github.com/shenxiaocam/ACDNE/raw/master/ACDNE_codes/input"
FILES = {
    "acmv9.mat": "ee072387b0ea6599d9e9b4e60957b7b690aae4eb30adb3b9968a1e2c4e36cd74",
    "citationv1.mat": "98f8f96b4d6141ad6d413bbc43116da54462e10a6b5e10d1b056202f82520c25",
    "dblpv7.mat": "986b5505025a188a2526be37225408bbb1eef2da8b643775ad3f7e1c12768932",
}


def read_mat(file: Path) -> Graph:
    """Reads ``attrb`` (words), ``network`` (adjacency) and ``group`` (classes) of one MATLAB file."""
    from scipy.io import loadmat

    with reading(file, "citation networks in MATLAB's format"):
        content = loadmat(file)
        return _graph(sp.csr_array(content["attrb"]), content["network"], content["group"])


def read_npz(file: Path) -> Graph:
    """Reads the same as plain arrays."""
    with reading(file, "citation networks"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        return _graph(read_csr(archive, "attr"), read_csr(archive, "adj"), archive["classes"])


def _graph(words: sp.csr_array, adjacency: sp.csr_array, classes: NDArray[np.integer]) -> Graph:
    labels = np.where((classes > 0).sum(axis=1) == 1, classes.argmax(axis=1), UNLABELLED)
    return Graph.from_arrays(words, np.stack(adjacency.nonzero()), labels, num_classes=classes.shape[1])


@dataclass(frozen=True)
class Citation(ClientGraphs):
    """The three databases."""

    def graphs(self, folders: DataFolders, seed: int = 0) -> dict[str, Graph]:
        """Reads npz files if all exist, else the published ones."""
        names = [Path(file).stem for file in FILES]
        for folder in folders.candidates("citation"):
            if all((folder / f"{name}.npz").is_file() for name in names):
                return {name: read_npz(folder / f"{name}.npz") for name in names}
        source = from_urls({file: f"{OFFICIAL}/{file}" for file in FILES})
        folder = provide(folders, "citation", "citation", FILES, [source])
        return {name: read_mat(folder / f"{name}.mat") for name in names}


CARDS = (
    FederationCard(
        name="citation",
        title="papers that cite each other, in three bibliographic databases",
        source=Citation,
        clients={"acmv9": (9_360, 15_556), "citationv1": (8_935, 15_098), "dblpv7": (5_484, 8_117)},
        num_features=6_775,
        num_classes=5,
        citation="Shen et al., Adversarial deep network embedding for cross-network node classification, AAAI 2020; "
        "Tang et al., ArnetMiner: extraction and mining of academic social networks, KDD 2008",
    ),
)
