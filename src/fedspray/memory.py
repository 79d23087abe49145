"""What fits into this machine: sizes are compared with its memory before anything is allocated."""

from __future__ import annotations

import os

from fedspray.errors import InputError


def total_memory() -> int | None:
    """Bytes of memory that this machine has; None where the system does not say."""
    names = os.sysconf_names
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None


def check_memory(what: str, num_bytes: float) -> None:
    """Refuses what needs more memory than there is; ``what`` begins the sentence."""
    there = total_memory()
    if there is not None and num_bytes > there:
        needed = f"{num_bytes / 1e9:,.0f}" if num_bytes < 1e21 else "far more"
        raise InputError(f"{what} would need {needed} GB of memory, but this machine has {there / 1e9:,.0f} GB")
