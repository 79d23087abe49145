"""Remembering the last answer: evaluation often asks for what training has just computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor

from fedspray.data.batch import GraphBatch


def remember(
    batch: GraphBatch, question: Hashable, inputs: Mapping[str, Tensor], answer: Callable[[], Tensor]
) -> Tensor:
    """``answer()`` without gradients, or its last result if it was for the very same, unchanged tensors.

    One result is kept for each question and batch. The same tensors give the same bits, so whether the
    answer was remembered can never be seen in a result.
    """
    tensors = tuple(inputs.values())
    key = tuple((id(tensor), tensor._version) for tensor in tensors)
    known: dict[Hashable, tuple[object, tuple[Tensor, ...], Tensor]] = batch.__dict__.setdefault("_remembered", {})
    if question in known and known[question][0] == key:
        return known[question][2]
    with torch.no_grad():
        result = answer()
    known[question] = (key, tensors, result)  # holding the tensors keeps their ids from being reused
    return result
