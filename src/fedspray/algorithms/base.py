"""The contract of an algorithm: a frozen dataclass of hyper-parameters and six methods that change nothing.

`ClientState` never leaves its client and holds everything that must survive a round. `ServerState` is
what the server keeps. Only a `Message` travels. Algorithms have no other state,
so a checkpoint is these trees and resuming is exact.

Methods are written over a leading client axis: K clients in one process, or one client (K = 1) on a
separate machine, run the same code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from fedspray.backbones.base import Backbone, setting
from fedspray.backbones.gcn import GCN
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Task
from fedspray.display import settings_line
from fedspray.errors import InputError
from fedspray.knob import check
from fedspray.messages import Declared, unweighted
from fedspray.nn import ops
from fedspray.nn.optim import Adam, AdamState
from fedspray.nn.tree import Message, Params

ServerT = TypeVar("ServerT")
ClientT = TypeVar("ClientT")


@dataclass(frozen=True, repr=False)
class Outputs:
    """What a training step computes its loss from."""

    logits: Tensor
    """[N, C]."""
    representation: Tensor
    """[N, H]: the input of the output layer (the logits without a hidden layer)."""
    optimizer: Adam
    """The optimizer. A loss may use its `distance` from the start of the round."""

    @property
    def params(self) -> Params:
        """The weights, [K, …]. A loss that looks at them needs an optimizer that begins with `AdamState.zeros`."""
        return self.optimizer.all_params


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC, Generic[ServerT, ClientT]):
    """Base of all algorithms. Fields are hyper-parameters only."""

    summary: ClassVar[str]
    """One line for lists."""
    citation: ClassVar[str]
    uplink: ClassVar[Declared]
    """What travels from client to server: key (or ``prefix.*``) → what it is and how the server combines it."""
    downlink: ClassVar[Mapping[str, str]]
    """What travels from server to client."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of settings."""
    formerly: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Former algorithms that this one replaces with certain values, by name: their cells are still found."""
    shares_gnn: ClassVar[bool] = True
    """Whether the GNN's weights are averaged, so that all clients need the same backbone."""
    ignores: ClassVar[frozenset[str]] = frozenset()
    """Common settings that have no effect in this algorithm."""
    own_network: ClassVar[bool] = False
    """Whether it builds a network of the backbone's layers, with its `hidden` and `layers`, in the backbone's place."""
    one_model: ClassVar[bool] = True
    """Whether a client trains one GNN alone, so that running statistics of a user's module are that one's."""
    backbone: Backbone = field(default_factory=GCN, metadata={"description": "the GNN"})
    local_epochs: int = setting(5, "full-batch steps of each client in a round (E)", least=1)
    reset_optimizer: bool = setting(False, "reset Adam's moments at the start of every round")
    sample_nodes: int = setting(
        0,
        "inexact, for huge clients: train on this many sampled training nodes per round, and neighbours; 0: all",
        least=0,
    )
    fanout: int = setting(10, "with sample_nodes: sampled neighbours per node and hop", least=1)
    unit_rows: bool = setting(False, "scale every node's features to length 1", neutral=False)
    prior_shift: float | str = setting(
        0.0,
        "shift decisions towards a client's rare classes by this much, or auto (by validation); 0: no",
        neutral=0.0,
        least=0,
        most=1,
        also=("auto",),
    )

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = settings_line  # type: ignore[method-assign]  # before `dataclass` gives it a longer one

    def __post_init__(self) -> None:
        check(self)

    def check(self, task: Task) -> None:
        """Checks the declared messages, and whatever depends on the numbers of features and classes."""
        if (problem := unweighted(self.uplink)) is not None:
            raise InputError(f"{type(self).__name__}: {problem}")
        if self.backbone.learns_statistics(task) and not self.one_model:
            raise InputError(
                f"backbone {getattr(self.backbone, 'target', '')!r} learns running statistics (BatchNorm?), but "
                f"{type(self).__name__} trains two GNNs per client, which would share them: use another algorithm"
            )

    @property
    def first_comparable_round(self) -> int:
        """The first round with a model of the kind that a run ends with; `patience` doesn't count earlier ones."""
        return 1

    @abstractmethod
    def init_server(self, task: Task, seed: int) -> ServerT:
        """The server's state before the first round."""

    @abstractmethod
    def init_clients(self, task: Task, batch: GraphBatch, seed: int) -> ClientT:
        """The clients' states before the first round."""

    @abstractmethod
    def broadcast(self, server: ServerT, client_ids: Sequence[int]) -> Message:
        """What the server sends to these clients; every tensor is [len(client_ids), …]."""

    @abstractmethod
    def client_update(self, client: ClientT, message: Message, batch: GraphBatch, seed: int) -> tuple[ClientT, Message]:
        """One round of local training; ``seed`` is this round's. Returns the new states and the uplink."""

    @abstractmethod
    def server_update(self, server: ServerT, message: Message, client_ids: Sequence[int]) -> ServerT:
        """Takes in the uplink of these clients, combined as declared: only `each` has a client axis."""

    @abstractmethod
    def predict(self, client: ClientT, message: Message, batch: GraphBatch) -> Tensor:
        """Logits [N, C] of the clients' models, given what the server sent last."""

    def loss_logits(self, client: ClientT, message: Message, batch: GraphBatch) -> Tensor | None:
        """Logits [N, C] for the loss of an evaluation; None: those of `predict`.

        For algorithms that shift decisions between classes, so that their predictions aren't their probabilities.
        """
        return None

    def alone_logits(self, client: ClientT, batch: GraphBatch) -> Tensor | None:
        """Logits [N, C] of the models the clients would have had alone, if the algorithm trains those anyway."""
        return None

    def votes(self, client: ClientT, message: Message, batch: GraphBatch) -> Mapping[str, Tensor]:
        """Logits [N, C] of each part of the model by name, if several take part in a prediction."""
        return {}

    def to_torch(self, client: ClientT, message: Message, task: Task) -> nn.Module | None:
        """One client's model as a plain module: (x, edge_index, edge_weight) → logits [N, C].

        None: `predict` is the backbone with some of the model's weights; the caller finds out which.
        """
        return None

    def diagnostics(self, server: ServerT, message: Message) -> dict[str, Any]:
        """Further JSON values for a round's record, from the new server state and the clients' own rows.

        Lists over clients are in the order of the rows, which is that of the record's ``trained``. Nothing else may
        depend on this method: it is not called where a protocol hides the rows.
        """
        return {}

    def uplink_of_whole(self, uplink: Message, client: ClientT, message: Message, batch: GraphBatch) -> Message:
        """Corrects the uplink of an update on a sample (`sample_nodes`), where it describes a client as a whole.

        By default ``num_train`` becomes the number of all training nodes.

        Args:
            uplink: what `client_update` returned for the sample.
            client: the clients' states before it.
            message: what the server sent.
            batch: the whole clients.
        """
        return {**uplink, "num_train": batch.num_train} if "num_train" in uplink else uplink

    def state_of_whole(self, trained: ClientT, client: ClientT, message: Message, batch: GraphBatch) -> ClientT:
        """Completes the states after an update on a sample (`sample_nodes`) with what needs all nodes of the clients.

        ``trained`` are the states that `client_update` returned for the sample, ``client`` those before it; ``batch``
        has all nodes.
        """
        return trained

    # ---- shared steps -------------------------------------------------------------------------------

    def fit(
        self,
        params: Params,
        optimizer: AdamState,
        batch: GraphBatch,
        seed: int,
        loss: Callable[[Outputs], Tensor] | None = None,
        network: Backbone | None = None,
    ) -> tuple[Params, AdamState]:
        """Trains the backbone for `local_epochs` steps.

        Args:
            params: the weights to start from, [K, …].
            optimizer: Adam's memory.
            batch: the clients.
            seed: this round's.
            loss: what a step computed → one number per client, [K]; None: `supervised_loss`.
            network: what to train in the backbone's place.
        """
        own = network or self.backbone
        steps = self.start_optimizer(params, optimizer, batch, own.lr, weight_decay=own.weight_decay, eps=own.adam_eps)
        for epoch in range(self.local_epochs):
            representation, logits = own.train_outputs(steps.params, batch, seed, epoch)
            outputs = Outputs(logits, representation, steps)
            steps.step(supervised_loss(logits, batch) if loss is None else loss(outputs))
        return steps.result()

    def empty_optimizer(
        self,
        params: Params,
        batch: GraphBatch,
        on_features: Iterable[str] | None = None,
        *,
        weight_decay: float | None = None,
    ) -> AdamState:
        """Adam's memory before the first step, for a loss that looks at outputs and not at the weights themselves.

        Args:
            params: the weights, [K, …].
            batch: the clients.
            on_features: those applied to the features, only through `ops.feature_linear`; None: the backbone's.
            weight_decay: that of the steps to come; None: the backbone's.
        """
        decay = self.backbone.weight_decay if weight_decay is None else weight_decay
        names = self.backbone.feature_weights if on_features is None else on_features
        return AdamState.zeros(params, batch.num_clients, batch.rows, () if decay else names)

    def start_optimizer(
        self,
        params: Params,
        state: AdamState,
        batch: GraphBatch,
        lr: float,
        *,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
    ) -> Adam:
        """Adam for one round, from its kept moments or, with `reset_optimizer`, from none."""
        state = state.forgotten() if self.reset_optimizer else state
        return Adam(params, state, lr=lr, weight_decay=weight_decay, eps=eps, rows=batch.rows)


def supervised_loss(logits: Tensor, batch: GraphBatch) -> Tensor:
    """Mean cross-entropy over each client's training nodes: logits [N, C] → [K]."""
    return ops.soft_cross_entropy(logits, batch.train_targets, batch.rows)


def fault_of_logits(method: str, logits: Tensor, batch: GraphBatch) -> str | None:
    """What is wrong with the shape of the logits that a method returned."""
    wanted = [batch.num_nodes, batch.num_classes]
    if [*logits.shape] == wanted:
        return None
    return f"`{method}` gives shape {[*logits.shape]}, but logits are [N, C], here {wanted}"
