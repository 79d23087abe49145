"""The server's side of a run."""
