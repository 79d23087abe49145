"""A federation in an environment that holds what requirements-site.txt names, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of such an environment: links to what is installed here."""
    place = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (target,) = place.glob("lib/python*/site-packages")
    lines = (ROOT / "requirements-site.txt").read_text().splitlines()
    names = [line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")]
    for name in [*names, "fedspray"]:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            source = Path(str(found.locate_file(top)))
            if source.exists() and source.suffix != ".pth" and not (target / top).exists():
                (target / top).symlink_to(source)
    (target / "here.pth").write_text(str(ROOT / "src"))
    script = place / "bin" / "fedspray"
    script.write_text(f"#!{place}/bin/python\nfrom fedspray.cli.main import entry_point\nentry_point()\n")
    script.chmod(0o755)
    return place / "bin"


def test_what_is_not_there(light: Path, tmp_path: Path) -> None:
    def said(*command: str | Path, code: int) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stderr

    for name in ("matplotlib", "flask", "docker", "pandas", "torch_geometric", "plotly", "tensorboard"):
        assert "ModuleNotFoundError" in said(light / "python", "-c", f"import {name}", code=1)
    modules = "nvflare.private.fed.app.client.worker_process, fedspray.deploy.site.executor, fedspray.deploy.site.check"
    said(light / "python", "-c", f"import {modules}, fedspray.deploy.server.controller", code=0)
    (tmp_path / "nodes.csv").write_text("id\n1\n")
    missing = said(light / "fedspray", "import", "--nodes", "nodes.csv", "--suggest", "schema.toml", code=2)
    assert "duckdb is not installed, but this needs it" in " ".join(missing.split())


@pytest.mark.slow
def test_a_federation(light: Path, tmp_path: Path) -> None:
    data = ["--dataset", "banks", "--clients", "3", "--nodes", "300", "--rounds", "2"]
    command: list[str | Path] = [light / "fedspray", "deploy", "local", *data, "--out", tmp_path / "try", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    kit = tmp_path / "try" / "kits" / "bank_00"
    model = kit / "models" / "run" / "seed-0"
    command = [light / "fedspray", "predict", "--model", model, "--graph", tmp_path / "try/data/clients/bank_00"]
    done = subprocess.run([*command, "--out", tmp_path / "said.csv"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
