"""The client's side of a round, the same in one process and on a separate machine.

A worker holds the private state of the clients of one batch. The model of round r is known only after
round r's aggregation, so it is evaluated, and its snapshot taken, when the next message arrives. The
server says which of the rounds so far was the best; each worker keeps the snapshots of that round and
of the current one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedspray.algorithms.base import Algorithm, fault_of_logits
from fedspray.data.batch import GraphBatch
from fedspray.engine import clients
from fedspray.engine.crossing import columns_in_use
from fedspray.engine.device import CPU
from fedspray.engine.process import flush_denormals, prepare_process
from fedspray.errors import ContractError, OtherVersionError
from fedspray.evaluation.counting import Counter
from fedspray.messages import fault_of_keys, not_finite
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.seeds import stream_key


@dataclass(frozen=True)
class Request:
    """What the server asks of a worker, beside the message itself."""

    round_index: int
    """The round that begins: 1 … R; R+1 evaluates the last model, R+2 reports the kept one."""
    train: bool = True
    evaluate: bool = True
    """Evaluate the model that the message completes: that of the round before."""
    best_round: int | None = None
    """The best round so far, as far as the server knows: its snapshot is to be kept."""
    detail: bool = False
    """Report the details of the kept model (at the end of a run)."""
    from_round: int | None = None
    """The last round of this client that the server knows of, if not the one before: what the client did
    since (an answer that came too late) is forgotten."""

    @property
    def last_known(self) -> int:
        """The round that this one continues from."""
        return self.round_index - 1 if self.from_round is None else self.from_round


@dataclass(frozen=True)
class Snapshot:
    """All that a round's model needs for prediction."""

    round_index: int
    client: Any
    message: Message


@dataclass(frozen=True)
class Memory:
    """A worker's state after a round."""

    round_index: int
    state: Any
    candidate: Snapshot | None = None
    """The model evaluated last."""
    best: Snapshot | None = None


class NotFinite(ArithmeticError):
    """A client's model or update holds NaN or infinity, so it does not take part."""


class Forgotten(LookupError):
    """A worker was asked to continue from a round it no longer has."""


class Worker:
    """The clients of one batch.

    It keeps the last two rounds. If the server lost a round, or stopped in the middle of one, and asks
    for it again, the worker starts from where it was before it. Input is moved to the device; output is on the CPU.
    ``state`` is that before the first round, from `clients.init_state`; ``homophily`` [N] is NaN where there is none.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        batch: GraphBatch,
        state: Any,
        homophily: NDArray[np.float64],
        seed: int,
        device: torch.device = CPU,
    ) -> None:
        prepare_process()
        self.algorithm, self.batch, self._seed = algorithm, batch, seed
        self._counter = Counter(batch, homophily)
        self._device, self._placed = device, batch.to(device)
        self._memories = [Memory(0, tree.to(state, device))]

    @property
    def client_ids(self) -> tuple[int, ...]:
        """The clients."""
        return self.batch.client_ids

    @property
    def columns(self) -> list[Tensor | None]:
        """The features that each client's nodes use; None where features are dense."""
        return columns_in_use(self.batch)

    def handle(self, request: Request, message: Message) -> tuple[Message, Message]:
        """Answers a request: the algorithm's uplink and, separately, the evaluation counts."""
        before = self.memory_at(request.last_known)
        # A report trains nothing, so the last round's state stays, in case the server fails and asks for both again.
        kept = self.memory_at(min(request.last_known, request.round_index - 2)) if request.detail else before
        self._memories = [before] if kept is before else [kept, before]
        state, candidate, best = before.state, before.candidate, _better(before, request.best_round)
        message = tree.to(message, self._device)
        uplink: Message = {}
        counts: Message = {}
        with flush_denormals():
            if request.evaluate:
                candidate = Snapshot(request.round_index - 1, tree.for_prediction(state), message)
            shown = candidate if request.evaluate else best if request.detail else None
            if shown is not None:
                counts = self._evaluated(shown, detail=request.detail)
            if request.train:
                round_seed = stream_key(self._seed, "round", request.round_index)
                state, uplink = clients.train(self.algorithm, state, message, self._placed, round_seed)
                self._keep_contract(fault_of_keys(self.algorithm.uplink, uplink))
                uplink = tree.to(uplink, CPU)
                wrong = not_finite(uplink)
                if wrong is not None:
                    raise NotFinite(f"{wrong} is not finite after local training")
        self._memories = [kept, Memory(request.round_index, state, candidate, best)]
        return uplink, counts

    def count_best(self) -> Message:
        """The counts of the best model so far, from when it was the last one; empty if there is none yet."""
        best = self._memories[-1].best
        return {} if best is None else self._evaluated(best, detail=False)

    def _evaluated(self, shown: Snapshot, *, detail: bool) -> Message:
        """A model's predictions as counts; the loss may come from other logits."""
        with flush_denormals(), torch.no_grad():
            algorithm, state, batch = clients.bound(self.algorithm, shown.client, self._placed)
            logits = algorithm.predict(state, shown.message, batch)
            loss_logits = algorithm.loss_logits(state, shown.message, batch)
        for method, found in (("predict", logits), ("loss_logits", loss_logits)):
            self._keep_contract(None if found is None else fault_of_logits(method, found, batch))
        logits, loss_logits = logits.cpu(), None if loss_logits is None else loss_logits.cpu()
        if not all(torch.isfinite(part).all() for part in (logits, loss_logits) if part is not None):
            raise NotFinite(f"the model of round {shown.round_index} gives predictions that are not finite")
        counts = self._counter.count(logits, loss_logits)
        if not detail:
            return counts
        whose = torch.full((self.batch.num_clients,), shown.round_index, dtype=torch.int32)
        return {**counts, **self._counter.detail(logits), "evaluation.round": whose}

    def _keep_contract(self, fault: str | None) -> None:
        if fault is not None:
            raise ContractError(f"{type(self.algorithm).__name__}: {fault}")

    def memory_at(self, round_index: int) -> Memory:
        """The worker's state at the end of ``round_index`` (rounds it missed change nothing)."""
        known = [memory for memory in self._memories if memory.round_index <= round_index]
        if not known:
            raise Forgotten(f"asked for round {round_index}, but only rounds {self.rounds} are kept")
        return known[-1]

    # ---- what survives a restart ------------------------------------------------------------------

    @property
    def rounds(self) -> list[int]:
        """The rounds whose state is kept: at most two, in order."""
        return [memory.round_index for memory in self._memories]

    def tensors(self, round_index: int) -> dict[str, Tensor]:
        """The state at the end of ``round_index``, by name."""
        memory = self.memory_at(round_index)
        flat = tree.flatten(memory.state, "state")
        for name, snapshot in (("candidate", memory.candidate), ("best", memory.best)):
            if snapshot is not None:
                flat[f"{name}.round"] = torch.tensor(snapshot.round_index)
                flat |= tree.flatten(snapshot.client, f"{name}.client")
                flat |= tree.prefixed(f"{name}.message", snapshot.message)
        return tree.to(flat, CPU)

    def recall(self, memories: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Restores one or several rounds: what `tensors` held at each."""
        template = self._memories[0].state
        self._memories = [
            _restored(template, tree.to(dict(memories[round_index]), self._device), round_index)
            for round_index in sorted(memories)
        ]

    def split(self, singles: Sequence[Worker]) -> list[Worker]:
        """The same clients as one worker each: ``singles``, which are new, with this worker's state."""
        for single, *memories in zip(singles, *map(self._split_memory, self._memories), strict=True):
            single._memories = memories
        return list(singles)

    def personal_models(self) -> list[Snapshot | None]:
        """The kept snapshot of each client, on the CPU."""
        best = self._memories[-1].best
        if best is not None:
            best = Snapshot(best.round_index, tree.to(best.client, CPU), tree.to(best.message, CPU))
        return self._split_snapshot(best)

    def _split_memory(self, memory: Memory) -> list[Memory]:
        snapshots = (self._split_snapshot(each) for each in (memory.candidate, memory.best))
        parts = zip(tree.split(memory.state, self.batch), *snapshots, strict=True)
        return [Memory(memory.round_index, *own) for own in parts]

    def _split_snapshot(self, snapshot: Snapshot | None) -> list[Snapshot | None]:
        if snapshot is None:
            return [None] * self.batch.num_clients
        clients = tree.split(snapshot.client, self.batch)
        return [
            Snapshot(snapshot.round_index, client, {name: v[k : k + 1] for name, v in snapshot.message.items()})
            for k, client in enumerate(clients)
        ]


def _restored(template: Any, tensors: Mapping[str, Tensor], round_index: int) -> Memory:
    snapshots: dict[str, Snapshot | None] = {}
    for name in ("candidate", "best"):
        held = tree.part_of(tensors, name)
        if held:
            client = tree.restore(template, tree.part_of(held, "client"))
            snapshots[name] = Snapshot(int(held["round"]), client, tree.part_of(held, "message"))
    state = tree.part_of(tensors, "state")
    if state.keys() != tree.flatten(template).keys():
        raise OtherVersionError(
            f"the checkpoint of round {round_index} was written by another version of fedspray: start this run again"
        )
    return Memory(round_index, tree.restore(template, state), **snapshots)


def _better(memory: Memory, best_round: int | None) -> Snapshot | None:
    """The snapshot to keep: that of the best round or, if that evaluation was missed, the last one before it."""
    candidate, best = memory.candidate, memory.best
    if candidate is None or best_round is None or candidate.round_index > best_round:
        return best
    return candidate if best is None or candidate.round_index > best.round_index else best
