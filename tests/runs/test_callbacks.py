"""What a run tells its listeners, how often settings become objects, and how far it is to an algorithm."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from toys import ragged_federation

import fedspray
from fedspray import backbones
from fedspray.algorithms.fedavg import FedAvg
from fedspray.cli.main import run_command
from fedspray.runs import conduct
from fedspray.runs.models import PersonalModel

SMALL: dict[str, Any] = {"rounds": 3, "hidden": 4, "progress": False}


class Diary(fedspray.Callback):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_exchange(self, request: Any, downlink: Any, answers: Any) -> None:
        self.events.append(("exchange", request.round_index, len(answers.uplink) > 0))

    def on_record(self, seed: int, record: dict[str, Any]) -> None:
        self.events.append(("record", seed, record["round"]))

    def on_round(self, seed: int, progress: Any) -> None:
        self.events.append(("round", seed, progress.round_index))

    def on_end(self, seed: int, result: Any) -> None:
        self.events.append(("end", seed, result.metrics["rounds"]))


def test_listeners_hear_everything_in_order() -> None:
    """A round's record is complete one exchange later; two exchanges without training follow the last round."""
    diary = Diary()
    fedspray.run(ragged_federation(), "fedavg", **{**SMALL, "rounds": 2}, callbacks=[diary])
    assert diary.events == [
        ("exchange", 1, True),
        ("round", 0, 1),
        ("exchange", 2, True),
        ("record", 0, 1),
        ("round", 0, 2),
        ("exchange", 3, False),
        ("record", 0, 2),
        ("round", 0, 2),
        ("end", 0, 2),
    ]


def test_who_stops_a_run_can_go_on(tmp_path: Path) -> None:
    class Impatient(fedspray.Callback):
        def on_round(self, seed: int, progress: Any) -> None:
            if progress.round_index == 2:
                raise KeyboardInterrupt

    federation = ragged_federation()
    with pytest.raises(KeyboardInterrupt):
        fedspray.run(federation, "fedavg", **SMALL, out=tmp_path / "run", callbacks=[Impatient()])
    whole = fedspray.run(federation, "fedavg", **SMALL)
    resumed = fedspray.resume(tmp_path / "run", federation, progress=False)
    assert resumed.seeds[0].metrics["models"] == whole.seeds[0].metrics["models"]


@contextmanager
def resolutions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The backbones that are made: one for every time that settings become objects."""
    made: list[str] = []
    make = backbones.make

    def counted(name: str, **settings: Any) -> Any:
        made.append(name)
        return make(name, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(backbones, "make", counted)
        yield made


def test_settings_become_objects_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = ragged_federation()
    with resolutions(monkeypatch) as made:
        fedspray.run(federation, "fedavg", **SMALL, seeds=2)
    assert made == ["gcn"]
    with resolutions(monkeypatch) as made:
        fedspray.run(federation, "local", **SMALL, backbone_of={"client_01": "mlp"}, out=tmp_path / "run")
    assert Counter(made) == {"gcn": 1, "mlp": 2}  # once before the folder is written, once to train
    with resolutions(monkeypatch) as made:
        code = run_command(["run", "--nodes", "200", "--rounds", "2", "--out", str(tmp_path / "command")])
    assert (code, made) == (0, ["gcn"])
    with resolutions(monkeypatch) as made:
        fedspray.compare(federation, ["local", "fedavg"], **SMALL, seeds=2, bootstrap=0)
    assert made == ["gcn"] * 2  # once for each row


def test_a_fresh_run_reads_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedspray import files

    read: list[str] = []
    monkeypatch.setattr(files, "read_json", lambda path: read.append(path.name))
    fedspray.run(ragged_federation(), "fedavg", **SMALL, out=tmp_path / "run")
    assert read == []


def test_models_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    known = PersonalModel.described

    def counted(self: PersonalModel, *given: Any) -> PersonalModel:
        made.append(self.client)
        return known(self, *given)

    monkeypatch.setattr(PersonalModel, "described", counted)
    result = fedspray.run(ragged_federation(), "fedavg", **SMALL)
    assert sorted(made) == sorted(result.models)


DEPTHS: dict[str, int] = {}


def note(method: str) -> None:
    """How many frames there are from `fedspray.run` to an algorithm's method, both counted."""
    files = [Path(frame.filename).name for frame in inspect.stack()[1:]]
    DEPTHS[method] = max(DEPTHS.get(method, 0), files.index("api.py") + 1)


@dataclass(frozen=True, kw_only=True)
class Watched(FedAvg):
    """FedAvg that looks at who called it."""

    def init_server(self, *given: Any) -> Any:
        note("init_server")
        return super().init_server(*given)

    def init_clients(self, *given: Any) -> Any:
        note("init_clients")
        return super().init_clients(*given)

    def broadcast(self, *given: Any) -> Any:
        note("broadcast")
        return super().broadcast(*given)

    def client_update(self, *given: Any) -> Any:
        note("client_update")
        return super().client_update(*given)

    def server_update(self, *given: Any) -> Any:
        note("server_update")
        return super().server_update(*given)

    def predict(self, *given: Any) -> Any:
        note("predict")
        return super().predict(*given)


def test_an_algorithm_is_eight_frames_away_at_most() -> None:
    fedspray.run(ragged_federation(), Watched, **SMALL)
    assert set(DEPTHS) == {
        *("init_server", "init_clients", "broadcast"),
        *("client_update", "server_update", "predict"),
    }
    assert max(DEPTHS.values()) <= 8, DEPTHS


def test_the_story_of_a_run_is_one_function() -> None:
    assert len(inspect.getsource(conduct.conduct).splitlines()) <= 60
