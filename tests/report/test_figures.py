from __future__ import annotations

import io

import matplotlib.image
import numpy as np
import pytest

from fedspray.data.federation import Federation
from fedspray.data.graph import UNLABELLED, Graph
from fedspray.data.statistics import FederationStatistics, describe
from fedspray.report.figures import CLASS_COLOURS, clients_figure, to_png


def make_statistics(num_clients: int, num_classes: int, *, unlabelled: bool = False) -> FederationStatistics:
    rng = np.random.default_rng(num_clients)
    graphs = []
    for _ in range(num_clients):
        labels = rng.integers(UNLABELLED if unlabelled else 0, num_classes, size=40)
        graphs.append(
            Graph.from_arrays(np.zeros((40, 1)), rng.integers(40, size=(2, 90)), labels, num_classes=num_classes)
        )
    return describe(Federation.from_graphs(graphs, name="toy"))


@pytest.mark.parametrize(("num_clients", "num_classes"), [(1, 1), (4, 2), (20, 7), (100, 2), (12, 40)])
def test_the_picture_is_a_png_of_reasonable_size(num_clients: int, num_classes: int) -> None:
    figure = clients_figure(make_statistics(num_clients, num_classes))
    image = matplotlib.image.imread(io.BytesIO(to_png(figure)))
    height, width, _ = image.shape
    assert 1000 <= width <= 2400
    assert 1000 <= height <= 1400


def test_bars_are_as_high_as_clients_are_large() -> None:
    statistics = make_statistics(4, 3, unlabelled=True)
    counts, homophily = clients_figure(statistics).axes
    tops = np.zeros(4)
    for layer in counts.containers:
        tops += [bar.get_height() for bar in layer]
    assert tops.tolist() == [40] * 4
    assert [text.get_text() for text in homophily.get_xticklabels()] == ["00", "01", "02", "03"]
    assert homophily.get_xlabel() == "client"


def test_dots_are_the_homophily_of_the_classes() -> None:
    statistics = make_statistics(3, 2)
    homophily = clients_figure(statistics).axes[1]
    drawn = sorted(float(y) for dots in homophily.collections for _, y in np.asarray(dots.get_offsets()))
    expected = sorted(value for client in statistics.clients for value in client.class_homophily if value is not None)
    assert drawn == pytest.approx(expected)


def test_more_classes_than_colours_share_grey() -> None:
    statistics = make_statistics(5, 40)
    legend = clients_figure(statistics).legends[0]
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) == len(CLASS_COLOURS) + 1
    assert labels[-1] == "all others"


def test_clients_without_label_or_edge_are_drawn() -> None:
    blank = Graph.from_arrays(np.zeros((2, 1)), [[], []], [UNLABELLED] * 2, num_classes=2)
    labelled = Graph.from_arrays(np.zeros((2, 1)), [[], []], [0, 1])
    statistics = describe(Federation.from_graphs({"Bank-A": blank, "Bank-B": labelled}))
    figure = clients_figure(statistics)
    assert figure.axes[1].get_xlabel() == "Bank"
    assert to_png(figure).startswith(b"\x89PNG")
