from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toys import ragged_federation

from fedspray.data.reading import read_graph, read_graph_and_split
from fedspray.errors import InputError, MissingDataError


def test_a_file_and_a_folder_give_the_same_graph(tmp_path: Path) -> None:
    client = ragged_federation().clients[1]
    client.save(tmp_path / "folder")
    client.graph.to_npz(tmp_path / "graph.npz")
    folder, split = read_graph_and_split(tmp_path / "folder")
    file, nothing = read_graph_and_split(str(tmp_path / "graph.npz"))
    assert np.array_equal(folder.edges, file.edges)
    assert np.array_equal(folder.labels, file.labels)
    assert np.array_equal(folder.features, read_graph(tmp_path / "folder").features)
    assert split is not None
    assert np.array_equal(split.train, client.split.train)
    assert nothing is None


def test_other_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no graph")
    for path, error in (("text.npz", InputError), ("nowhere.npz", MissingDataError), (".", MissingDataError)):
        with pytest.raises(error):
            read_graph(tmp_path / path)
