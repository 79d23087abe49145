"""A cache of last results: evaluation often needs what training has just computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor


class LastAnswers:
    """The last result for some tensors, one per key.

    The same tensors give the same bits, so caching never changes a result.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[tuple[Tensor, int]], Tensor]] = {}

    def cached(self, question: Hashable, inputs: Mapping[str, Tensor], answer: Callable[[], Tensor]) -> Tensor:
        """``answer()`` without gradients, or its cached result if the tensors are the same and unchanged."""
        given = [(tensor, tensor._version) for tensor in inputs.values()]
        if question in self._known:
            before, result = self._known[question]
            if len(before) == len(given) and all(
                a is b and m == n for (a, m), (b, n) in zip(before, given, strict=True)
            ):
                return result
        with torch.no_grad():
            result = answer()
        self._known[question] = (given, result)
        return result
