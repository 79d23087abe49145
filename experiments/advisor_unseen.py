"""The advisor of `fedspray inspect --advise` meets data on which neither it nor FedSpray 2 was chosen.

    python -m experiments.advisor_unseen results/advisor/unseen.jsonl

reads the finished cells of FedSpray 2 from `experiments/unseen-*.toml` in results/cells (nothing is trained), and
writes a line for each data set as `experiments.advisor` does, with counts over all seeds. What the advisor looks at
and its penalty were fixed before, so its errors on a data set that is left out are a fair test
(`experiments.advisor_fit`).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import fedspray as fs
from experiments.advisor import short
from fedspray.data import advice
from fedspray.files import Json, read_json, write_text

CUT = {"partitioner": "louvain", "clients": 10}
DATA: Json = {"citation": {}, "twitch": {}}
DATA |= dict.fromkeys(("minesweeper", "tolokers", "cs", "photo", "computers"), CUT)


def measured(dataset: str, cells: Path) -> Json:
    """One data set: what the advisor looks at, and on how many test nodes each client's two models are right."""
    stored = [read_json(file) for file in sorted(cells.glob(f"{dataset}-fedspray2-gcn-seed*.json"))]
    cut = DATA[dataset].get("partitioner")  # other studies cut the same data otherwise
    found = [each["metrics"]["against_local"] for each in stored if each["federation"].get("partitioner") == cut]

    def test(name: str, group: str) -> Json:
        counts = [Counter(each[name]["test"][group]) for each in found]
        return {answer: sum(each[answer] for each in counts) for answer in counts[0]}

    clients = [
        {"name": name, "predictors": short(values), "test": {group: test(name, group) for group in advice.GROUPS}}
        for name, values in advice.predictors(fs.build_federation(dataset, **DATA[dataset])).items()
    ]
    return {"number": dataset, "source": dataset, "knobs": DATA[dataset], "seeds": len(found), "clients": clients}


def main() -> None:
    """Writes a line for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", type=Path, default=Path("results/cells"))
    options = parser.parse_args()
    write_text(options.out, "".join(json.dumps(measured(dataset, options.cells)) + "\n" for dataset in DATA))


if __name__ == "__main__":
    main()
