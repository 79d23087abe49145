"""Listen to a run: stop when validation accuracy stands still, go on later from the same bits, send fewer bytes.

python follow_and_stop.py [FOLDER]
"""

import sys
from pathlib import Path

import fedspray as fs


class Patience(fs.Callback):
    """Ends a run that has not improved for some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.best, self.since = rounds, -1.0, 0

    def on_record(self, seed: int, record: dict) -> None:
        """Called with the figures of every round."""
        score = record["val"]["overall"]
        self.best, self.since = max(score, self.best), 0 if score > self.best else self.since + 1
        if self.since == self.rounds:
            raise KeyboardInterrupt  # everything up to here is kept


def main(folder: Path) -> None:
    """Stop early, then finish the same run after all."""
    federation = fs.build_federation("banks", nodes=1200)
    try:
        # 8 bits for each number instead of 32, with error feedback.
        fs.run(
            federation,
            "fedavg",
            rounds=60,
            out=folder,
            link=["compress up_bits=8"],
            callbacks=[Patience(5)],
            progress=False,
        )
    except KeyboardInterrupt:
        print(f"validation accuracy stood still; {folder} holds the run so far")
    result = fs.resume(folder, federation, progress=False)
    sent = result.curves["bytes_up"].mean() / federation.num_clients / 1000
    print(f"after all {len(result.curves)} rounds: {result}; {sent:.1f} kB up per client and round")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "followed"))
