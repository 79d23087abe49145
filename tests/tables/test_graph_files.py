"""Graphs in one file: arrays, PyTorch, GraphML and GEXF; and files that are not what they seem."""

from __future__ import annotations

import gzip
import pickle
import zipfile
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from fedspray.data.federation import Client
from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.tables import asking

GRAPH = Graph.from_arrays(np.arange(12.0).reshape(4, 3), [[0, 1, 2], [1, 2, 3]], [0, 1, 0, 1])


def make(source: Path, out: Path, client: str | None = None, schema: Path | None = None) -> asking.Done:
    return asking.make(asking.Files(schema, graph=source), out, client, strict=True)


def test_npz_and_pt_become_a_clients_folder_with_their_split(tmp_path: Path) -> None:
    masks = [np.array([True, True, False, False]), np.array([False, False, True, False])]
    masks.append(~(masks[0] | masks[1]))
    named = dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True))
    np.savez(tmp_path / "g.npz", x=GRAPH.features, edge_index=GRAPH.edges, y=GRAPH.labels, **named)  # type: ignore[arg-type]
    data: Data = GRAPH.to_pyg()
    for name, mask in named.items():
        data[name] = torch.from_numpy(mask)
    torch.save(data, tmp_path / "g.pt")
    for kind in ("npz", "pt"):
        done = make(tmp_path / f"g.{kind}", tmp_path / kind, client="north")
        client = Client.load(tmp_path / kind)
        assert (done.kind, client.name) == ("client", "north")
        assert client.graph.equals(GRAPH)
        assert client.split.train.tolist() == masks[0].tolist()


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return eval, (f"__import__('pathlib').Path({str(tmp_path / 'harm')!r}).touch()",)

    (tmp_path / "bad.pt").write_bytes(pickle.dumps(Trap()))
    torch.save({"x": Trap()}, tmp_path / "worse.pt")
    np.savez(tmp_path / "worst.npz", edge_index=np.array([Trap()], dtype=object))
    for name in ("bad.pt", "worse.pt", "worst.npz"):
        with pytest.raises(InputError, match=name):
            make(tmp_path / name, tmp_path / "out.npz")
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("kind", ["graphml", "gexf"])
def test_attributes_of_graphml_and_gexf_are_columns(tmp_path: Path, kind: str) -> None:
    graph = nx.Graph()
    for name, income, label in (("ann", 3.5, "yes"), ("bob", 1.0, "no"), ("cyd", 2.0, "no")):
        graph.add_node(name, income=income, y=label)
    graph.add_edge("ann", "bob", weight=2.0)
    graph.add_edge("bob", "cyd", weight=1.0)
    file = tmp_path / f"g.{kind}"
    (nx.write_graphml if kind == "graphml" else nx.write_gexf)(graph, file)
    schema = tmp_path / "s.toml"
    text = 'format = 1\n[nodes]\nid = "id"\nlabel = "y"\n[edges]\nsource = "source"\ntarget = "target"\n'
    schema.write_text(text + 'weight = "weight"\n[[features]]\ncolumns = "income"\nkind = "numeric"\n')
    make(file, tmp_path / "out.npz", schema=schema)
    made = Graph.from_npz(tmp_path / "out.npz")
    assert made.node_names == ("ann", "bob", "cyd")
    assert made.features.tolist() == [[3.5], [1.0], [2.0]]
    assert made.labels.tolist() == [1, 0, 0]
    assert made.edge_weights is not None
    assert made.edge_weights.tolist() == [2, 1]


def test_a_bare_graphml_gets_structural_features(tmp_path: Path) -> None:
    nx.write_graphml(nx.path_graph(4), tmp_path / "g.graphml")
    done = make(tmp_path / "g.graphml", tmp_path / "g.npz")
    assert (done.summary()["num_nodes"], done.summary()["num_edges"], done.summary()["num_features"]) == (4, 3, 4)


@pytest.mark.slow
def test_files_that_unpack_without_end_are_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.csv.gz", "wb") as stream:
        stream.write(b"a,b\n" + b"1,1\n" * 2_000_000)
    with pytest.raises(InputError, match="unpacks to more"):
        asking.make(asking.Files(edges=[str(tmp_path / "bomb.csv.gz")]), tmp_path / "o.npz", None, strict=True)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("edge_index.npy", b"\0" * 400_000_000)
    with pytest.raises(InputError, match=r"bomb.npz unpacks to 0.4 GB"):
        make(tmp_path / "bomb.npz", tmp_path / "o.npz")
    entities = '<!DOCTYPE g [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><graphml>&b;</graphml>'
    (tmp_path / "bomb.graphml").write_text(entities)
    with pytest.raises(InputError, match="entities"):
        make(tmp_path / "bomb.graphml", tmp_path / "o.npz")


@pytest.mark.parametrize("name", ["g.npz", "g.pt", "g.graphml", "g.gexf"])
def test_anything_else_under_these_names_is_one_sentence(tmp_path: Path, name: str) -> None:
    for content in (b"", b"\x00\xff nothing", b"<a><b></a>", b"PK\x03\x04 torn"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            make(tmp_path / name, tmp_path / "out.npz")
    (tmp_path / f"dir-{name}").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        make(tmp_path / f"dir-{name}", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
