"""The live page: what it is made of, who may see it, and what a browser makes of it."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import chromium, needs_chromium, resize, wait
from toys import ragged_federation

import fedspray
from fedspray.data.federation import Task
from fedspray.deploy import ledger
from fedspray.deploy.agreement import Agreement
from fedspray.deploy.site import consent
from fedspray.deploy.site.policy import Offer
from fedspray.errors import InputError
from fedspray.experiment import RunSettings
from fedspray.report.live import kind_of, state_of
from fedspray.report.serving import Watch, metrics

live = sys.modules["fedspray.report.live"]  # `fedspray.report` is also the name of a function
TOKEN = "a token of some length"
NAMES = ("client_00", "client_01", "client_02")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live") / "run"
    fedspray.run(ragged_federation(), "fedavg", rounds=4, seeds=2, out=folder)
    return folder


@pytest.fixture
def running(finished: Path, tmp_path: Path) -> Path:
    """The same run before its last seed was done."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for file in (folder / "result.json", folder / "seed-1" / "result.json"):
        file.unlink()
    lines = (folder / "seed-1" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "seed-1" / "rounds.jsonl").write_text("".join(lines[:3]))
    return folder


@pytest.fixture
def project(running: Path, tmp_path: Path) -> Path:
    """A project whose run goes on: two sites are connected, one was lost."""
    folder = tmp_path / "project"
    server = folder / "kits" / "server"
    (server / "startup").mkdir(parents=True)
    (server / "startup" / "fed_server.json").write_text("{}")
    (server / "local").mkdir()
    (folder / "project.json").write_text("{}")
    run = folder / "runs" / "first"
    shutil.copytree(running, run)
    Agreement.between("toy", [*NAMES, "late"], Task(5, 3), RunSettings(algorithm="fedavg")).save(run)
    sites = {name: {"failed": None, "bytes_down": 10, "bytes_up": 20, "seconds": 0.5} for name in NAMES}
    exchanges = [{"round": r, "time": 1000.0 + 2 * r, "seconds": 1.0, "sites": sites} for r in (1, 2, 3)]
    (run / "seed-1" / "exchanges.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in exchanges))
    (run / "progress.json").write_text(json.dumps({"state": "running", "round": 3, "waiting_for": ["client_02"]}))
    for event, sender in ((ledger.STARTED, "server"), *((ledger.CONNECTED, name) for name in NAMES)):
        ledger.write_event(server, event, sender, "")
    ledger.write_event(server, ledger.LOST, "client_01", "it hung up")
    return folder


def test_a_run_that_goes_on(running: Path) -> None:
    state = state_of(running)
    assert (state["kind"], state["state"], state["done"]) == ("run", "running", False)
    assert (state["seed"], state["round"], state["rounds"]) == (1, 3, 4)
    records = [json.loads(line) for line in (running / "seed-1" / "rounds.jsonl").read_text().splitlines()]
    assert state["curve"]["minority"] == [row["val"]["minority"] for row in records]
    assert state["accuracy"] == {name: records[-1]["val"][name] for name in ("overall", "minority")}
    assert [row["name"] for row in state["clients"]] == list(NAMES)
    assert [row["overall"] for row in state["clients"]] == [records[-1]["clients"][k]["val"]["overall"] for k in "012"]
    assert state["seconds_left"] == pytest.approx(sum(row["seconds"] for row in records) / 3)
    first = [json.loads(line) for line in (running / "seed-0" / "rounds.jsonl").read_text().splitlines()]
    assert state["bytes"]["up"] == sum(row["bytes_up"] for row in [*first, *records])
    assert sum(row["bytes_last"] for row in state["clients"]) == records[-1]["bytes_up"]
    assert [row["what"] for row in state["left"]][:2] == ["gnn.*", "num_train"]


def test_a_run_between_organisations(project: Path) -> None:
    state = state_of(project / "runs" / "first")
    sites = {row["name"]: row for row in state["clients"]}
    assert {name: row["state"] for name, row in sites.items()} == {
        "client_00": "connected",
        "client_01": "away",
        "client_02": "waited for",
        "late": "never seen",
    }
    assert sites["client_01"]["since"] == ledger.read_events(project / "kits" / "server")[-1]["time"]
    assert (sites["client_00"]["last_answer"], sites["client_00"]["bytes_up"]) == (1006.0, 60)
    assert state["seconds_left"] == 2.0  # one round of two seconds
    assert [sites[name]["bytes_last"] for name in (*NAMES, "late")] == [20, 20, 20, 0]
    agreed = {row["field"]: row for row in Agreement.load(project / "runs" / "first").entries()}
    assert {"gnn.*", "num_train", "seconds", "ledger"} < {row["what"] for row in state["left"]} < set(agreed)
    for row in state["left"]:
        assert row["reveals"]
        assert row.items() <= {**agreed[row["what"]], "what": row["what"]}.items()
    record = json.loads((project / "runs" / "first" / "seed-1" / "rounds.jsonl").read_text().splitlines()[-1])
    assert state["left_bytes"] == {way: record[f"bytes_{way}"] for way in ("up", "down", "evaluation")}


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        kind_of(tmp_path)


def test_a_study(running: Path, tmp_path: Path) -> None:
    cells = tmp_path / "cells"
    shutil.copytree(running, cells / "runs" / "one")
    metrics = {"rounds": 4, "val": {"overall": 0.5, "minority": 0.25}}
    cell = {"metrics": metrics, "curves": {}, "validation_only": False, "seed": 0, "settings": {}, "federation": {}}
    cell |= dict.fromkeys(("key", "dataset", "algorithm", "backbone", "graphs", "finished"), "x") | {"versions": {}}
    (cells / "two.json").write_text(json.dumps(cell))
    state = state_of(cells)
    assert [(row["name"], row["state"], row["round"]) for row in state["cells"]] == [
        ("one", "running", 4),
        ("two", "done", 4),
    ]


def test_who_is_waited_for_while_the_server_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_days_left", lambda kits: {"server": 12})
    shown = {"state": "asking", "round": 0, "waiting_for": ["client_02"], "waiting_since": 900.5}
    (project / "runs" / "first" / "progress.json").write_text(json.dumps(shown))
    for pid, waiting in ((7, ["client_02"]), (None, [])):
        monkeypatch.setattr("fedspray.deploy.locks.holder", lambda lock, pid=pid: pid)
        state = state_of(project)
        assert (state["state"], state["waiting_for"], state["waiting_since"]) == ("asking", waiting, 900.5)


def test_a_site_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_days_left", lambda kits: {})
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "site.json").write_text('{"name": "north"}')
    (tmp_path / "startup").mkdir()
    servers = [{"service": {"target": "localhost:8002"}}]
    (tmp_path / "startup" / "fed_client.json").write_text(json.dumps({"servers": servers}))
    for name in ("first", "second"):
        consent.ask(tmp_path, Offer(name, "f" * 64, "fedavg", 10, 1000, None))
    consent.answer(tmp_path, "first", True)
    state = state_of(tmp_path)
    assert (state["kind"], state["state"], state["asking"]) == ("site", "stopped", ["second"])


def test_a_project_whose_run_is_finished(project: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_days_left", lambda kits: {"server": 12})
    run = project / "runs" / "first"
    for name in ("result.json", "seed-1/result.json", "seed-1/rounds.jsonl"):
        shutil.copy(finished / name, run / name)
    (run / "progress.json").write_text(json.dumps({"state": "done", "round": 6}))
    with (run / "seed-1" / "exchanges.jsonl").open("a") as file:
        for round_index, size in ((4, 30), (6, 7)):  # the last round, and the report
            sites = {"client_00": {"failed": None, "bytes_up": size}}
            file.write(json.dumps({"round": round_index, "time": 1010.0 + round_index, "sites": sites}) + "\n")
    state, seeds = state_of(project), json.loads((finished / "result.json").read_text())["seeds"]
    assert (state["state"], state["round"], state["done"]) == ("done", 4, False)
    assert [(row["state"], row["bytes_last"]) for row in state["clients"][:2]] == [("not connected", 30), ("away", 0)]
    assert state["result"]["overall"] == pytest.approx((seeds[0]["overall"] + seeds[1]["overall"]) / 2)
    with Watch(project, ("127.0.0.1", 0), TOKEN) as server:
        assert "FedSpray report</title>" in server.answer("/report", TOKEN)[2]


@pytest.fixture
def served(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(live, "_days_left", lambda kits: {"server": 12})
    with Watch(project, ("127.0.0.1", 0), TOKEN) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(server: Watch, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_only_who_knows_the_token_may_look(served: Watch) -> None:
    known = TOKEN.replace(" ", "%20")
    for path in ("/", "/state.json", "/metrics"):
        assert get(served, path)[0] == 403
        assert get(served, f"{path}?token=other")[0] == 403
        assert get(served, f"{path}?token={known}")[0] == 200
        assert get(served, path, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert get(served, f"/secrets?token={known}")[0] == 404
    assert get(served, "/healthz") == (503, "running\n")  # the run goes on, but the server's process is gone


def test_what_prometheus_reads(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_days_left", lambda kits: {"server": 12})
    monkeypatch.setattr("fedspray.deploy.locks.holder", lambda lock: 7)
    state = state_of(project)
    lines = metrics(state).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["fedspray_up"] == "1"
    assert (values["fedspray_round"], values["fedspray_rounds"]) == ("3", "4")
    assert values['fedspray_site_connected{site="client_00"}'] == "1"
    assert values['fedspray_site_connected{site="client_01"}'] == "0"
    assert values['fedspray_certificate_days_left{kit="server"}'] == "12"
    age = float(values['fedspray_site_answer_age_seconds{site="client_00"}'])
    assert age == pytest.approx(state["now"] - 1006.0, rel=1e-4)
    assert 'fedspray_site_answer_age_seconds{site="late"}' not in values
    monkeypatch.setattr("fedspray.deploy.locks.holder", lambda lock: None)
    lines = metrics(state_of(project)).splitlines()
    assert {'fedspray_site_connected{site="client_00"} 0', "fedspray_up 0"} < set(lines)  # the server's process is gone


def test_the_page_of_a_finished_run_is_its_report(finished: Path) -> None:
    with Watch(finished, ("127.0.0.1", 0), TOKEN) as server:
        _, kind, page = server.answer("/", TOKEN)
    assert kind == "text/html"
    assert "FedSpray report</title>" in page


@pytest.mark.slow
@needs_chromium
def test_in_a_browser(served: Watch, project: Path, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as browser:
        resize(browser, 390)
        browser.get(served.url.replace(" ", "%20"))
        wait(browser, "document.documentElement.dataset.ready", "charts")
        wait(browser, "document.querySelectorAll('#curve .scatterlayer .trace').length", 2)
        summary = "document.getElementById('summary').textContent"
        assert "client_01 is away" in browser.execute_script(f"return {summary}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        ledger.write_event(project / "kits" / "server", ledger.LOST, "client_00", "it hung up")
        wait(browser, f"{summary}.includes('client_00 is away')", seconds=10)
        assert "client_00" in browser.execute_script("return document.querySelector('#event-list li b').textContent")
        assert browser.get_log("browser") == []
