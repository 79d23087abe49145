"""What a site says of its tables, for scales and vocabularies that all sites share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedspray.errors import InputError
from fedspray.tables.database import MEMORY, Database, OnProgress
from fedspray.tables.feature import Feature
from fedspray.tables.numbers import number_moments
from fedspray.tables.problems import Problems
from fedspray.tables.rows import number_nodes
from fedspray.tables.schema import Edges, Schema
from fedspray.tables.sources import load_sources
from fedspray.tables.statistics import MINIMUM, Contribution
from fedspray.tables.words import word_counts


def contribute(
    schema: Schema,
    nodes: Sequence[str] | None,
    site: str,
    *,
    minimum: int = MINIMUM,
    memory: str = MEMORY,
    on_progress: OnProgress | None = None,
) -> Contribution:
    """Adds up the rows of one site's table of nodes; rows with a problem are left out, as at an import."""
    with Database.open(memory, on_progress) as database:
        source, _ = load_sources(database, replace(schema, edges=Edges()), nodes, None)
        if not source.files:
            raise InputError("there is no table of nodes to add up: give --nodes")
        rows = number_nodes(database, schema, source, Problems())
        asked = [feature for feature in rows.features if feature.kind in ("category", "set")]
        words = {f.title: word_counts(database, f) for f in asked if f.vocabulary is None}
        classes = (
            {} if schema.nodes.label is None else word_counts(database, Feature((schema.nodes.label,), "category"))
        )
        return Contribution.made(site, minimum, number_moments(database, rows.features), words, classes)
