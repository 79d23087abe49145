"""FedAvg and FedSpray the way one writes them for a paper: what `fedspray bench` is compared with.

PyTorch Geometric's layers, dense features, one client after another, torch.optim.Adam, averaged state dicts.
No trick of the engine is used here, and no known waste either: normalised edges and SGC's propagated features are
cached, and the encoder is trained on the training nodes alone. Only the data, the settings and the initial weights
come from the package, so that both must end with the same numbers (tests/bench/test_reference.py).

`build` is what `fedspray bench --reference` calls.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, SAGEConv, SGConv

from fedspray import Algorithm, Client, Federation, Task, torch_generator

PARTS = ("train", "val", "test")


def build(federation: Federation, algorithm: Algorithm[Any, Any], seed: int, dtype: torch.dtype) -> FedAvg | FedSpray:
    """The same run as the package's: every `round()` trains, averages, evaluates and returns the metrics."""
    kinds: dict[str, type[FedAvg | FedSpray]] = {"FedAvg": FedAvg, "FedSpray": FedSpray}
    return kinds[type(algorithm).__name__](federation, algorithm, seed, dtype)


# ---- models ------------------------------------------------------------------------------------------


class GCN(torch.nn.Module):
    def __init__(self, num_features: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = GCNConv(num_features, hidden, cached=True)
        self.conv2 = GCNConv(hidden, num_classes, cached=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out

    def start_from(self, weights: dict[str, Tensor]) -> None:
        for name, conv in (("conv1", self.conv1), ("conv2", self.conv2)):
            copy_into(conv.lin.weight, weights[f"{name}.weight"].T)
            copy_into(conv.bias, weights[f"{name}.bias"])


class SAGE(torch.nn.Module):
    def __init__(self, num_features: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv(num_features, hidden)
        self.conv2 = SAGEConv(hidden, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out

    def start_from(self, weights: dict[str, Tensor]) -> None:
        for name, conv in (("conv1", self.conv1), ("conv2", self.conv2)):
            neighbours, root = weights[f"{name}.weight"].chunk(2, dim=1)
            copy_into(conv.lin_l.weight, neighbours.T)
            copy_into(conv.lin_r.weight, root.T)
            copy_into(conv.lin_l.bias, weights[f"{name}.bias"])


class SGC(torch.nn.Module):
    def __init__(self, num_features: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.conv = SGConv(num_features, num_classes, K=2, cached=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv(x, edge_index)
        return out

    def start_from(self, weights: dict[str, Tensor]) -> None:
        copy_into(self.conv.lin.weight, weights["linear.weight"].T)
        copy_into(self.conv.lin.bias, weights["linear.bias"])


class Encoder(torch.nn.Module):
    """FedSpray's feature-structure encoder."""

    def __init__(self, num_features: int, proxy_dim: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(num_features, proxy_dim)
        self.fusion_head = torch.nn.Linear(proxy_dim, num_classes)
        self.feature_head = torch.nn.Linear(proxy_dim, num_classes)

    def embed(self, x: Tensor) -> Tensor:
        out: Tensor = self.embedding(x)
        return out.relu()

    def start_from(self, weights: dict[str, Tensor]) -> None:
        for name, layer in self.named_children():
            weight, bias = layer.parameters()
            copy_into(weight, weights[f"{name}.weight"].T)
            copy_into(bias, weights[f"{name}.bias"])


MODELS: dict[str, type[GCN | SAGE | SGC]] = {"GCN": GCN, "SAGE": SAGE, "SGC": SGC}


# ---- clients -----------------------------------------------------------------------------------------


class FedAvgClient:
    """A client's data, model and optimizer."""

    def __init__(
        self, client: Client, task: Task, algorithm: Algorithm[Any, Any], seed: int, dtype: torch.dtype
    ) -> None:
        data = client.graph.to_pyg()
        self.x, self.edge_index, self.y = data.x.to(dtype), data.edge_index, data.y
        self.masks = {part: torch.from_numpy(getattr(client.split, part).copy()) for part in PARTS}
        self.train_mask = self.masks["train"]
        self.num_train = int(self.train_mask.sum())
        self.majority = int(self.y[self.train_mask].bincount().argmax())
        backbone = algorithm.backbone
        self.epochs = algorithm.local_epochs
        self.model = MODELS[type(backbone).__name__](task.num_features, backbone.hidden, task.num_classes).to(dtype)
        self.model.start_from(backbone.draw(task, torch_generator(seed, "backbone")))
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=backbone.lr, eps=backbone.adam_eps, weight_decay=backbone.weight_decay
        )

    def train_model(self) -> None:
        for _ in range(self.epochs):
            self.optimizer.zero_grad()
            out = self.model(self.x, self.edge_index)
            F.cross_entropy(out[self.train_mask], self.y[self.train_mask]).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        """For each part: sum of losses, nodes, right ones, minority nodes, right ones among them."""
        out = self.model(self.x, self.edge_index)
        counts = {}
        for part, mask in self.masks.items():
            logits, labels = out[mask], self.y[mask]
            right, minority = logits.argmax(dim=1) == labels, labels != self.majority
            loss = F.cross_entropy(logits, labels, reduction="sum")
            counts[part] = torch.stack([loss.double(), *map(count, (labels >= 0, right, minority, right & minority))])
        return counts


class FedSprayClient(FedAvgClient):
    """Beside its model, a client has an encoder and one proxy for every training node."""

    def __init__(
        self, client: Client, task: Task, algorithm: Algorithm[Any, Any], seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__(client, task, algorithm, seed, dtype)
        settings: Any = algorithm
        self.distill_weight, self.encoder_distill_weight = settings.distill_weight, settings.encoder_distill_weight
        self.confidence = settings.confidence
        self.encoder = Encoder(task.num_features, settings.proxy_dim, task.num_classes).to(dtype)
        self.encoder_optimizer = torch.optim.Adam(self.encoder.parameters(), lr=settings.encoder_lr)
        self.node_proxies = torch.nn.Parameter(torch.zeros(self.num_train, settings.proxy_dim, dtype=dtype))
        self.proxy_optimizer = torch.optim.Adam([self.node_proxies], lr=settings.proxy_lr)
        self.x_train, self.y_train = self.x[self.train_mask], self.y[self.train_mask]
        self.class_counts = self.y_train.bincount(minlength=task.num_classes)
        self.class_ratios = self.class_counts.to(dtype) / self.num_train

    def update(self, encoder: dict[str, Tensor], class_proxies: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """One round: returns the trained encoder and the class means of the node proxies."""
        self.encoder.load_state_dict(encoder)
        with torch.no_grad():
            self.node_proxies.copy_(class_proxies[self.y_train])
        self.distill(*self.soft_targets(class_proxies))
        self.train_encoder()
        proxies = class_proxies.clone()
        for c in range(len(proxies)):
            if self.class_counts[c] > 0:
                proxies[c] = self.node_proxies[self.y_train == c].mean(dim=0).detach()
        return copy.deepcopy(self.encoder.state_dict()), proxies

    @torch.no_grad()
    def soft_targets(self, class_proxies: Tensor) -> tuple[Tensor, Tensor]:
        """p for all nodes, and which of them are used."""
        embedding = self.encoder.embed(self.x)
        labels = self.encoder.feature_head(embedding).softmax(dim=1)
        proxies = labels @ class_proxies
        proxies[self.train_mask] = self.node_proxies
        targets = self.encoder.fusion_head(embedding + proxies).softmax(dim=1)
        return targets, (labels.max(dim=1).values > self.confidence) | self.train_mask

    def distill(self, targets: Tensor, used: Tensor) -> None:
        """Phase 1."""
        for _ in range(self.epochs):
            self.optimizer.zero_grad()
            out = self.model(self.x, self.edge_index)
            loss = F.cross_entropy(out[self.train_mask], self.y[self.train_mask])
            distance = F.kl_div(out[used].log_softmax(dim=1), targets[used], reduction="batchmean")
            (loss + self.distill_weight * distance).backward()
            self.optimizer.step()

    def train_encoder(self) -> None:
        """Phase 2."""
        with torch.no_grad():
            predictions = self.model(self.x, self.edge_index)[self.train_mask].softmax(dim=1)
        for _ in range(self.epochs):
            self.encoder_optimizer.zero_grad()
            self.proxy_optimizer.zero_grad()
            embedding = self.encoder.embed(self.x_train)
            loss = F.cross_entropy(self.encoder.feature_head(embedding), self.y_train)
            fused = self.encoder.fusion_head(embedding + self.node_proxies).log_softmax(dim=1)
            distance = F.kl_div(fused, predictions, reduction="batchmean")
            (loss + self.encoder_distill_weight * distance).backward()
            self.encoder_optimizer.step()
            self.proxy_optimizer.step()


# ---- servers -----------------------------------------------------------------------------------------


class FedAvg:
    """One global model."""

    def __init__(self, federation: Federation, algorithm: Algorithm[Any, Any], seed: int, dtype: torch.dtype) -> None:
        self.clients = [FedAvgClient(client, federation.task, algorithm, seed, dtype) for client in federation.clients]
        self.model = copy.deepcopy(self.clients[0].model.state_dict())

    def round(self) -> dict[str, dict[str, float]]:
        states = []
        for client in self.clients:
            client.model.load_state_dict(self.model)
            client.train_model()
            states.append(copy.deepcopy(client.model.state_dict()))
        self.model = average(states, [client.num_train for client in self.clients])
        for client in self.clients:
            client.model.load_state_dict(self.model)
        return metrics([client.evaluate() for client in self.clients])


class FedSpray:
    """Personal models; a global encoder and global class proxies."""

    def __init__(self, federation: Federation, algorithm: Algorithm[Any, Any], seed: int, dtype: torch.dtype) -> None:
        task = federation.task
        self.clients = [FedSprayClient(client, task, algorithm, seed, dtype) for client in federation.clients]
        start: Any = algorithm.init_server(task, seed)
        self.clients[0].encoder.start_from(start.encoder)
        self.encoder = copy.deepcopy(self.clients[0].encoder.state_dict())
        self.class_proxies = start.class_proxies.to(dtype)

    def round(self) -> dict[str, dict[str, float]]:
        encoders, proxies = zip(
            *(client.update(self.encoder, self.class_proxies) for client in self.clients), strict=True
        )
        self.encoder = average(encoders, [client.num_train for client in self.clients])
        ratios = torch.stack([client.class_ratios for client in self.clients])  # [K, C]
        for c in range(len(self.class_proxies)):
            if ratios[:, c].sum() > 0:
                weighted = sum(share * own[c] for share, own in zip(ratios[:, c], proxies, strict=True))
                self.class_proxies[c] = weighted / ratios[:, c].sum()
        return metrics([client.evaluate() for client in self.clients])


def average(states: Any, weights: list[int]) -> dict[str, Tensor]:
    total = sum(weights)
    return {
        name: sum(weight / total * state[name] for weight, state in zip(weights, states, strict=True))
        for name in states[0]
    }


def metrics(counts: list[dict[str, Tensor]]) -> dict[str, dict[str, float]]:
    """Of all clients together."""
    result = {}
    for part in PARTS:
        loss, nodes, right, minority, minority_right = (
            torch.stack([count[part] for count in counts]).sum(dim=0).tolist()
        )
        result[part] = {"loss": loss / nodes, "overall": right / nodes, "minority": minority_right / max(1, minority)}
    return result


def count(mask: Tensor) -> Tensor:
    return mask.sum().double()


def copy_into(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)
