"""Which method should we use? Three methods, the same splits and seeds, paired tests, one page to share.

python compare_methods.py [FOLDER]
"""

import sys
from pathlib import Path

import fedspray as fs

METHODS = [fs.Local(), fs.FedAvg(), fs.FedSpray2()]


def main(folder: Path) -> None:
    """Compare, print what is clear, write the page and the tables."""
    federation = fs.build_federation("banks", nodes=1200)
    compared = fs.compare(federation, METHODS, rounds=20, seeds=2, reference="local", out=folder, progress=False)
    print(compared.table[["method", "overall", "minority"]].round(3).to_string(index=False))
    page = fs.report(compared, folder / "report.html")
    print(page["finding"])
    print(f"{folder / 'report.html'} has the rest; run this again and only new methods or seeds are trained")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "methods"))
