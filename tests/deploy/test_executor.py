"""What leaves a site: answers that are in its ledger, and no path and no value of its data."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from full import no_file_beyond
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from sites import Sites
from toys import ragged_federation

from fedspray.algorithms.base import Algorithm
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.ledger import LEDGER, read_answers, verify
from fedspray.deploy.messages.wire import Ask, Reply, freeze, thaw
from fedspray.deploy.site.executor import SiteExecutor
from fedspray.deploy.site.kit import Site
from fedspray.engine.worker import Request
from fedspray.experiment import RunSettings
from fedspray.nn.tree import Message
from fedspray.runs import store
from fedspray.runs.settings import resolve

SITE = "client_01"


class Context(FLContext):  # type: ignore[misc]
    """As much of NVFlare as an executor needs."""

    def __init__(self, kit: Path) -> None:
        super().__init__()
        workspace = SimpleNamespace(get_root_dir=lambda: str(kit))
        self._engine = SimpleNamespace(get_workspace=lambda: workspace, fire_event=lambda *_: None)

    def get_engine(self, *_: Any) -> Any:
        return self._engine

    def get_identity_name(self, *_: Any, **__: Any) -> str:
        return SITE


class Job:
    """A job at one site."""

    def __init__(self, folder: Path, fingerprint: str | None = None, run: Any = "run", **values: Any) -> None:
        federation = ragged_federation()
        self.agreement = Agreement(federation.roster, RunSettings(algorithm="fedavg", values={"rounds": 3, **values}))
        Sites(folder, federation, self.agreement)
        self.kit = folder / SITE
        self._executor = SiteExecutor(run, fingerprint or self.agreement.fingerprint())
        self._context = Context(self.kit)
        self.seed, self.request = 0, Request(1, evaluate=False)
        self.message: Callable[[Message], Message] = lambda message: message

    def start(self) -> Job:
        self._executor.handle_event(EventType.START_RUN, self._context)
        return self

    def send(self, head: Any, arrays: Any) -> Reply:
        request = Shareable()
        request["head"], request["arrays"] = head, arrays
        result = self._executor.execute("round", request, self._context, Signal())
        return Reply.unpack(result["head"], thaw(result["arrays"], 1_000_000))

    def ask(self) -> Reply:
        """The first round's request, unless another is set."""
        algorithm: Algorithm[Any, Any] = resolve(self.agreement.settings).for_clients(self.agreement.roster)[1]
        server = algorithm.init_server(self.agreement.roster.task, 0)
        head, arrays = Ask(self.seed, self.request, self.message(algorithm.broadcast(server, [1]))).pack()
        return self.send(head, freeze(arrays))

    def end(self) -> None:
        self._executor.handle_event(EventType.END_RUN, self._context)


def test_an_answer_that_is_sent_again_is_in_the_ledger_again(tmp_path: Path) -> None:
    job = Job(tmp_path).start()
    first, second = job.ask(), job.ask()
    assert first.error is None
    assert replace(first, ledger=second.ledger).pack()[0] == second.pack()[0], "the previous answer, seconds included"
    assert verify(job.kit, [str(first.ledger)])["head"] == second.ledger
    lines = read_answers(job.kit)
    assert [(line["run"], line["seed"], line["round"]) for line in lines] == [("run", 0, 1)] * 2
    assert lines[0]["fields"] == lines[1]["fields"]
    job.end()


@pytest.mark.parametrize(("round_index", "allowed"), [(5, False), (6, True), (22, True)])
def test_with_patience_the_report_comes_no_earlier_than_a_run_can_end(
    tmp_path: Path, round_index: int, allowed: bool
) -> None:
    """Round 1 is the best; rounds 2 and 3 are not, as is known after round 4. Round 5 closes, and 6 is the report."""
    job = Job(tmp_path, rounds=20, patience=2).start()
    job.request = Request(round_index, train=False, evaluate=False, detail=True)
    said = job.ask().error
    assert said is not None  # nothing was trained, so that there is nothing to report
    assert ("the report is asked for" in said) is not allowed
    job.end()


def test_refusals_are_in_the_ledger(tmp_path: Path) -> None:
    job = Job(tmp_path, fingerprint="0" * 64).start()
    said = job.ask().error
    (line,) = read_answers(job.kit)
    assert (line["run"], line["seed"], line["round"]) == ("run", 0, 1)
    assert line["fields"]["error"] == len(f'"{said}"')
    job.end()
    assert job.ask().error is not None
    assert len(read_answers(job.kit)) == 2


def test_names_that_the_server_makes_up_do_not_spoil_the_ledger(tmp_path: Path) -> None:
    job = Job(tmp_path, run=["x"]).start()
    assert job.ask().error is not None
    assert [line["run"] for line in read_answers(job.kit)] == ["(not a name)"]
    job.end()


def test_a_line_that_was_cut_off_hides_no_other(tmp_path: Path) -> None:
    job = Job(tmp_path).start()
    job.ask()
    ledger = job.kit / LEDGER
    ledger.write_text(ledger.read_text() + '{"time": "2026')
    job.ask()
    assert [line["round"] for line in read_answers(job.kit)] == [1, 1]
    job.end()


@pytest.mark.parametrize(
    ("head", "arrays"),
    [(None, freeze({})), ({"seed": 0, "request": {}}, b"none"), ({"seed": 0, "request": {1: 2, "a": 3}}, freeze({}))],
    ids=["no head", "no arrays", "odd names"],
)
def test_what_cannot_be_read_is_answered_and_in_the_ledger(tmp_path: Path, head: Any, arrays: Any) -> None:
    job = Job(tmp_path).start()
    assert job.send(head, arrays).error is not None
    (line,) = read_answers(job.kit)
    assert (line["seed"], line["round"]) == (None, None)
    job.end()


# ---- a full disk --------------------------------------------------------------------------------


def test_a_full_disk_is_an_answer_and_what_is_asked_again_is_done(tmp_path: Path) -> None:
    """The memory of a round has some 20 kB, the ledger's lines less than one."""
    job = Job(tmp_path).start()
    with no_file_beyond(5000):
        said = job.ask()
    assert said.error == "DiskFull: the site's disk is full (its log names the file); make room there"
    assert not said.uplink
    assert not list((job.kit / "state" / "run" / "seed-0").glob("*"))
    calm = Job(tmp_path / "calm").start()
    again, expected = job.ask(), calm.ask()
    assert again.error is None
    assert all(torch.equal(again.uplink[name], expected.uplink[name]) for name in expected.uplink)
    assert [line["fields"].get("error") is None for line in read_answers(job.kit)] == [False, True]
    job.end()
    calm.end()


@pytest.mark.parametrize("ledger", ["/dev/full", "/nowhere/ledger"])
def test_where_the_ledger_cannot_be_written_nothing_leaves_but_that(tmp_path: Path, ledger: str) -> None:
    job = Job(tmp_path).start()
    (job.kit / LEDGER).symlink_to(ledger)
    for _ in range(2):
        said = job.ask()
        assert (said.error or "").endswith("the site's ledger cannot be written, so its answer is not sent")
        assert not said.uplink
        assert (said.seed, said.round_index) == (0, 1)
    (job.kit / LEDGER).unlink()
    assert job.ask().error is None
    assert ["error" in line["fields"] for line in read_answers(job.kit)] == [True, True, False]
    job.end()


# ---- what the coordinator is told of errors -----------------------------------------------------


def own_graph(job: Job, features: Any, names: list[str] | None = None) -> None:
    """The site's data are an npz file of a graph of three nodes, whatever is in it."""
    file = job.kit.parent / "secret.npz"
    more: dict[str, Any] = {} if names is None else {"node_names": np.array(names)}
    np.savez(file, x=np.array(features, dtype=np.float32), edge_index=[[0], [1]], y=[0, 1, 0], **more)
    replace(Site.open(job.kit), data=file).save()


def no_data(job: Job, _: pytest.MonkeyPatch) -> None:
    replace(Site.open(job.kit), data=job.kit.parent / "secret").save()


def no_graph(job: Job, _: pytest.MonkeyPatch) -> None:
    (job.kit.parent / "secret.npz").write_text("nothing")
    replace(Site.open(job.kit), data=job.kit.parent / "secret.npz").save()


def odd_value(job: Job, _: pytest.MonkeyPatch) -> None:
    own_graph(job, [[0.0] * 5, [-math.inf] * 5, [0.0] * 5])


def same_names(job: Job, _: pytest.MonkeyPatch) -> None:
    own_graph(job, [[0.0] * 5] * 3, ["secret", "secret", "other"])


def other_features(job: Job, _: pytest.MonkeyPatch) -> None:
    own_graph(job, [[0.0] * 77] * 3)


def library_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr("fedspray.engine.worker.Worker.handle", fail)


def no_kit(job: Job, _: pytest.MonkeyPatch) -> None:
    (job.kit / "local" / "site.json").unlink()


def odd_card(job: Job, _: pytest.MonkeyPatch) -> None:
    (job.kit / "local" / "site.json").write_text('{"name": "client_01", "threads": "secret"}')


def no_agreement(job: Job, _: pytest.MonkeyPatch) -> None:
    (job.kit / "local" / "agreement.json").unlink()


def no_room(job: Job, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(job.kit / "state")
    (job.kit / "state").write_text("a file where a folder should be")


@pytest.mark.parametrize(
    ("spoil", "kind", "sentence"),
    [
        (no_data, "MissingDataError", "does not exist"),
        (no_graph, "InputError", "secret.npz"),
        (odd_value, "InputError", "features of node 1 contain -inf"),
        (same_names, "InputError", "nodes 0 and 1"),
        (other_features, "SchemaError", "77 features per node"),
        (library_error, "KeyError", "'secret'"),
        (no_kit, "MissingDataError", "site.json is missing"),
        (odd_card, "InputError", "'secret'"),
        (no_agreement, "MissingDataError", "agreement.json is missing"),
        (no_room, "NotADirectoryError", "Not a directory"),
    ],
)
def test_of_most_errors_only_the_kind_leaves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Job, pytest.MonkeyPatch], None],
    kind: str,
    sentence: str,
) -> None:
    job = Job(tmp_path)
    spoil(job, monkeypatch)
    assert job.start().ask().error == f"{kind} (the site's log says more)"
    assert sentence in caplog.text, "the site's own log has it all"
    job.end()


def other_version(job: Job, _: pytest.MonkeyPatch) -> None:
    replace(job.agreement, version="0.0.1").save(job.kit / "local")


def other_sites(job: Job, _: pytest.MonkeyPatch) -> None:
    other = replace(job.agreement, roster=replace(job.agreement.roster, clients=("north", "south")))
    other.save(job.kit / "local")


def other_settings(job: Job, _: pytest.MonkeyPatch) -> None:
    replace(job.agreement, settings=RunSettings(algorithm="fedspray")).save(job.kit / "local")


def other_kit(job: Job, _: pytest.MonkeyPatch) -> None:
    replace(Site.open(job.kit), name="client_02").save()


def other_memory(job: Job, _: pytest.MonkeyPatch) -> None:
    folder = job.kit / "state" / "run" / "seed-0"
    folder.mkdir(parents=True)
    store.write_tensors(folder / "memory-0.safetensors", {"state.old": torch.zeros(1)}, {"round": 0})


def not_finite(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {"num_train": torch.tensor(nan)}
    monkeypatch.setattr("fedspray.algorithms.fedavg.FedAvg.client_update", lambda *_: (None, sent))


def later_round(job: Job, _: pytest.MonkeyPatch) -> None:
    job.request = Request(3, from_round=-1)


def forgotten_round(job: Job, _: pytest.MonkeyPatch) -> None:
    folder = job.kit / "state" / "run" / "seed-0"
    job.start()
    for round_index in (1, 2):
        job.request = Request(round_index)
        assert job.ask().error is None
    assert sorted(file.name for file in folder.iterdir()) == ["memory-1.safetensors", "memory-2.safetensors"]
    job.request = Request(3, from_round=0)


def asks(request: Request) -> Callable[[Job, pytest.MonkeyPatch], None]:
    def change(job: Job, _: pytest.MonkeyPatch) -> None:
        job.request = request

    return change


def more_arrays(job: Job, _: pytest.MonkeyPatch) -> None:
    job.message = lambda message: {**message, "more": torch.zeros(1, 10)}


def fewer_arrays(job: Job, _: pytest.MonkeyPatch) -> None:
    job.message = lambda message: {name: value for name, value in message.items() if name != "gnn.conv1.bias"}


def other_seed(job: Job, _: pytest.MonkeyPatch) -> None:
    job.seed = 7


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_version, "Refused: the agreement is for fedspray 0.0.1, but this is "),
        (other_sites, "Refused: 'client_01' is not in the agreement, whose sites are ('north', 'south')"),
        (other_settings, "Refused: the job is for agreement "),
        (other_kit, "Refused: this kit is for 'client_01', but its site.json says 'client_02'"),
        (other_seed, "Refused: seed 7 is not in the agreement, whose seeds are (0,)"),
        (other_memory, "OtherVersionError: the checkpoint of round 0 was written by another version of fedspray"),
        (not_finite, "NotFinite: num_train is not finite after local training"),
        (later_round, "Refused: round 3 is to go on from round -1, but it cannot"),
        (forgotten_round, "Forgotten: asked for round 0, but only rounds [1, 2] are kept"),
        (asks(Request(9)), "Refused: round 9 is asked for, but 3 rounds are agreed"),
        (asks(Request(0)), "Refused: round 0 is asked for, but 3 rounds are agreed"),
        (asks(Request(4)), "Refused: training is asked for in round 4, but 3 rounds are agreed"),
        (asks(Request(2, detail=True)), "Refused: the report is asked for in round 2, but it comes after the last one"),
        (asks(Request(5, train=False)), "Refused: the report is asked for in round 5, but it comes after"),
        (asks(Request(2, from_round=2)), "Refused: round 2 is to go on from round 2, but it cannot"),
        (more_arrays, "Refused: the message is not the algorithm's: 'more' is not part of it"),
        (fewer_arrays, "Refused: the message is not the algorithm's: gnn.conv1.bias is missing"),
    ],
)
def test_what_is_for_the_coordinator_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Job, pytest.MonkeyPatch], None], sentence: str
) -> None:
    job = Job(tmp_path)
    change(job, monkeypatch)
    said = job.start().ask().error
    assert said is not None
    assert said.startswith(sentence)
    job.end()
