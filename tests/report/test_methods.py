from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from toys import ragged_federation

import fedspray
from fedspray import files
from fedspray.errors import InputError
from fedspray.report.contents import make_cards, page_data
from fedspray.report.html import commands_of, headline_rows
from fedspray.report.methods import comparisons_of, read_comparison
from fedspray.studies.backends import Workers
from fedspray.studies.grid import Grid, run_rows
from fedspray.studies.study import Study

Folders = dict[str, Path]


def test_local_is_the_reference_wherever_it_stands(run_folders: Folders) -> None:
    comparison = read_comparison([run_folders[name] for name in ("fedspray", "local", "fedavg")])
    assert [method.label for method in comparison.methods] == ["fedspray", "local", "fedavg"]
    assert comparison.reference == "local"
    first, local, _ = comparison.methods
    assert comparison.reference_of(first) is local
    assert comparison.reference_of(local) is None
    assert comparison.clients == ["client_00", "client_01", "client_02"]
    assert comparison.classes == ["class 0", "class 1", "class 2"]


def test_another_reference(run_folders: Folders) -> None:
    folders = [run_folders[name] for name in ("fedspray", "fedavg")]
    assert read_comparison(folders).reference == "fedspray"  # no Local among them: the first
    assert read_comparison(folders, "fedavg").reference == "fedavg"
    with pytest.raises(InputError, match="unknown reference 'fedvag'"):
        read_comparison(folders, "fedvag")
    assert read_comparison(folders[:1]).reference is None


def test_runs_that_differ_in_seeds_are_one_method(tmp_path: Path) -> None:
    for seed in (5, 3):
        fedspray.run(ragged_federation(), algorithm="local", rounds=2, seeds=(seed,), out=tmp_path / str(seed))
    for weight in (1.0, 2.0):
        fedspray.run(ragged_federation(), "fedspray", rounds=2, distill_weight=weight, out=tmp_path / f"w{weight}")
    names = ("5", "3", "w1.0", "w2.0")
    comparison = read_comparison([tmp_path / name for name in names])
    labels = [method.label for method in comparison.methods]
    assert labels == ["local", "fedspray distill_weight=1.0", "fedspray distill_weight=2.0"]
    assert [seed.seed for seed in comparison.methods[0].seeds] == [3, 5]
    with pytest.raises(InputError, match="holds seed 3 of local"):
        read_comparison([tmp_path / "3", tmp_path / "3"])


def test_variants_of_the_references_algorithm_are_compared_with_it(tmp_path: Path) -> None:
    for weight in (1.0, 2.0):
        fedspray.run(ragged_federation(), "fedspray", rounds=2, distill_weight=weight, out=tmp_path / f"w{weight}")
    for wanted in ("fedspray", "fedspray distill_weight=1.0"):
        comparison = read_comparison([tmp_path / "w1.0", tmp_path / "w2.0"], wanted)
        first, second = comparison.methods
        assert comparison.reference_of(first) is None
        assert comparison.reference_of(second) is first


@pytest.mark.parametrize("first", ["local", "fedprox"])  # without Local the first run's algorithm is the reference
def test_backbones_meet_their_own_reference(first: str, tmp_path: Path) -> None:
    folders = []
    for algorithm in (first, "fedavg"):
        for backbone in ("gcn", "mlp"):
            folders.append(tmp_path / f"{algorithm}-{backbone}")
            fedspray.run(ragged_federation(), algorithm=algorithm, backbone=backbone, rounds=2, out=folders[-1])
    comparison = read_comparison(folders)
    labels = [method.label for method in comparison.methods]
    assert labels == [f"{first} · gcn", f"{first} · mlp", "fedavg · gcn", "fedavg · mlp"]
    found = [comparison.reference_of(method) for method in comparison.methods]
    assert [None if m is None else m.label for m in found] == [None, None, *labels[:2]]


def test_a_backbone_without_a_reference_is_compared_with_none(tmp_path: Path) -> None:
    folders = []
    for algorithm, backbone in (("local", "gcn"), ("fedavg", "gcn"), ("fedavg", "mlp")):
        folders.append(tmp_path / f"{algorithm}-{backbone}")
        fedspray.run(ragged_federation(), algorithm=algorithm, backbone=backbone, rounds=2, out=folders[-1])
    comparison = read_comparison(folders)
    local, _, alone = comparison.methods
    assert [comparison.reference_of(method) for method in comparison.methods] == [None, local, None]
    assert [comparison.is_reference(method) for method in comparison.methods] == [True, False, False]
    cards = make_cards(comparison)
    assert [card is None for card in cards] == [False, False, True]
    assert headline_rows(comparison, cards)[2]["gain"] is None
    named = read_comparison(folders, "local · gcn")  # who names one method in full gets it
    assert named.reference_of(named.methods[2]) is named.methods[0]
    assert alone.label == "fedavg · mlp"


def test_other_data_are_refused(run_folders: Folders, tmp_path: Path) -> None:
    fedspray.run(ragged_federation(changed=1), algorithm="fedavg", rounds=2, out=tmp_path / "other")
    with pytest.raises(InputError, match=r"other was run on different data from .*local"):
        read_comparison([run_folders["local"], tmp_path / "other"])


def without_fingerprint(run: Path, target: Path, rename: dict[str, str] | None = None) -> Path:
    """A run folder as a deployed run leaves it: nobody there knows the data."""
    shutil.copytree(run, target)
    files.write_json(target / "settings.json", {**files.read_json(target / "settings.json"), "fingerprint": None})
    for file in target.glob("seed-*/result.json"):
        content = files.read_json(file)
        clients = {(rename or {}).get(name, name): row for name, row in content["clients"].items()}
        files.write_json(file, {**content, "clients": clients})
    return target


def test_runs_whose_data_nobody_knows_are_compared_by_their_clients(run_folders: Folders, tmp_path: Path) -> None:
    deployed = without_fingerprint(run_folders["fedavg"], tmp_path / "deployed")
    again = without_fingerprint(run_folders["fedspray"], tmp_path / "again")
    for folders in ([deployed, again], [run_folders["local"], deployed], [deployed, run_folders["local"]]):
        assert len(read_comparison(folders).methods) == 2
    other = without_fingerprint(run_folders["fedspray"], tmp_path / "other", {"client_02": "spain"})
    with pytest.raises(
        InputError, match=r"other was run on different data from .*deployed \(clients client_00.* spain\)"
    ):
        read_comparison([deployed, other])
    fedspray.run(ragged_federation().with_split(0), algorithm="fedavg", rounds=2, out=tmp_path / "small")
    file = tmp_path / "small" / "seed-0" / "result.json"
    content = files.read_json(file)
    content["clients"]["client_00"]["nodes"] += 1
    files.write_json(file, content)
    with pytest.raises(
        InputError, match=r"small was run on different data from .*deployed \(other numbers of test nodes\)"
    ):
        read_comparison([deployed, tmp_path / "small"])


def test_unfinished_runs_and_other_folders_are_refused(run_folders: Folders, tmp_path: Path) -> None:
    shutil.copytree(run_folders["local"], tmp_path / "cut")
    (tmp_path / "cut" / "result.json").unlink()
    with pytest.raises(InputError, match=r"cut is not finished: .*fedspray run --resume"):
        read_comparison([tmp_path / "cut"])
    with pytest.raises(InputError, match="is not a run folder"):
        read_comparison([tmp_path])
    with pytest.raises(InputError, match="needs at least one"):
        read_comparison([])


def test_cells_of_a_study_give_what_their_run_folders_give(tmp_path: Path) -> None:
    values = {"rounds": 3, "seeds": 2, "compare": {"algorithms": ["fedavg", "local", "fedspray"]}}
    plan = Study.from_values({**values, "dataset": "banks", "nodes": 600}, "here")
    rows = run_rows("", plan.rows(), lambda title, cells: Grid(cells, tmp_path, Workers(), keep_runs=True).run())
    ((place, ours),) = comparisons_of(rows, plan.reference).items()
    assert place == ("banks", "gcn")
    theirs = read_comparison([tmp_path / "runs" / cell.path.stem for row in rows for cell in row.ended])
    assert ours.reference == theirs.reference == "local"
    assert [m.label for m in ours.methods] == [m.label for m in theirs.methods]
    cards, expected = make_cards(ours), make_cards(theirs)
    for card, other in zip(cards, expected, strict=True):
        assert card is not None
        assert other is not None
        assert (card.counts == other.counts).all()
    data, wanted = page_data(ours, cards), page_data(theirs, expected)
    for method, other_method in zip(data.pop("curves"), wanted.pop("curves"), strict=True):
        for part in ("train", "val", "test"):  # cells round their curves to five digits
            for name in ("overall", "minority", "loss"):
                assert method[part][name]["mean"] == pytest.approx(other_method[part][name]["mean"], rel=1e-4)
    assert len(data["proxies"]) == 2  # FedSpray's two seeds
    assert data == wanted
    (command,) = commands_of(ours.methods[2].content)
    data_flags = "--dataset banks --nodes 600"
    assert command == f"fedspray run {data_flags} --algorithm fedspray --backbone gcn --rounds 3 --seeds 2"
