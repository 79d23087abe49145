"""Splits that tables or schemas fix: given in a column, stratified by class, or by time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedspray.data.splits import Split, SplitRule
from fedspray.errors import InputError
from fedspray.seeds import generator
from fedspray.tables.database import Database, literal, quoted
from fedspray.tables.numbers import moment
from fedspray.tables.rows import fetch
from fedspray.tables.schema import Schema


def fixed_split(
    database: Database, schema: Schema, labels: NDArray[np.int64] | None, owner: NDArray[np.int64] | None
) -> Split | None:
    """The split of all nodes; None where every seed draws its own."""
    choice = schema.split
    if choice.kind == "random":
        return None
    if labels is None:
        raise InputError(f"[split] kind is {choice.kind!r}, but [nodes] has no label: only labelled nodes are split")
    if choice.kind == "column":
        column = quoted(str(choice.column))
        parts = (choice.train, choice.val, choice.test)
        given = (fetch(database, f"coalesce({column} = {literal(part)}, false)", np.bool_) for part in parts)
        return Split(*(mask & (labels >= 0) for mask in given))
    groups = labels if owner is None else labels * (int(owner.max()) + 1) + owner
    if choice.kind == "time":
        groups = np.zeros_like(labels) if owner is None else owner
        when = fetch(database, f"coalesce(epoch({moment(str(choice.column))}), 0)", np.float64)
    masks = np.zeros((3, len(labels)), np.bool_)
    for group in np.unique(groups[labels >= 0]):
        members = np.flatnonzero((groups == group) & (labels >= 0))
        if choice.kind == "time":
            order = members[np.argsort(when[members], kind="stable")]
        else:
            order = generator(choice.seed, "stratified split", int(group)).permutation(members)
        for mask, chosen in zip(masks, SplitRule(choice.parts).cut(order), strict=True):
            mask[chosen] = True
    return Split(*masks)
