"""The functions of the Python API."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from toys import awkward_federation, ragged_federation

import fedspray as fs
from fedspray import progress
from fedspray.files import read_json
from fedspray.runs import run as runs
from fedspray.runs import store


@pytest.fixture(scope="module")
def federation() -> fs.Federation:
    return ragged_federation()


@pytest.fixture(scope="module")
def result(federation: fs.Federation) -> fs.RunResult:
    return fs.run(federation, "fedspray", rounds=4, seeds=[0, 3], hidden=8)


# ---- results ---------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_summary(result: fs.RunResult) -> None:
    summary = result.summary()
    for name in ("overall", "minority"):
        score = getattr(result, name)
        assert {"mean": score.mean, "std": score.std} == summary[name]
        assert dict(score.per_seed) == {row["seed"]: row[name] for row in summary["seeds"]}
        assert float(score) == score.mean
        assert f"{score:.1%}" == f"{score.mean:.1%}"
    with pytest.raises(fs.InputError, match=r"unknown metric 'f1'.*did you mean 'macro_f1'"):
        result.score("f1")


def test_a_metric_that_older_results_lack_is_not_available(result: fs.RunResult) -> None:
    old = [replace(each, metrics={k: v for k, v in each.metrics.items() if k != "auprc"}) for each in result.seeds]
    nothing = replace(result, seeds=old).score("auprc")
    assert (nothing.mean, f"{nothing:.1%}") == (None, "n/a")


def test_frames_hold_what_the_records_say(result: fs.RunResult) -> None:
    clients = result.per_client.set_index(["seed", "client"])
    curves = result.curves.set_index(["seed", "round"])
    assert len(clients) == 2 * 3
    assert len(curves) == 2 * 4
    for seed in result.seeds:
        for name, row in seed.metrics["clients"].items():
            assert clients.loc[(seed.seed, name), "nodes"] == row["nodes"]
            assert clients.loc[(seed.seed, name), "loss"] == row["loss"]
        for record in seed.records:
            assert curves.loc[(seed.seed, record["round"]), "val_overall"] == record["val"]["overall"]
    assert result.to_frame().equals(result.curves)


def test_the_picture_shows_mean_range_and_reported_rounds(result: fs.RunResult) -> None:
    (axes,) = result.plot().axes
    for line, name in zip(axes.get_lines(), ("overall", "minority"), strict=True):
        assert line.get_label() == name
        expected = result.curves.groupby("round")[f"test_{name}"].mean()
        assert np.allclose(line.get_ydata(), expected)
    dots = [c for c in axes.collections if hasattr(c, "get_sizes") and len(c.get_sizes())]
    best = [seed.metrics["best_round"] for seed in result.seeds]
    assert np.asarray(dots[0].get_offsets())[:, 0].tolist() == best
    assert result.plot("val")._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(fs.InputError, match="part is 'tests'"):
        result.plot("tests")


def test_a_picture_without_minority_nodes_is_drawn() -> None:
    alike = {
        name: fs.Graph.from_arrays(np.eye(9, 2), [[0, 1], [1, 2]], np.zeros(9), num_classes=2) for name in ("a", "b")
    }
    lonely = fs.run(fs.Federation.from_graphs(alike), "local", rounds=2, hidden=4)
    assert lonely.minority.mean is None
    assert "n/a" in lonely._repr_html_()
    lonely.plot().draw_without_rendering()


def files(folder: Path) -> dict[str, Any]:
    """What a run folder holds, without times and TensorBoard's events."""

    def timeless(content: Any) -> Any:
        if isinstance(content, dict):
            dropped = ("seal", "seconds", "cpu_seconds", "started")
            return {key: timeless(value) for key, value in content.items() if key not in dropped}
        return [timeless(value) for value in content] if isinstance(content, list) else content

    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix in (".json", ".jsonl"):
            found[name] = [timeless(json.loads(text)) for text in (
                file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
            )]  # fmt: skip
        elif file.suffix == ".safetensors":
            tensors, meta = store.read_tensors(file)
            found[name] = store.digest(tensors), meta
    return found


@pytest.mark.parametrize("settings", [{}, {"keep_split": True, "algorithm": "local", "dtype": "float64"}])
def test_a_saved_result_is_the_folder_of_the_run(
    federation: fs.Federation, tmp_path: Path, settings: dict[str, Any]
) -> None:
    kept = fs.run(federation, rounds=3, seeds=2, hidden=8, out=tmp_path / "out", **settings)
    saved = fs.run(federation, rounds=3, seeds=2, hidden=8, **settings).save(tmp_path / "saved")
    assert files(saved) == files(tmp_path / "out")
    assert files(kept.save(tmp_path / "copy")) == files(tmp_path / "out")
    loaded = fs.load(saved)
    assert isinstance(loaded, fs.RunResult)
    assert files(loaded.save(tmp_path / "again")) == files(saved)
    assert json.loads(json.dumps(loaded.summary())) == read_json(saved / "result.json")
    assert loaded.curves.drop(columns=["seconds", "cpu_seconds"]).equals(
        kept.curves.drop(columns=["seconds", "cpu_seconds"])
    )
    with pytest.raises(fs.InputError, match="exists already"):
        kept.save(tmp_path / "copy")


def test_a_model_predicts_whatever_a_graph_comes_in(
    federation: fs.Federation, result: fs.RunResult, tmp_path: Path
) -> None:
    client, model = federation.clients[0], result.models["client_00"]
    expected = model.predict(client.graph)
    client.graph.to_npz(tmp_path / "graph.npz")
    client.save(tmp_path / "client")
    for given in (client, client.graph.to_pyg(), tmp_path / "graph.npz", str(tmp_path / "client")):
        assert np.array_equal(model.predict(given), expected)
    from torch_geometric.data import Data

    for wrong in (client.graph.features, None, {"x": 1}, Data(), tmp_path / "nothing.npz"):
        with pytest.raises(fs.InputError):
            model.predict(wrong)


# ---- load, resume, report --------------------------------------------------------------------------------------------


def test_load_tells_what_it_is(federation: fs.Federation, result: fs.RunResult, tmp_path: Path) -> None:
    federation.save(tmp_path / "federation")
    result.models["client_01"].save(tmp_path / "model.safetensors")
    federation.clients[0].graph.to_npz(tmp_path / "graph.npz")
    fs.compare(federation, ["local", "fedavg"], rounds=1, hidden=4, bootstrap=0, out=tmp_path / "comparison")
    result.save(tmp_path / "run")
    kinds = {
        "federation": fs.Federation,
        "federation/clients/client_00": fs.Client,
        "model.safetensors": fs.PersonalModel,
        "graph.npz": fs.Graph,
        "comparison": fs.ComparisonResult,
        "run": fs.RunResult,
    }
    for name, kind in kinds.items():
        assert type(fs.load(tmp_path / name)) is kind
    (tmp_path / "graphs").mkdir()
    federation.clients[0].graph.to_npz(tmp_path / "graphs" / "north.npz")
    assert isinstance(fs.load(tmp_path / "graphs"), fs.Federation)
    compared = fs.load(tmp_path / "comparison")
    assert isinstance(compared, fs.ComparisonResult)
    again = fs.load(compared.save(tmp_path / "again"))
    assert isinstance(again, fs.ComparisonResult)
    assert again.table.equals(compared.table)
    assert again.summary["pages"] == []  # what pages are made of was not kept
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "notes.txt").touch()
    for wrong in ("run", "nowhere", "notes.txt", "federation/clients"):
        with pytest.raises(fs.InputError):
            fs.load(tmp_path / wrong)


def test_a_broken_run_is_resumed_from_python(
    federation: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = fs.run(federation, rounds=5, hidden=8, out=tmp_path / "whole")
    settings, _ = runs.load_settings(tmp_path / "whole")
    runs.begin(tmp_path / "broken", federation, settings, None)

    def crash(_seed: int, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        runs.carry_out(federation, settings, tmp_path / "broken", checkpoint_every=1, on_record=crash)
    with pytest.raises(fs.InputError, match="started from Python"):
        fs.resume(tmp_path / "broken")
    monkeypatch.setattr(progress, "is_interactive", lambda: True)
    resumed = fs.resume(tmp_path / "broken", federation)
    assert "5/5" in capsys.readouterr().err
    assert resumed.summary()["models"] == whole.summary()["models"]
    assert fs.resume(tmp_path / "broken").summary()["models"] == whole.summary()["models"]


def test_a_report_takes_results_folders_and_comparisons(federation: fs.Federation, tmp_path: Path) -> None:
    local = fs.run(federation, "local", rounds=2, hidden=8)
    fedavg = fs.run(federation, "fedavg", rounds=2, hidden=8, out=tmp_path / "fedavg")
    mixed = fs.report([local, fedavg], tmp_path / "mixed.html")
    again = fs.report([local.save(tmp_path / "local"), str(tmp_path / "fedavg")], tmp_path / "folders.html")
    assert (mixed["methods"], mixed["reference"], mixed["finding"]) == (again["methods"], "local", again["finding"])
    comparison = fs.compare(federation, ["local", "fedavg"], rounds=2, hidden=8, bootstrap=0)
    assert fs.report(comparison, tmp_path / "compared.html")["finding"] == mixed["finding"]
    assert fs.report(comparison, tmp_path / "compared.html", reference="fedavg")["reference"] == "fedavg"
    with pytest.raises(fs.InputError, match="unknown reference 'nonsense'"):
        fs.report(comparison, tmp_path / "compared.html", reference="nonsense")
    assert fs.report(local, tmp_path / "one.html")["methods"] == ["local"]
    assert all((tmp_path / f"{name}.html").stat().st_size > 10**6 for name in ("mixed", "folders", "compared", "one"))
    for wrong in (ComparisonWithoutPages, [3]):
        with pytest.raises(fs.InputError):
            fs.report(wrong, tmp_path / "never.html")  # type: ignore[arg-type]


ComparisonWithoutPages = fs.ComparisonResult({"rows": [], "seeds": [], "failures": []})


def test_one_link_is_a_list_of_one_and_a_device_may_be_torchs(federation: fs.Federation) -> None:
    given: dict[str, Any] = {"rounds": 1, "hidden": 4}
    listed = fs.run(federation, "fedavg", link=["noise sigma=0.1"], **given)
    alone = fs.run(federation, "fedavg", link="noise sigma=0.1", device=torch.device("cpu"), **given)
    assert alone.summary()["models"] == listed.summary()["models"]
    compared = fs.compare(federation, ["fedavg"], link="noise sigma=0.1", bootstrap=0, **given)
    assert compared.table["overall"].tolist() == [alone.overall.mean]
    with pytest.raises(fs.InputError, match="link is 5"):
        fs.run(federation, "fedavg", link=5, **given)


# ---- compare ---------------------------------------------------------------------------------------------------------


def test_a_comparison_holds_the_figures_of_single_runs(federation: fs.Federation, tmp_path: Path) -> None:
    methods: list[Any] = [fs.Local(), fs.FedSpray(distill_weight=2.0), fs.FedSpray(distill_weight=3.0)]
    compared = fs.compare(federation, methods, rounds=2, seeds=2, hidden=8, bootstrap=0, out=tmp_path)
    table = compared.table.set_index("method")
    assert list(table.index) == ["local", "fedspray distill_weight=2.0", "fedspray distill_weight=3.0"]
    for name, method in zip(table.index, methods, strict=True):
        alone = fs.run(federation, method, rounds=2, seeds=2, hidden=8)
        assert table.loc[name, "overall"] == alone.overall.mean
        rows = compared.per_seed[compared.per_seed["method"] == name]
        assert dict(zip(rows["seed"], rows["minority"], strict=True)) == dict(alone.minority.per_seed)
    assert compared.summary["reference"] == "local"
    assert len(compared.tests) == 2 * 2
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").glob("*.json")}
    more = fs.compare(federation, {"alone": "local", "all": fs.FedAvg}, rounds=2, seeds=2, hidden=8, out=tmp_path)
    assert more.table["method"].tolist() == ["alone", "all"]
    after = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").glob("*.json")}
    assert before.items() < after.items()  # only FedAvg's cells are new
    assert len(after) == len(before) + 2
    assert json.loads((tmp_path / "comparison.json").read_text())["rows"] == more.summary["rows"]


def test_a_data_set_is_a_name_an_object_or_a_class() -> None:
    given: dict[str, Any] = {"rounds": 1, "hidden": 4, "bootstrap": 0}
    small = fs.Banks(num_nodes=200)
    built = fs.build_federation("banks", nodes=200)
    for other in (fs.build_federation(small), fs.build_federation(fs.Banks, nodes=200)):
        assert (other.fingerprint(), other.settings) == (built.fingerprint(), built.settings)
    cells = [fs.compare(data, ["local"], **given).summary["rows"][0]["cells"] for data in (built, small, [small])]
    assert cells[0] == cells[1] == cells[2]
    with pytest.raises(fs.InputError, match="all its settings"):
        fs.build_federation(small, nodes=400)
    with pytest.raises(fs.InputError, match="backbones="):
        fs.compare(small, ["local"], backbone="gcn", **given)


def test_a_comparison_is_drawn_and_its_folder_has_its_page(federation: fs.Federation, tmp_path: Path) -> None:
    compared = fs.compare(federation, ["local", "fedavg"], rounds=1, seeds=2, hidden=4, bootstrap=0, out=tmp_path / "c")
    (axes,) = compared.plot().axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["local", "fedavg"]
    drawn = [bars.lines[0].get_ydata() for bars in axes.containers]  # type: ignore[attr-defined]
    assert np.array_equal(drawn, compared.table[["overall", "minority"]].to_numpy().T)
    for there in (tmp_path / "c", fs.load(tmp_path / "c")):
        with pytest.raises(fs.InputError, match="pages already"):
            fs.report(there, tmp_path / "page.html")  # type: ignore[arg-type]


def test_a_federation_is_a_mapping_of_names_to_graphs(federation: fs.Federation) -> None:
    assert len(federation) == 3
    assert list(federation) == [client.name for client in federation.clients]
    assert all(federation[client.name] is client.graph for client in federation.clients)
    for wrong in ("client_0", 0):
        with pytest.raises(fs.InputError, match=f"unknown client '{wrong}'"):
            federation[wrong]  # type: ignore[index]
    frame = fs.inspect(federation).to_frame()
    assert frame["name"].tolist() == list(federation)
    assert frame["label_count_0"].tolist() == [client.label_counts[0] for client in fs.inspect(federation).clients]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"preset": "paper"}, "unknown preset of fedavg 'paper': there are none$"),
        ({"heads": 3}, "unknown setting 'heads': choose one of [^;]*$"),
        ({"split": "40/30/30"}, "unknown setting 'split': choose one of [^;]*$"),
        ({"hiden": 3}, "did you mean 'hidden'"),
    ],
)
def test_only_near_names_are_suggested(federation: fs.Federation, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(fs.InputError, match=sentence):
        fs.run(federation, "fedavg", rounds=1, **given)


def test_worker_processes_find_a_federation_of_python() -> None:
    given: dict[str, Any] = {"rounds": 2, "seeds": 2, "hidden": 4, "bootstrap": 0}
    here, elsewhere = (fs.compare(ragged_federation(), ["local", fs.FedAvg()], jobs=jobs, **given) for jobs in (1, 2))
    assert elsewhere.per_seed.equals(here.per_seed)


def test_backbones_replace_those_of_the_methods(federation: fs.Federation, tmp_path: Path) -> None:
    given: dict[str, Any] = {"rounds": 1, "bootstrap": 0}
    own = fs.compare(federation, [fs.Local(backbone=fs.SAGE(hidden=4)), fs.FedAvg(backbone=fs.SAGE(hidden=6))], **given)
    assert [row["settings"]["hidden"] for row in own.summary["rows"]] == [4, 6]
    both = fs.compare(federation, [fs.Local(backbone=fs.SAGE(hidden=4))], backbones=[fs.MLP(hidden=5), "sgc"], **given)
    assert [(row["backbone"], row["settings"]["hidden"]) for row in both.summary["rows"]] == [("mlp", 5), ("sgc", 64)]
    for wrong in (
        {"methods": [fs.Local(backbone=fs.SAGE()), "fedavg"]},
        {"methods": "fedavg"},
        {"methods": [fs.Local(), fs.Local()]},
        {"methods": ["local"], "backbones": [fs.GCN(hidden=4), fs.GCN(hidden=5)]},
        {"methods": ["local"], "seeds": 0},
        {"methods": ["local"], "reference": "fedavg"},
        {"methods": ["local"], "hiden": 3},
    ):
        with pytest.raises(fs.InputError):
            fs.compare(federation, **{"rounds": 1, "out": tmp_path / "never", **wrong})  # type: ignore[arg-type]
        assert not (tmp_path / "never").exists()


def test_several_federations_and_splits_of_their_own() -> None:
    given: dict[str, Any] = {"rounds": 1, "hidden": 4, "bootstrap": 0}
    both = fs.compare([ragged_federation(), awkward_federation()], ["local"], **given)
    assert both.table["dataset"].tolist() == ["toy", "awkward"]
    of_the_run: dict[str, Any] = {"keep_split": True, "dtype": "float64"}
    kept = fs.compare(ragged_federation(seed=7), ["local"], **of_the_run, **given)
    alone = fs.run(ragged_federation(seed=7), "local", rounds=1, hidden=4, **of_the_run)
    assert kept.table["overall"].tolist() == [alone.overall.mean]


def test_a_failed_cell_is_told_and_the_others_are_there(
    federation: fs.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(fs.FedAvg, "server_update", fail)
    with pytest.warns(UserWarning, match="1 of 2 cells failed.*0: RuntimeError: no such"):
        compared = fs.compare(federation, ["local", "fedavg"], rounds=1, hidden=4, bootstrap=0)
    assert [failure["method"] for failure in compared.failures] == ["fedavg"]
    assert compared.table["overall"].notna().tolist() == [True, False]


# ---- progress --------------------------------------------------------------------------------------------------------

CODE = """
import fedspray as fs
from fedspray.testing import ragged_federation
federation = ragged_federation()
fs.run(federation, "local", rounds=3, seeds=2, hidden=4{more})
fs.compare(federation, ["local", "fedavg"], rounds=2, hidden=4, bootstrap=0{more})
"""


def on_a_terminal(code: str) -> str:
    """What a real process shows on a terminal."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=its, stderr=its, close_fds=True)
    os.close(its)
    shown = b""
    while True:
        try:
            piece = os.read(mine, 4096)
        except OSError:  # Linux: the other end was closed
            break
        if not piece:
            break
        shown += piece
    os.close(mine)
    assert process.wait() == 0, shown.decode()
    return shown.decode()


@pytest.mark.slow
def test_a_terminal_shows_a_bar_unless_told_not_to() -> None:
    shown, _, quiet = on_a_terminal(
        f"{CODE.format(more='')}print('quiet'){CODE.format(more=', progress=False')}"
    ).partition("quiet")
    assert "local: 100%" in shown
    assert "6/6" in shown  # three rounds of two seeds
    assert "comparing: 100%" in shown
    assert quiet.strip() == ""


def test_nobody_watching_nothing_shown(capfd: pytest.CaptureFixture[str]) -> None:
    exec(CODE.format(more=""), {})
    assert capfd.readouterr() == ("", "")


def test_records_reach_the_bar_and_the_caller(
    federation: fs.Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "is_interactive", lambda: True)
    heard: list[int] = []
    fs.run(federation, "local", rounds=3, hidden=4, on_record=lambda seed, record: heard.append(record["round"]))
    assert heard == [1, 2, 3]
    assert "3/3" in capsys.readouterr().err


# ---- arguments of a wrong type ---------------------------------------------------------------------------------------

untyped: Any = fs
GRAPH = ragged_federation().clients[0].graph
FRAME = pd.DataFrame({"secret": [4711]})


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("federation", lambda f: untyped.run("banks")),
        ("callbacks", lambda f: untyped.run(f, callbacks=fs.Callback())),
        ("a callback", lambda f: untyped.run(f, callbacks=[fs.Callback])),
        ("a callback", lambda f: untyped.run(f, callbacks=[print])),
        ("on_record", lambda f: untyped.run(f, on_record=5)),
        ("backbone_of", lambda f: untyped.run(f, "local", backbone_of="gcn")),
        ("out", lambda f: untyped.run(f, out=5)),
        ("out", lambda f: untyped.compare(f, ["local"], out=5)),
        ("jobs", lambda f: untyped.compare(f, ["local"], jobs=0)),
        ("jobs", lambda f: untyped.compare(f, ["local"], jobs="2")),
        ("threads", lambda f: untyped.compare(f, ["local"], threads=1.5)),
        ("bootstrap", lambda f: untyped.compare(f, ["local"], bootstrap=-1)),
        ("path", lambda f: untyped.load(5)),
        ("folder", lambda f: untyped.resume(None)),
        ("federation", lambda f: untyped.inspect(GRAPH)),
        ("out", lambda f: untyped.report("page.html", f)),
        ("results", lambda f: untyped.report(5, "page.html")),
        (f"{__file__}/settings.json", lambda f: untyped.report(__file__, "page.html")),
        ("graphs", lambda f: untyped.Federation.from_graphs(GRAPH)),
        ("the graph of client a", lambda f: untyped.Federation.from_graphs({"a": FRAME})),
        ("a client's name", lambda f: untyped.Federation.from_graphs({1: GRAPH})),
        ("graph", lambda f: untyped.Federation.from_graph(FRAME, [[0]])),
        ("parts", lambda f: untyped.Federation.from_graph(GRAPH, 5)),
        ("the nodes of client client_00", lambda f: untyped.Federation.from_graph(GRAPH, np.zeros(10, int))),
        ("data", lambda f: untyped.Graph.from_pyg([GRAPH.to_pyg()])),
        ("graph", lambda f: untyped.Graph.from_networkx(GRAPH.to_pyg())),
        ("schema", lambda f: untyped.import_tables("schema.toml")),
        ("nodes", lambda f: untyped.import_tables(fs.Schema(), nodes=FRAME)),
        ("hidden is '64', but must be a whole number,", lambda f: untyped.GCN(hidden="64")),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(
    name: str, call: Callable[[Any], Any], federation: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.InputError) as refusal:
        call(federation)
    assert str(refusal.value).startswith(f"{name} ")
    assert "4711" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_data_of_pytorch_geometric_are_graphs(federation: fs.Federation) -> None:
    graphs = {client.name: client.graph for client in federation.clients}
    given = {name: graph.to_pyg() for name, graph in graphs.items()}
    assert fs.Federation.from_graphs(given).fingerprint() == fs.Federation.from_graphs(graphs).fingerprint()
    halves = np.array_split(np.arange(GRAPH.num_nodes), 2)
    whole, pyg = (fs.Federation.from_graph(graph, halves) for graph in (GRAPH, GRAPH.to_pyg()))
    assert pyg.fingerprint() == whole.fingerprint()
