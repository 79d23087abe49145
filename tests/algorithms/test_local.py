from __future__ import annotations

import torch
from play import Play, build, play, same
from toys import awkward_federation, ragged_federation, stack


def test_nothing_travels() -> None:
    game = play("local", ragged_federation())
    assert game.message == {}
    assert game.uplinks == [{}, {}, {}]


def test_rounds_only_cut_one_training_into_pieces() -> None:
    """Moments are kept: 3 rounds of 4 steps are 12 steps. Forgetting them is something else."""
    batch = stack(ragged_federation())
    pieces = Play(build("local", local_epochs=4), batch, rounds=3).client
    whole = Play(build("local", local_epochs=12), batch, rounds=1).client
    assert same(pieces, whole, 1e-12)
    assert not same(Play(build("local", local_epochs=4, reset_optimizer=True), batch, rounds=3).client.gnn, whole.gnn)


def test_a_client_without_training_nodes_keeps_its_weights() -> None:
    before, after = (play("local", awkward_federation(), rounds=rounds).client.gnn for rounds in (0, 3))
    for name, value in before.items():
        assert torch.equal(after[name][3], value[3])
        assert not torch.equal(after[name][0], value[0])


def test_clients_start_alike_or_each_with_its_own_draw() -> None:
    common, own = (
        play("local", ragged_federation(), rounds=0, gnn_start=start).client.gnn for start in ("common", "own")
    )
    assert torch.equal(common["conv1.weight"][0], common["conv1.weight"][1])
    assert not torch.equal(own["conv1.weight"][0], own["conv1.weight"][1])
