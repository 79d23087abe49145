"""Names that a shell proposes."""

from __future__ import annotations


def dataset_names() -> list[str]:
    """What ``--dataset`` takes."""
    from fedspray.datasets import names

    return list(names())


def algorithm_names() -> list[str]:
    """What ``--algorithm`` takes."""
    from fedspray import plugins

    return list(plugins.names("fedspray.algorithms"))


def link_names() -> list[str]:
    """What ``--link`` begins with."""
    from fedspray import plugins

    return list(plugins.names("fedspray.links"))


def partitioner_names() -> list[str]:
    """What ``--partitioner`` takes."""
    from fedspray import plugins

    return list(plugins.names("fedspray.partitioners"))
