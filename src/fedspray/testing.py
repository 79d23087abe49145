"""Checks that an algorithm of yours keeps the contract::

    fedspray.testing.check_algorithm(MyAlgorithm)

A check plays a few rounds on small clients, in double precision, with the same calls an engine makes.
A broken rule raises an `AssertionError` that names the rule and what broke it; so does an exception of the algorithm,
by its own name and line.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspray import algorithms, backbones
from fedspray.algorithms.base import Algorithm, fault_of_logits
from fedspray.data.batch import GraphBatch
from fedspray.data.federation import Client, Federation, Task
from fedspray.data.graph import Graph
from fedspray.errors import located, unknown
from fedspray.messages import addends, combine, fates, from_sums, key_of, pattern_of, unweighted
from fedspray.nn import tree
from fedspray.nn.tree import Message
from fedspray.seeds import generator

ROUNDS = 3
TOLERANCE = 1e-10
"""The tolerance between stacked clients and clients alone."""

AnyAlgorithm = str | Algorithm[Any, Any] | type[Algorithm[Any, Any]]
Rule = Callable[[Algorithm[Any, Any]], None]


class BrokenRule(AssertionError):
    """An algorithm breaks a rule, and how."""


def check_algorithm(algorithm: AnyAlgorithm, *, backbone: str | Sequence[str] | None = None) -> None:
    """Checks an algorithm against every rule of `RULES`; raises an `AssertionError` for the first broken one.

    An exception in an ordinary round is told as itself, with file and line; it is the `__cause__`.

    Args:
        algorithm: a class, an object with certain settings, or a name.
        backbone: one or several names; all built-in ones by default.
    """
    names = [backbone] if isinstance(backbone, str) else backbone or backbones.names()
    given = algorithms.find(algorithm) if isinstance(algorithm, str) else algorithm
    found = given if isinstance(given, type) else type(given)
    described(found)
    for name in names:
        small = backbones.make(name, hidden=8, dropout=0.2)
        made = given(backbone=small) if isinstance(given, type) else replace(given, backbone=small)
        for rule in RULES:
            _ask(rule, made, f"with the backbone {name}")
    presets_run(found)


# ---- the rules ------------------------------------------------------------------------------------------------------


def described(found: type[Algorithm[Any, Any]]) -> None:
    """Class attributes and every setting have a description."""
    frozen = is_dataclass(found) and getattr(found, "__dataclass_params__").frozen  # noqa: B009
    _hold(frozen, described, f"{found.__name__} is not a frozen dataclass")
    for name in ("summary", "citation", "uplink", "downlink"):
        may_be_empty = name.endswith("link")
        told = hasattr(found, name) if may_be_empty else bool(getattr(found, name, ""))
        _hold(told, described, f"{found.__name__} has no `{name}`")
    for f in fields(found):
        _hold(bool(f.metadata.get("description")), described, f"{f.name} has no description: make it with `setting`")


def same_seed_same_bits(algorithm: Algorithm[Any, Any]) -> None:
    """The same seed gives the same bits: every draw comes from a named stream."""
    first, second = (_played(algorithm, ragged_federation(), [0, 1, 2]) for _ in range(2))
    _hold(same(first.server, second.server), same_seed_same_bits, "the server's state differs in a second run")
    _hold(same(first.client, second.client), same_seed_same_bits, "the clients' states differ in a second run")


def arguments_unchanged(algorithm: Algorithm[Any, Any]) -> None:
    """Arguments are never modified."""
    federation = ragged_federation()
    batch, ids = stack(federation), (0, 1, 2)
    server = tree.cast(algorithm.init_server(federation.task, 0), torch.float64)
    client = algorithm.init_clients(federation.task, batch, 0)
    message = algorithm.broadcast(server, ids)
    before = copy.deepcopy((server, client, message))
    _, uplink = algorithm.client_update(client, message, batch, 0)
    sent = copy.deepcopy(uplink)
    combined = combine(algorithm.uplink, uplink)
    received = copy.deepcopy(combined)
    algorithm.server_update(server, combined, ids)
    algorithm.predict(client, message, batch)
    names = ("the server's state", "the clients' states", "the downlink", "the uplink", "what the server received")
    both = zip((server, client, message, uplink, combined), (*before, sent, received), strict=True)
    for name, (now, then) in zip(names, both, strict=True):
        _hold(same(now, then), arguments_unchanged, f"{name} was changed in place")


def no_data_of_others(algorithm: Algorithm[Any, Any]) -> None:
    """One client's data never reaches another's uplink: in the first round, the others' uplinks don't change."""
    plain = _played(algorithm, ragged_federation(), [0, 1, 2], rounds=1).uplinks[0]
    changed = _played(algorithm, ragged_federation(changed=1), [0, 1, 2], rounds=1).uplinks[0]
    for key, value in plain.items():
        unmoved = torch.equal(value[[0, 2]], changed[key][[0, 2]])
        _hold(unmoved, no_data_of_others, f"{key!r} of two clients depends on the data of a third")


def stacked_as_alone(algorithm: Algorithm[Any, Any]) -> None:
    """Stacked clients, in any order, do what each does alone."""
    federation = ragged_federation(sparse=True)
    together = _played(algorithm, federation, [0, 1, 2])
    for blocks in ([[0], [1], [2]], [[2, 0], [1]]):
        apart = _played(algorithm, federation, *blocks)
        for number, (a, b) in enumerate(zip(together.uplinks, apart.uplinks, strict=True), start=1):
            what = f"with the blocks {blocks}, round {number}, messages differ from those with one block{_apart(a, b)}"
            _hold(same(a, b, TOLERANCE), stacked_as_alone, what)
        _hold(same(together.server, apart.server, TOLERANCE), stacked_as_alone, f"the server differs with {blocks}")
        close = torch.allclose(together.logits(), apart.logits(), rtol=0, atol=TOLERANCE)
        _hold(close, stacked_as_alone, f"with the blocks {blocks} predictions differ from those with one block")


def messages_documented(algorithm: Algorithm[Any, Any]) -> None:
    """`uplink` and `downlink` list exactly what travels, and every tensor has a row for each client."""
    federation, ids = ragged_federation(), (0, 1, 2)
    batch = stack(federation)
    downlink = algorithm.broadcast(tree.cast(algorithm.init_server(federation.task, 0), batch.dtype), ids)
    _check_keys("downlink", downlink, algorithm.downlink)
    client = algorithm.init_clients(federation.task, batch, 0)
    texts = {pattern: key.text for pattern, key in fates(algorithm.uplink).items()}
    _check_keys("uplink", algorithm.client_update(client, downlink, batch, 0)[1], texts)


def _check_keys(way: str, message: Message, listed: Mapping[str, str]) -> None:
    exact = {key for key in listed if not key.endswith(".*")}
    prefixes = [key.removesuffix("*") for key in listed if key.endswith(".*")]
    secret = [key for key in message if pattern_of(listed, key) is None]
    _hold(not secret, messages_documented, f"{secret} travels, but `{way}` does not list it")
    needed = [key for key in exact if not listed[key].startswith("only with")]
    missing = [key for key in needed if key not in message]
    missing += [prefix for prefix in prefixes if not any(key.startswith(prefix) for key in message)]
    _hold(not missing, messages_documented, f"`{way}` lists {missing}, which does not travel")
    odd = [key for key, value in message.items() if len(value) != 3]
    _hold(not odd, messages_documented, f"{odd} doesn't have one row per client")


def predicts_logits(algorithm: Algorithm[Any, Any]) -> None:
    """Predictions are finite logits [N, C] in the batch's precision."""
    game = _played(algorithm, ragged_federation(), [0, 1, 2], rounds=1)
    given = game.client, game.message, game.batch
    for method, logits in (("predict", algorithm.predict(*given)), ("loss_logits", algorithm.loss_logits(*given))):
        if logits is None:
            continue
        fault = fault_of_logits(method, logits, game.batch)
        _hold(fault is None, predicts_logits, str(fault))
        precision = f"`{method}` gives {logits.dtype}, where the batch has {game.batch.dtype}"
        _hold(logits.dtype == game.batch.dtype, predicts_logits, precision)
        _hold(finite({method: logits}), predicts_logits, f"`{method}` gives NaN or infinity")


def sums_suffice(algorithm: Algorithm[Any, Any]) -> None:
    """Every mean comes out the same if a protocol gives the server only sums."""
    problem = unweighted(algorithm.uplink)
    _hold(problem is None, sums_suffice, str(problem))
    game = _played(algorithm, ragged_federation(), [0, 1, 2])
    uplink, declared = game.uplinks[-1], algorithm.uplink
    own = {name: value for name, value in uplink.items() if key_of(declared, name).fate == "each"}
    sums = {name: value.sum(dim=0) for name, value in addends(declared, uplink).items()}
    plain, added = combine(declared, uplink), from_sums(declared, sums, own)
    _hold(same(plain, added, 1e-6), sums_suffice, "a mean differs from the ratio of its sums by more than 1e-6")


def states_hold_everything(algorithm: Algorithm[Any, Any]) -> None:
    """The states hold everything: a new object given the states continues to the same bits."""
    whole = _played(algorithm, ragged_federation(), [0, 1, 2])
    broken = _played(algorithm, ragged_federation(), [0, 1, 2], rounds=ROUNDS - 1)
    fresh = Play(replace(algorithm), stack(ragged_federation()))
    fresh.server = tree.restore(fresh.server, tree.flatten(broken.server))
    fresh.clients = [tree.restore(fresh.client, tree.flatten(broken.client))]
    fresh.round(ROUNDS - 1)
    _hold(same(whole.server, fresh.server), states_hold_everything, "the server continues differently after a restart")
    _hold(same(whole.client, fresh.client), states_hold_everything, "clients continue differently after a restart")


def snapshot_predicts(algorithm: Algorithm[Any, Any]) -> None:
    """Prediction needs only the last message and whatever isn't marked `training_only`."""
    game = _played(algorithm, ragged_federation(), [0, 1, 2])
    whole = game.predict()
    game.clients = [tree.for_prediction(client) for client in game.clients]
    kept = game.predict()
    alike = all(torch.equal(whole[k], logits) for k, logits in kept.items())
    _hold(alike, snapshot_predicts, "without fields marked `training_only`, predictions differ")


def awkward_clients(algorithm: Algorithm[Any, Any]) -> None:
    """Every number stays finite with a client without edges, with a single class or without labels."""
    game = _played(algorithm, awkward_federation(), [0, 1, 2, 3])
    _hold(finite(game.server), awkward_clients, "the server's state holds NaN or infinity")
    _hold(finite(game.client), awkward_clients, "a client's state holds NaN or infinity")
    _hold(finite(game.uplinks[-1]), awkward_clients, "an uplink holds NaN or infinity")
    _hold(finite(game.logits()), awkward_clients, "a prediction is NaN or infinite")
    try:
        json.dumps(game.record(), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _broken(awkward_clients, f"`diagnostics` aren't JSON values ({error})") from None


PLAIN: tuple[Rule, ...] = (messages_documented, sums_suffice, predicts_logits)
"""Rules about ordinary rounds, which come first: an exception there is the algorithm's own, and later of the rule."""

RULES: tuple[Rule, ...] = (
    *PLAIN,
    same_seed_same_bits,
    arguments_unchanged,
    no_data_of_others,
    stacked_as_alone,
    states_hold_everything,
    snapshot_predicts,
    awkward_clients,
)
"""From an algorithm object to an `AssertionError`, if it breaks the rule."""


def presets_run(found: type[Algorithm[Any, Any]]) -> None:
    """Every preset sets something that exists, differs from the defaults, and runs."""
    own = {f.name for f in fields(found)} - {"backbone"}
    for preset, values in found.presets.items():
        net = {name: value for name, value in values.items() if name in backbones.find("gcn").__dataclass_fields__}
        made = found(backbone=backbones.make("gcn", **net), **{k: v for k, v in values.items() if k in own})
        _hold(made != found() or "rounds" in values, presets_run, f"preset {preset!r} changes nothing")
        for federation in (ragged_federation(), awkward_federation()):
            game = Play(made, stack(federation), rounds=2)
            healthy = finite(game.server, game.client, game.uplinks[-1], game.logits())
            _hold(healthy, presets_run, f"preset {preset!r} gives NaN or infinity")


def _ask(rule: Rule, algorithm: Algorithm[Any, Any], where: str) -> None:
    try:
        rule(algorithm)
    except BrokenRule as error:
        raise BrokenRule(f"{error} ({where})") from None
    except Exception as error:
        what = located(error) if rule in PLAIN else _broken(rule, f"it fails with {located(error)}")
        raise AssertionError(f"{what} ({where})") from error


def _hold(kept: bool, rule: Callable[..., None], otherwise: str) -> None:
    if not kept:
        raise _broken(rule, otherwise)


def _broken(rule: Callable[..., None], what: str) -> BrokenRule:
    promise = (rule.__doc__ or "").partition("\n")[0].rstrip(".")
    return BrokenRule(f"{rule.__name__}: {what}, but the rule is: {promise}")


def _played(algorithm: Algorithm[Any, Any], federation: Federation, *blocks: list[int], rounds: int = ROUNDS) -> Play:
    """With another object that has the same settings and no other state."""
    return Play(replace(algorithm), *(stack(federation, block) for block in blocks), rounds=rounds)


# ---- rounds by hand -------------------------------------------------------------------------------------------------


class Play:
    """The server, and some batches that together hold all clients."""

    def __init__(self, algorithm: Any, *batches: GraphBatch, rounds: int = 0) -> None:
        task = Task(batches[0].num_features, batches[0].num_classes)
        self.algorithm, self.batches = algorithm, batches
        self.ids = sorted(k for batch in batches for k in batch.client_ids)
        self.server = tree.cast(algorithm.init_server(task, 0), batches[0].dtype)
        self.clients = [algorithm.init_clients(task, batch, 0) for batch in batches]
        self.uplinks: list[Message] = []
        for index in range(rounds):
            self.round(index)

    @property
    def batch(self) -> GraphBatch:
        """The only batch."""
        (batch,) = self.batches
        return batch

    @property
    def client(self) -> Any:
        """The state of the only batch."""
        (client,) = self.clients
        return client

    @property
    def message(self) -> Message:
        """What the server would send to all clients now."""
        message: Message = self.algorithm.broadcast(self.server, self.ids)
        return message

    def round(self, index: int, ids: Sequence[int] | None = None) -> None:
        """One round of the batches whose clients are all among ``ids``, or of all; ``index`` is its seed."""
        taking_part = [p for p, b in enumerate(self.batches) if ids is None or set(b.client_ids) <= set(ids)]
        arrived = [k for p in taking_part for k in self.batches[p].client_ids]
        downlink = self.algorithm.broadcast(self.server, sorted(arrived))
        uplinks = []
        for position in taking_part:
            batch = self.batches[position]
            message = _rows(downlink, sorted(arrived), batch.client_ids)
            self.clients[position], uplink = self.algorithm.client_update(self.clients[position], message, batch, index)
            uplinks.append(uplink)
        joined = {name: torch.cat([uplink[name] for uplink in uplinks]) for name in uplinks[0]}
        self.uplinks.append(_rows(joined, arrived, sorted(arrived)))
        combined = combine(self.algorithm.uplink, self.uplinks[-1])
        self.server = self.algorithm.server_update(self.server, combined, sorted(arrived))

    def predict(self) -> dict[int, Tensor]:
        """Logits of each client, [N_k, C]."""
        found: dict[int, Tensor] = {}
        for client, batch in zip(self.clients, self.batches, strict=True):
            logits = self.algorithm.predict(client, _rows(self.message, self.ids, batch.client_ids), batch)
            found |= dict(zip(batch.client_ids, torch.split(logits, list(batch.rows.sizes)), strict=True))
        return found

    def logits(self) -> Tensor:
        """Logits of all clients in the order of their ids, [N, C]."""
        return torch.cat([logits for _, logits in sorted(self.predict().items())])

    def record(self) -> dict[str, Any]:
        """What the algorithm writes into the record of the last round."""
        record: dict[str, Any] = self.algorithm.diagnostics(self.server, self.uplinks[-1])
        return record

    def accuracy(self) -> float:
        """Share of the test nodes of the only batch that are right."""
        right = self.logits().argmax(dim=1) == self.batch.labels
        return right[self.batch.test].double().mean().item()


def same(a: Any, b: Any, tolerance: float = 0.0) -> bool:
    """Whether two states or messages hold the same tensors, up to ``tolerance``."""
    flat_a, flat_b = tree.flatten(a), tree.flatten(b)
    return flat_a.keys() == flat_b.keys() and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=tolerance)
        for a, b in ((flat_a[name], flat_b[name]) for name in flat_a)
    )


def _apart(a: Message, b: Message) -> str:
    """Where two messages differ most, in words; nothing if they have other keys or shapes."""
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        return ""
    far = {name: float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel()}
    if not far:
        return ""
    worst = max(far, key=lambda name: far[name])
    hint = "; a rounding error that Adam made a full step of? See fs.ops.gap" if far[worst] > 1e-6 else ""
    return f" (most in {worst!r}, by {far[worst]:.1e}, where {TOLERANCE:.0e} is allowed{hint})"


def finite(*states: Any) -> bool:
    """Whether every number of these states and messages is finite."""
    return all(torch.isfinite(value).all() for state in states for value in tree.flatten(state).values())


def _rows(message: Message, order: Sequence[int], wanted: Sequence[int]) -> Message:
    """The rows of some clients, from a message whose rows are in ``order``."""
    places = [list(order).index(k) for k in wanted]
    return {name: value[places] for name, value in message.items()}


# ---- small clients ---------------------------------------------------------------------------------------------------


def ragged_federation(*, sparse: bool = False, changed: int | None = None, seed: int = 0) -> Federation:
    """Three clients of 9, 14 and 6 nodes, 5 features, 3 classes; ``changed`` names one whose features differ."""
    import scipy.sparse as sp

    graphs = {}
    for k, num_nodes in enumerate((9, 14, 6)):
        draw = generator(7, "toy", k, int(k == changed))
        features = np.where(draw.random((num_nodes, 5)) < 0.4, draw.normal(size=(num_nodes, 5)), 0.0)
        shape = generator(7, "toy edges", k)
        edges = shape.integers(0, num_nodes, size=(2, 2 * num_nodes))
        labels = shape.integers(0, 3, size=num_nodes)
        graphs[f"client_{k:02d}"] = Graph.from_arrays(
            sp.csr_array(features) if sparse else features, edges, labels, num_classes=3
        )
    return Federation.from_graphs(graphs, name="toy", seed=seed)


def flip_labels(federation: Federation, names: Collection[str]) -> Federation:
    """The same federation, but these clients call class c by the name of class C - 1 - c."""
    for name in names:
        if name not in federation.roster.clients:
            raise unknown("client", name, federation.roster.clients)
    last = federation.task.num_classes - 1

    def flipped(client: Client) -> Client:
        labels = np.where(client.graph.labels < 0, client.graph.labels, last - client.graph.labels)
        return replace(client, graph=replace(client.graph, labels=labels))

    return replace(federation, clients=tuple(flipped(c) if c.name in names else c for c in federation.clients))


def awkward_federation() -> Federation:
    """An ordinary client, one without edges, one with a single class, one without labels."""
    draw = generator(11, "awkward")
    chain = np.stack([np.arange(7), np.arange(1, 8)])
    features = draw.normal(size=(4, 8, 5))
    labels = draw.integers(0, 3, size=8)
    graphs = {
        "ordinary": Graph.from_arrays(features[0], chain, labels, num_classes=3),
        "edgeless": Graph.from_arrays(features[1], np.zeros((2, 0)), labels, num_classes=3),
        "one-class": Graph.from_arrays(features[2], chain, np.ones(8), num_classes=3),
        "unlabelled": Graph.from_arrays(features[3], chain, None, num_classes=3),
    }
    return Federation.from_graphs(graphs, name="awkward")


def stack(federation: Federation, ids: list[int] | None = None, dtype: torch.dtype = torch.float64) -> GraphBatch:
    """The named clients (or all) as one batch, in double precision."""
    chosen = list(range(federation.num_clients)) if ids is None else ids
    return GraphBatch.from_clients([federation.clients[k] for k in chosen], chosen, dtype=dtype)
