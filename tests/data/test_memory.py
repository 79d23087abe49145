from __future__ import annotations

from dataclasses import replace

import torch
from toys import ragged_federation, stack

from fedspray.data.memory import LastAnswers


def test_the_last_answer_is_kept_for_the_very_same_unchanged_tensors() -> None:
    answers, asked = LastAnswers(), []

    def answer() -> torch.Tensor:
        asked.append(1)
        return torch.tensor(float(len(asked)))

    one, two = torch.ones(2), torch.ones(2)
    assert answers.cached("q", {"a": one}, answer) == 1
    assert answers.cached("q", {"a": one}, answer) == 1
    assert answers.cached("q", {"a": two}, answer) == 2  # equal, but another tensor
    assert answers.cached("q", {"a": one}, answer) == 3  # only the last is kept
    one.add_(1)
    assert answers.cached("q", {"a": one}, answer) == 4  # changed in place
    assert answers.cached("p", {"a": one}, answer) == 5
    assert answers.cached("q", {"a": one, "b": two}, answer) == 6
    assert not answers.cached("q", {"a": one, "b": two}, answer).requires_grad


def test_a_copy_of_a_batch_begins_without_answers() -> None:
    batch = stack(ragged_federation())
    batch.answers.cached("q", {}, lambda: torch.zeros(()))
    assert replace(batch).answers.cached("q", {}, lambda: torch.ones(())) == 1
