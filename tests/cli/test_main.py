from __future__ import annotations

import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import types
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

import fedspray
from fedspray.cli import main
from fedspray.cli.document import commands
from fedspray.cli.organisations import ask
from fedspray.errors import InputError

HEAVY = (
    "nvflare",
    "psutil",
    "duckdb",
    "pydantic",
    "torch",
    "torch_geometric",
    "scipy",
    "pandas",
    "matplotlib",
    "sklearn",
    "networkx",
    "igraph",
    "numpy",
)


def fails_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Sequence[str]:
    """Makes `fedspray datasets` fail and returns its arguments."""

    def fail() -> None:
        raise error

    monkeypatch.setattr("fedspray.datasets.catalogue", fail)
    return ["datasets"]


def test_every_page_and_the_version_answer_without_heavy_imports() -> None:
    pages = [["--help"], *([*name.split(), "--help"] for name in commands()), ["deploy"], ["--version"], []]
    code = (
        "import sys; from fedspray.cli.main import run_command; "
        f"codes = {{run_command(words) for words in {pages!r}}}; "
        f"print(*sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr); print(codes)"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.stdout.splitlines()[-1] == "{0, 2}"  # 2: a group without a command
    assert outcome.stderr.split() == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_takes_little_more_than_the_imports_of_its_libraries(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 0.30 CPU seconds where these imports take 0.15, with compiled modules, as users have them."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    cpu_seconds(help_of(words))  # compiles them
    libraries = "import cyclopts.help, docstring_parser, rich.console, rich.panel, rich.table"
    ratios = [cpu_seconds(help_of(words)) / cpu_seconds(libraries) for _ in range(7)]
    assert statistics.median(ratios) < 2.2


def help_of(words: list[str]) -> str:
    return f"from fedspray.cli.main import run_command; run_command({words!r})"


def cpu_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_names_every_command_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("datasets", "inspect", "partition", "Examples", "--install-completion", "--debug"):
        assert word in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"fedspray {version('fedspray')}\n"
    assert fedspray.__version__ == version("fedspray")
    asked = subprocess.run([sys.executable, "-m", "fedspray", "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout == f"fedspray {version('fedspray')}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["insect"], "error: unknown command 'insect'"),
        (["site", "stat"], "error: unknown command 'stat'"),
        (["inspect"], "error: --dataset NAME|FILE|DIR is missing"),
        (["inspect", "--dataset"], "error: --dataset needs a value"),
        (["inspect", "--datset", "banks"], "error: unknown option --datset; did you mean --dataset?"),
        (["inspect", "--dataset", "banks", "--seed", "one"], "error: seed is 'one'"),
        (["demo", "--rounds", "2.5"], "error: --rounds is '2.5'"),
        (["deploy", "init", "x", "--port", "65536"], "error: --port is '65536'"),
        (["deploy", "init", "x", "--grace", "long"], "error: --grace is 'long', but must be a number"),
        (["algorithms", "local", "fedavg"], "error: 'fedavg' is an unexpected argument"),
        (["inspect", "--dataset", "bank"], "error: unknown data set 'bank': choose one of arxiv, banks"),
        (["inspect", "--dataset", "banks", "--clients", "0"], "error: num_clients is 0"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_command(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(sentence)
    assert captured.err.count("\n") == 1


def test_a_long_sentence_stays_on_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = fails_with(monkeypatch, InputError("[bold]word[/bold] " + "long " * 50))
    assert main.run_command(arguments) == 2
    assert capsys.readouterr().err == "error: [bold]word[/bold] " + ("long " * 50).strip() + "\n"


def test_a_missing_file_is_bad_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = fails_with(monkeypatch, PermissionError(13, "Permission denied", "secret.txt"))
    assert main.run_command(arguments) == 2
    assert capsys.readouterr().err == "error: secret.txt: Permission denied\n"


def test_a_bug_says_so_and_hides_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = fails_with(monkeypatch, KeyError("x"))
    assert main.run_command(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: KeyError: 'x' (this is a bug in fedspray, please report it; --debug shows")
    assert "Traceback" not in error


@pytest.mark.parametrize(("error", "code"), [(KeyError("x"), 1), (InputError("no"), 2)])
@pytest.mark.parametrize("first", [True, False])
def test_debug_shows_the_traceback_wherever_it_stands(
    error: Exception,
    code: int,
    first: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = fails_with(monkeypatch, error)
    assert main.run_command(["--debug", *arguments] if first else [*arguments, "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_quietly_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(fails_with(monkeypatch, KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_ctrl_c_and_ctrl_d_at_a_question(end: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(prompt: str = "") -> str:
        raise end

    monkeypatch.setattr("builtins.input", no_answer)
    with pytest.raises(KeyboardInterrupt):
        ask("really?")


def test_a_question_is_asked_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["", " ", " north "])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))
    assert ask("which site?") == "north"
    monkeypatch.setattr("builtins.input", lambda prompt="": "")
    assert ask("take it on?", "n") == "n"


@pytest.mark.parametrize("group", ["deploy", "site"])
def test_a_group_without_a_command_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command([group]) == 2
    captured = capsys.readouterr()
    assert f"fedspray {group}" in captured.out + captured.err
    assert "error" not in captured.err


@pytest.mark.parametrize("loaded", [True, False])
def test_the_installed_script_passes_the_exit_code_on(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NVFlare, whose threads may never end, too."""
    monkeypatch.setattr(sys, "argv", ["fedspray", "nonsense"])
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.delitem(sys.modules, "nvflare", raising=False)
    if loaded:
        monkeypatch.setitem(sys.modules, "nvflare", types.ModuleType("nvflare"))
    with pytest.raises(SystemExit) as stop:
        main.entry_point()
    assert stop.value.code == 2


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The completion script of bash."""
    file = tmp_path_factory.mktemp("completion") / "fedspray.bash"
    outcome = fedspray_process("--show-completion", SHELL="/bin/bash")
    assert outcome.returncode == 0, outcome.stderr
    file.write_text(outcome.stdout)
    return file


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedspray ins", {"inspect"}),
        ("fedspray inspect --cli", {"--clients"}),
        ("fedspray inspect --dataset pub", {"pubmed"}),
        ("fedspray run --partitioner l", {"label-skew", "louvain"}),
        ("fedspray reproduce proposition", {"proposition1"}),
        ("fedspray deploy sta", {"start", "status"}),
    ],
)
def test_completion(script: Path, line: str, expected: set[str]) -> None:
    words = line.split()
    steps = f"""
        PATH={Path(sys.executable).parent}:$PATH
        source {script}
        COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1} COMP_LINE={shlex.quote(line)}
        $(complete -p fedspray | sed -E 's/.*-F ([^ ]+).*/\\1/') fedspray {shlex.quote(words[-1])} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    outcome = subprocess.run(["bash", "-c", steps], capture_output=True, text=True, check=False)
    assert set(outcome.stdout.split()) == expected, outcome.stderr


@pytest.mark.parametrize("flag", ["--show-completion", "--install-completion"])
def test_a_shell_without_completion(flag: str, tmp_path: Path) -> None:
    versions = {f"{shell}_VERSION": "" for shell in ("BASH", "ZSH", "FISH")}
    outcome = fedspray_process(flag, SHELL="/bin/tcsh", HOME=str(tmp_path), **versions)
    assert outcome.returncode == 2
    assert "'/bin/tcsh'" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_completion_script_from_before_is_told_what_to_do() -> None:
    outcome = fedspray_process(_FEDSPRAY_COMPLETE="complete_bash")
    assert outcome.stdout == ""
    assert "--install-completion" in outcome.stderr


def fedspray_process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from fedspray.cli.main import entry_point; entry_point()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
