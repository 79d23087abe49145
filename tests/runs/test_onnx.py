"""Personal models in ONNX: the reference evaluator says what the plain module says, for graphs of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedspray as fs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("algorithm", "backbone"), [*(("fedavg", name) for name in fs.backbones.names()), ("fedspray2", "gcn")]
)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # raised inside torch
def test_the_same_logits(algorithm: str, backbone: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    reference = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    federation = fs.build_federation("banks", clients=2, nodes=160, features=6, classes=3).with_split(0)
    result = fs.run(federation, algorithm, backbone=backbone, rounds=2, keep_split=True, progress=False)
    module, graph = result.models["bank_01"].to_torch(), federation.clients[1].graph
    edges = torch.from_numpy(graph.edges)
    x, edge_index = torch.from_numpy(graph.dense_features()), torch.cat([edges, edges.flip(0)], dim=1)
    shapes = ({0: torch.export.Dim("nodes")}, {1: torch.export.Dim("edges")})
    program = torch.onnx.export(module, (x, edge_index), dynamic_shapes=shapes, dynamo=True)
    assert program is not None
    program.save(str(tmp_path / "model.onnx"))
    session = reference.ReferenceEvaluator(onnx.load(tmp_path / "model.onnx"))
    inside = edge_index[:, (edge_index < 40).all(dim=0)]
    for features, pairs in ((x, edge_index), (x[:40], inside)):
        names = [each.name for each in onnx.load(tmp_path / "model.onnx").graph.input]
        (found,) = session.run(None, dict(zip(names, (features.numpy(), pairs.numpy()), strict=True)))
        with torch.no_grad():
            np.testing.assert_allclose(found, module(features, pairs).numpy(), atol=1e-4)
