"""What a site, the server and a run write down."""

from __future__ import annotations

from pathlib import Path

from fedspray.deploy import ledger


def kit_of_server(folder: Path) -> Path:
    (folder / "startup").mkdir(parents=True)
    (folder / "startup" / "fed_server.json").write_text("{}")
    return folder


def test_where_events_are(tmp_path: Path) -> None:
    server, site, run = kit_of_server(tmp_path / "server"), tmp_path / "site", tmp_path / "run"
    for folder in (site, run):
        folder.mkdir()
    (run / "settings.json").write_text("{}")
    for folder in (server, site, run):
        ledger.write_event(folder, "refused", "some\x1bbody", "something")
        (event,) = ledger.read_events(folder)
        assert (event["event"], event["what"]) == ("refused", "something")
        assert "\x1b" not in event["sender"]
    assert all(file.exists() for file in (server / "events.jsonl", run / "events.jsonl", site / "ledger.jsonl"))


def test_a_disk_that_takes_nothing_stops_nothing(tmp_path: Path) -> None:
    ledger.write_event(tmp_path / "nowhere", "refused", "somebody", "something")
    assert ledger.read_events(tmp_path / "nowhere") == []


def test_who_is_connected_and_since_when(tmp_path: Path) -> None:
    server = kit_of_server(tmp_path / "server")
    told = [
        (ledger.STARTED, "server"),
        (ledger.CONNECTED, "north"),
        (ledger.CONNECTED, "south"),
        (ledger.LOST, "south"),
        ("refused", "north"),
    ]
    for event, sender in told:
        ledger.write_event(server, event, sender, "")
    times = [event["time"] for event in ledger.read_events(server)]
    assert ledger.presence(server) == {"north": (True, times[1]), "south": (False, times[3])}
    ledger.write_event(server, ledger.STARTED, "server", "")
    times = [event["time"] for event in ledger.read_events(server)]
    assert ledger.presence(server) == {"north": (False, times[5]), "south": (False, times[3])}
