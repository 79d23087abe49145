"""Flickr: images, linked if they share a place, a gallery, a group …; features are words of captions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from fedspray.data.graph import UNLABELLED, Graph
from fedspray.datasets._files import DataFolders, from_urls, provide
from fedspray.datasets.base import DatasetCard
from fedspray.errors import UNREADABLE, InputError

DRIVE = "https://drive.usercontent.google.com/download?confirm=t&id="
DRIVE_IDS = {
    "adj_full.npz": "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy",
    "feats.npy": "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
    "class_map.json": "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9",
    "role.json": "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
}

GRAPH_ONLY = Path("Flickr_graph_only") / "flickr_graph_only.npz"
"""Edges and labels without features, under the data folder: enough to inspect and partition."""


def read_flickr(folder: Path) -> Graph:
    """Reads GraphSAINT's files; ignores its train/validation/test roles, since every client draws its own split."""
    try:
        with (folder / "adj_full.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            indices, indptr = archive["indices"], archive["indptr"]
        features = np.load(folder / "feats.npy", allow_pickle=False).astype(np.float32)
        classes = json.loads((folder / "class_map.json").read_text())
        labels = np.full(len(features), UNLABELLED, dtype=np.int64)
        labels[[int(node) for node in classes]] = list(classes.values())
    except UNREADABLE as error:
        raise InputError(f"{folder} does not hold readable Flickr files ({error})") from None
    edges = np.stack([np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices])
    return Graph.from_arrays(features, edges, labels)


def _flickr(folders: DataFolders) -> Graph:
    complete = any(all((folder / file).is_file() for file in DRIVE_IDS) for folder in folders.candidates("Flickr"))
    graph_only = None if folders.data is None else folders.data / GRAPH_ONLY
    if not complete and graph_only is not None and graph_only.is_file():
        print(f"flickr: edges and labels from {graph_only}, without features", file=sys.stderr)
        return Graph.from_npz(graph_only)
    source = from_urls({file: DRIVE + key for file, key in DRIVE_IDS.items()})
    return read_flickr(provide(folders, "flickr", "Flickr", dict.fromkeys(DRIVE_IDS), [source]))


CARDS = (
    DatasetCard(
        name="flickr",
        title="images that share a place, a gallery, a group",
        num_nodes=89_250,
        num_edges=449_878,
        num_features=500,
        num_classes=7,
        default_clients=20,
        citation="Zeng et al., GraphSAINT: graph sampling based inductive learning method, ICLR 2020",
        read=_flickr,
    ),
)
