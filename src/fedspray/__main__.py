"""``python -m fedspray``: the command line where the script ``fedspray`` isn't on the path."""

from fedspray.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
