from __future__ import annotations

import importlib.util
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspray import Graph
from fedspray.cli import organisations
from fedspray.cli.main import run_command

INIT = ["--site", "north", "--site", "south", "--host", "localhost", "--features", "5", "--classes", "2"]


def init(project: Path, *more: str) -> Path:
    """A project whose keys are made here, and the kit of its site north."""
    assert run_command(["deploy", "init", str(project), *INIT, "--make-keys", *more]) == 0
    kit = project.with_name("kit")
    assert run_command(["site", "unpack", str(kit), str(project / "zips" / "north.zip")]) == 0
    return kit


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    assert run_command([str(argument) for argument in arguments]) == code
    return " ".join(capsys.readouterr().err.split())


def test_a_site_compares_the_fingerprint_that_init_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nvflare")
    kit = init(tmp_path / "fraud")
    said = " ".join(capsys.readouterr().err.split())
    (told,) = re.findall(r"authority and agreement: ((?:[0-9a-f]{4} ?){8})", said)
    graph = Graph.from_arrays(np.eye(5, dtype=np.float32), np.array([[0, 1], [1, 2]]), np.array([0, 1, 0, 1, 0]))
    graph.to_npz(tmp_path / "graph.npz")
    check = ["site", "check", str(kit), "--data", str(tmp_path / "graph.npz"), "--json", "--fingerprint"]
    other = f"{told[:-2]}{'0' if told.strip()[-1] != '0' else '1'}"
    for wrong in (other, told[:9], ""):
        assert "it is of another federation or agreement" in complaint(capsys, *check, wrong)
    assert run_command([*check, told.upper()]) == 0
    found = json.loads(capsys.readouterr().out)["fingerprint"]
    assert found.startswith(told.replace(" ", ""))


def test_services_of_another_kind_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "site", "service", tmp_path, "--out", tmp_path / "units", "--kind", "podman")
    assert "--kind is 'podman', but must be systemd or compose or kubernetes" in said
    assert not (tmp_path / "units").exists()


@pytest.mark.parametrize(
    "command", [["deploy", "start", "x"], ["site", "check", "x"], ["deploy", "local", "--out", "x"]]
)
def test_without_the_extra(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(organisations, "find_spec", lambda name: None if name == "nvflare" else found(name))
    assert "nvflare is not installed: a site or a server installs requirements-site.txt" in complaint(capsys, *command)


def test_nothing_heavy_is_imported_until_it_is_used() -> None:
    code = "import sys; from fedspray.cli.main import run_command; run_command(['deploy', '--help']); "
    code += "print([name for name in ('nvflare', 'torch', 'psutil', 'cryptography') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


class TestWithTheExtra:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("nvflare")

    def test_what_is_missing_is_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for flag in ("--site", "--host", "--features", "--classes"):
            kept = [INIT[i : i + 2] for i in range(0, len(INIT), 2) if INIT[i] != flag]
            said = complaint(capsys, "deploy", "init", tmp_path / "new", *(part for pair in kept for part in pair))
            assert f"{flag} is missing" in said
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(
        ("more", "sentence"),
        [
            (["--algorithm", "fedspry"], "unknown algorithm 'fedspry'"),
            (["--algorithm", "mypkg.mod:Own"], "code from outside"),
            (["--rounds", "0"], "rounds is 0"),
            (["--grace", "-1"], "grace time is -1.0"),
            (["--set", "colour=red"], "unknown setting 'colour'"),
            (["--site", "no/where"], "not a site"),
            (["--csr", "nowhere"], "file SITE.csr"),
            (["--grace", "nan"], "time is nan"),
            (["--grace", "inf"], "time is inf"),
            (["--site", "north"], "called 'north'"),
            (["--site", "Server"], "called 'Server'"),
            (["--site", "localhost"], "called 'localhost'"),
            (["--site", "east=East & Co"], "'East & Co'"),
            (["--classes", "1"], "--classes is 1"),
        ],
    )
    def test_bad_input_leaves_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
    ) -> None:
        assert sentence in complaint(capsys, "deploy", "init", tmp_path / "new", *INIT, *more)
        assert not (tmp_path / "new").exists()

    def test_a_host_that_is_no_host(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        flags = [part if part != "localhost" else "no host" for part in INIT]
        assert "'no host'" in complaint(capsys, "deploy", "init", tmp_path / "new", *flags)
        assert not (tmp_path / "new").exists()

    def test_folders_that_are_something_else(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("start", "run", "status", "stop", "amend"):
            assert "not a project" in complaint(capsys, "deploy", command, tmp_path)
        for command in ("check", "start", "status", "ledger", "stop"):
            assert "start-up kit" in complaint(capsys, "site", command, tmp_path)

    @pytest.mark.slow
    def test_a_project_that_does_not_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        project = tmp_path / "fraud"
        kit = init(project)
        assert "exists already" in complaint(capsys, "deploy", "init", project, *INIT)
        assert "not running: fedspray" in complaint(capsys, "deploy", "run", project)
        assert "no data yet" in complaint(capsys, "site", "start", kit)
        assert run_command(["deploy", "stop", str(project)]) == 0
        assert run_command(["deploy", "status", str(project)]) == 0
        assert "north: not connected" in capsys.readouterr().out

    @pytest.mark.slow
    @pytest.mark.parametrize(("days", "sentence"), [(400, "ended on"), (-1, "correct this machine's clock")])
    def test_certificates_of_another_time(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        days: float,
        sentence: str,
    ) -> None:
        from clocks import clock

        from fedspray.deploy.provisioning import certificates
        from fedspray.deploy.site.kit import Site

        project = tmp_path / "fraud"
        kit = init(project)
        Site(kit, "north", tmp_path).save()
        monkeypatch.setattr(certificates, "datetime", clock(days))
        for command in (["start"], ["start", "--foreground"], ["run"], ["status"]):
            said = complaint(capsys, "deploy", *command, project)
            assert "server.crt" in said
            assert sentence in said
        (project / "kits" / "server" / "startup" / "server.crt").write_text("garbage")
        assert "server.crt" in complaint(capsys, "deploy", "run", project)
        for command in (["start"], ["start", "--foreground"], ["status"]):
            said = complaint(capsys, "site", *command, kit)
            assert "client.crt" in said
            assert sentence in said
        assert not (project / "kits" / "server" / "fedspray.pid").exists()

    def test_from_a_request_to_a_kit(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        project, kit = tmp_path / "fraud", tmp_path / "kit"
        assert run_command(["site", "request", str(kit), "--name", "south"]) == 0
        aloud = re.findall("(?:[0-9a-f]{4} ?){8}", capsys.readouterr().err)
        assert "already: choose another" in complaint(capsys, "site", "request", kit, "--name", "south")
        assert run_command(["deploy", "init", str(project), *INIT]) == 0
        assert list((project / "kits").rglob("client.crt")) == [project / "kits/coordinator/startup/client.crt"]
        capsys.readouterr()
        assert run_command(["deploy", "sign", str(project), str(kit / "south.csr")]) == 0
        seen = capsys.readouterr().err
        assert len(aloud) == 1
        assert aloud[0] in seen, "both sides see the same key"
        assert "certificate already" in complaint(capsys, "deploy", "sign", project, kit / "south.csr")
        assert run_command(["deploy", "sign", str(project), str(kit / "south.csr"), "--again"]) == 0
        seen = capsys.readouterr().err
        assert run_command(["deploy", "status", str(project), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["without_certificate"] == ["north"]
        (of_zip,) = set(re.findall(r"zip file: ([0-9a-f ]{39})\n", seen))
        assert run_command(["site", "unpack", str(kit), str(project / "zips" / "south.zip")]) == 0
        assert of_zip in capsys.readouterr().err, "both sides see the same zip file"
        assert run_command(["site", "status", str(kit), "--json"]) == 3
        assert json.loads(capsys.readouterr().out)["certificate"]["name"] == "south"
        for path in (project, kit, *project.rglob("*"), *kit.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path

    def test_a_port_that_is_taken(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.socket() as other:
            other.bind(("localhost", 0))
            other.listen()
            port = other.getsockname()[1]
            assert run_command(["deploy", "init", str(tmp_path / "fraud"), *INIT, "--port", str(port)]) == 0
            said = complaint(capsys, "deploy", "start", tmp_path / "fraud")
            assert f"the server cannot listen on port {port}: Address already in use" in said

    def test_answers_to_what_could_not_be_read_are_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        project = tmp_path / "fraud"
        kit = init(project)
        line = {"time": "now", "run": "first", "seed": 0, "round": 2, "bytes": 10, "fields": {"error": 10}}
        (kit / "ledger.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps({**line, 'seed': None, 'round': None})}\n")
        capsys.readouterr()
        assert run_command(["site", "status", str(kit), "--json"]) == 3
        assert json.loads(capsys.readouterr().out)["runs"] == {"first": {"seed": 0, "round": 2, "time": "now"}}
        assert run_command(["site", "ledger", str(kit), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["runs"]["first"]["answers"] == 2

    def test_a_new_agreement_is_taken_on_by_hand(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        project = tmp_path / "fraud"
        kit, file = init(project), project / "agreement.json"
        assert run_command(["deploy", "amend", str(project), "--algorithm", "fedavg"]) == 0
        assert "no terminal" in complaint(capsys, "site", "agree", kit, file)
        assert run_command(["site", "agree", str(kit), str(file), "--yes"]) == 0
        assert "run.algorithm: 'fedspray2' → 'fedavg'" in capsys.readouterr().out
        assert file.read_text() == (kit / "local" / "agreement.json").read_text()
        assert file.read_text() == (project / "kits" / "server" / "local" / "agreement.json").read_text()

    def test_a_run_that_is_not_finished_keeps_its_agreement(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        project = tmp_path / "fraud"
        assert run_command(["deploy", "init", str(project), *INIT]) == 0
        before = (project / "agreement.json").read_text()
        for run in ("done", "first"):
            (project / "runs" / run).mkdir()
            (project / "runs" / run / "settings.json").write_text("{}")
        (project / "runs" / "done" / "result.json").write_text("{}")
        sentence = complaint(capsys, "deploy", "amend", project, "--rounds", "20")
        assert "continue under another" in sentence
        assert (project / "agreement.json").read_text() == before
        assert run_command(["deploy", "amend", str(project), "--rounds", "20", "--yes"]) == 0
        assert (project / "agreement.json").read_text() != before

    def test_a_site_agrees_anew_after_an_upgrade(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        project = tmp_path / "fraud"
        kit, new = init(project), tmp_path / "agreement.json"
        own = kit / "local" / "agreement.json"
        today = own.read_text()
        content = json.loads(today)
        new.write_text(json.dumps({**content, "fedspray": "9.9"}))
        assert "fedspray 9.9" in complaint(capsys, "site", "agree", kit, new, "--yes")
        assert own.read_text() == today
        new.write_text(today)
        own.write_text(json.dumps({**content, "fedspray": "0.0.1"}))
        assert run_command(["site", "agree", str(kit), str(new), "--yes"]) == 0
        assert capsys.readouterr().out.startswith("fedspray: '0.0.1' → ")
        assert own.read_text() == today
        own.write_text(json.dumps({**content, "format": 0}))  # of a version whose agreements cannot be read any more
        assert run_command(["site", "agree", str(kit), str(new), "--yes"]) == 0
        shown = capsys.readouterr()
        assert "previous agreement cannot" in shown.err
        assert "num_features: 5" in shown.out
        assert own.read_text() == today

    def test_other_code_is_refused_until_it_is_agreed_on(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As after an upgrade of which the version says nothing."""
        from fedspray.deploy.provisioning.kits import place_server
        from fedspray.deploy.site.kit import Site

        project = tmp_path / "fraud"
        kit = init(project)
        Site(kit, "north", tmp_path).save()
        copies = [
            project / "agreement.json",
            project / "kits/server/local/agreement.json",
            kit / "local/agreement.json",
        ]
        old = json.loads(copies[0].read_text())
        old["code"]["deploy/site/handler.py"] = "0123456789abcdef"
        for copy in copies:
            copy.write_text(json.dumps(old))
        policies = [folder / "local/resources.json" for folder in (kit, project / "kits/server")]
        made = [file.read_text() for file in policies]
        for file in policies:
            text = file.read_text().replace("deploy.server.", "deploy.").replace("deploy.site.", "deploy.")
            file.write_text(text.replace("deploy.network.", "deploy."))  # where older versions had these classes
        for command in (["deploy", "start"], ["deploy", "run"], ["site", "start"], ["site", "check"]):
            said = complaint(capsys, *command, project if command[0] == "deploy" else kit)
            assert "not installed here" in said
        capsys.readouterr()
        assert run_command(["deploy", "amend", str(project)]) == 0
        assert "code: deploy/site/handler.py is changed" in capsys.readouterr().out
        assert run_command(["site", "agree", str(kit), str(copies[0]), "--yes"]) == 0
        assert "code: deploy/site/handler.py is changed" in capsys.readouterr().out
        assert json.loads(copies[2].read_text())["code"]["deploy/site/handler.py"] != "0123456789abcdef"
        assert "not running" in complaint(capsys, "deploy", "run", project)
        place_server(project / "kits/server")
        assert [file.read_text() for file in policies] == made

    def test_what_is_not_given_stays_agreed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        project = tmp_path / "fraud"
        begun = [
            "--min-clients",
            "2",
            "--rounds",
            "10",
            "--seeds",
            "3",
            "--set",
            "distill_weight=2",
            "--set",
            "lr=0.01",
        ]
        assert run_command(["deploy", "init", str(project), *INIT, *begun]) == 0
        capsys.readouterr()
        assert run_command(["deploy", "amend", str(project), "--rounds", "20"]) == 0
        assert capsys.readouterr().out.split() == ["run.values.rounds:", "10", "→", "20"]
        assert run_command(["deploy", "amend", str(project), "--algorithm", "fedavg"]) == 0
        agreed = json.loads((project / "agreement.json").read_text())["run"]
        assert agreed["values"] == {"lr": "0.01", "rounds": 20, "min_clients": 2}
        assert (agreed["algorithm"], agreed["seeds"]) == ("fedavg", [0, 1, 2])
        capsys.readouterr()
        assert run_command(["deploy", "amend", str(project)]) == 0
        assert "nothing to change" in capsys.readouterr().err
