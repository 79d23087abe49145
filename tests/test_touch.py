"""What it costs to add something: one file. Each is added to a copy of the sources, in that file alone, and tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

RUN_LEVEL = (
    "experiment.py",
    '    selection: str = knob("loss"',
    '    patience: int = knob(0, "Rounds without a better one.", metavar="N", least=0, neutral=0)\n',
)
OF_THE_RUN = (
    "experiment.py",
    "    keep_split: bool = knob(",
    '    purpose: str | None = knob(None, "What it is for.", metavar="TEXT", neutral=None)\n',
)
LIST_OF_THE_RUN = (
    "experiment.py",
    "    baseline: str | None = knob(",
    '    topic: tuple[str, ...] = knob((), "What it is about.", metavar="TEXT", neutral=())\n',
)
OF_THE_WAY = (
    "experiment.py",
    "    checkpoint_every: int | None = knob(",
    '    nice: int = knob(0, "Priority of the process.", metavar="N", least=0)\n',
)
DATA_KNOB = (
    "partitioners/louvain.py",
    "    resolution: float",
    '    trials: int = knob(1, "draws of the partition", neutral=1)\n',
)
METRIC = (
    "evaluation/metrics.py",
    '@metric("balanced accuracy"',
    '@metric("error rate", "share of wrong predictions", smaller_is_better=True)\n'
    "def error(counts: PartCounts) -> float | None:\n"
    "    value = overall(counts)\n"
    "    return None if value is None else 1 - value\n\n\n",
)

TRIED = """
import dataclasses, json, sys
from pathlib import Path
import fedspray as fs
sys.path[:0] = [f"{sys.argv[2]}/tests/frozen", f"{sys.argv[2]}/tests"]
import frozen
from test_frozen import STORED
from fedspray.deploy.agreement import Agreement
from fedspray.experiment import Data, Experiment, RunSettings
from fedspray.federate import open_data
from fedspray.runs.run import load_settings
from fedspray.studies.cells import Cell
from fedspray.studies.study import Study

here = Path(sys.argv[1])
assert Path(fs.__file__).is_relative_to(here), fs.__file__
(here / "new.toml").write_text(
    'dataset = "mine.npz"\\nclients = 2\\nrounds = 2\\nalgorithm = "fedavg"\\n' + sys.argv[3]
)
graph = fs.build_federation("banks", clients=1, nodes=120, majority_neighbour_share=0.6).clients[0].graph
graph.to_npz(here / "mine.npz")
found = Experiment.from_values(Experiment.read_values(here / "new.toml"), "new.toml")
federation = open_data(found.data)
given = json.loads(sys.argv[4])
result = fs.run(federation, "fedavg", rounds=2, out=here / "run", progress=False, **given)
agreement = Agreement(federation.roster, dataclasses.replace(found.run, keep_split=True)).to_json()


def key(run):
    cell = Cell(dataset="banks", method="any", data=Data.of(dataset="banks", nodes=200), run=run)
    return cell.key()


def stored(file):
    content = json.loads(file.read_text())
    run = RunSettings(algorithm=content["algorithm"], values=content["settings"], seeds=(content["seed"],))
    return key(run) == content["key"]


plain = RunSettings(algorithm="fedavg", values={"rounds": 3})
others = {
    "patience": dataclasses.replace(plain, values={"rounds": 3, "patience": 3}),
    "purpose": dataclasses.replace(plain, purpose="trial"),
    "topic": dataclasses.replace(plain, topic=["fraud"]),
}
methods = [{"name": "b", "algorithm": "fedavg", "topic": ["fraud"]}, "fedavg"]
study = Study.from_values({"topic": ["banks"], "compare": {"datasets": ["banks"], "algorithms": methods}}, "s.toml", {})
signed = Agreement.from_json(json.loads(json.dumps(agreement)), "agreement.json")
assert signed.settings == dataclasses.replace(found.run, keep_split=True)
print(json.dumps({
    "read": load_settings(here / "run")[0].topic,
    "study": {row.method: row.run.topic for row in study.rows()},
    "source": found.data.to_json(),
    "run": dataclasses.asdict(found.run),
    "settings.json": json.loads((here / "run" / "settings.json").read_text()),
    "result": result.summary(),
    "agreement": agreement,
    "federation": dict(federation.settings),
    "same_keys": all(map(stored, STORED)),
    "told_apart": [name for name, run in others.items() if key(run) != key(plain)],
    "machine": frozen.machine(),
    "models": frozen.digests(frozen.banks(), {"algorithm": "fedavg"}),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What everybody sees of the changes, each in one file."""
    folder = tmp_path_factory.mktemp("touched")
    left_out = shutil.ignore_patterns("__pycache__", "experiments")
    shutil.copytree(ROOT / "src" / "fedspray", folder / "fedspray", ignore=left_out)
    for file, before, text in (RUN_LEVEL, OF_THE_RUN, LIST_OF_THE_RUN, OF_THE_WAY, DATA_KNOB, METRIC):
        source = (folder / "fedspray" / file).read_text()
        assert source.count(before) == 1
        (folder / "fedspray" / file).write_text(source.replace(before, text + before))
    toml = 'patience = 3\npurpose = "trial"\ntopic = ["banks", "fraud"]\ntrials = 2\nselection = "error"\n'
    given = {"patience": 3, "purpose": "trial", "topic": ["banks", "fraud"], "selection": "error", "nice": 3}
    told = _python(folder, TRIED, str(folder), str(ROOT), toml, json.dumps(given))
    return {**json.loads(told.splitlines()[-1]), "help": _python(folder, HELP)}


HELP = "from fedspray.cli.main import run_command; run_command(['run', '--help'])"


def _python(folder: Path, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_stored_key_and_no_model_changes(found: dict[str, Any]) -> None:
    assert found["same_keys"]
    frozen = json.loads((ROOT / "tests" / "frozen" / "frozen.json").read_text())
    if found["machine"] == frozen["machine"]:
        assert found["models"] == frozen["banks"]["fedavg"]


def test_a_setting_of_the_rounds_costs_one_file(found: dict[str, Any]) -> None:
    assert found["run"]["values"]["patience"] == 3
    assert found["settings.json"]["run"]["values"]["patience"] == 3
    assert found["result"]["settings"]["patience"] == 3
    assert found["agreement"]["run"]["values"]["patience"] == 3
    assert "patience" in found["told_apart"]
    assert "--patience" in found["help"]


def test_a_setting_of_the_run_costs_one_file(found: dict[str, Any]) -> None:
    assert found["run"]["purpose"] == found["agreement"]["run"]["purpose"] == "trial"
    assert found["settings.json"]["run"]["purpose"] == "trial"
    assert "purpose" in found["told_apart"]
    assert "--purpose" in found["help"]


def test_a_list_of_the_run_costs_one_file(found: dict[str, Any]) -> None:
    assert found["run"]["topic"] == found["agreement"]["run"]["topic"] == ["banks", "fraud"]
    assert found["settings.json"]["run"]["topic"] == found["read"] == ["banks", "fraud"]
    assert found["study"] == {"fedavg": ["banks"], "b": ["fraud"]}
    assert "topic" in found["told_apart"]
    assert "--topic" in found["help"]


def test_what_decides_no_result_costs_one_file_and_is_kept_nowhere(found: dict[str, Any]) -> None:
    assert "--nice" in found["help"]
    assert "nice" not in json.dumps([found["settings.json"], found["agreement"], found["result"]])


def test_a_data_knob_costs_one_file(found: dict[str, Any]) -> None:
    assert found["source"]["trials"] == found["federation"]["trials"] == found["agreement"]["data"]["trials"] == 2
    assert found["settings.json"]["federation"]["trials"] == 2
    assert "--trials" in found["help"]


def test_a_metric_costs_one_file(found: dict[str, Any]) -> None:
    result = found["result"]
    assert result["error"]["mean"] == pytest.approx(1 - result["overall"]["mean"])
    assert result["seeds"][0]["val"]["error"] == pytest.approx(1 - result["seeds"][0]["val"]["overall"])
    assert found["agreement"]["run"]["values"]["selection"] == "error"
