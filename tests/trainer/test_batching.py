from __future__ import annotations

import pytest
import torch

from mappa_trainer.batching import Pair, deal, micro_batches, mini_batches
from mappa_trainer.errors import TrainingError


def pairs_of(*shapes: tuple[int, int]) -> list[Pair]:
    """Give every pair its own ids, so that a mix-up shows."""
    pairs: list[Pair] = []
    for row, (prompt, sampled) in enumerate(shapes):
        ids = list(range(100 * row + 1, 100 * row + 1 + prompt + sampled))
        pairs.append((ids[:prompt], ids[prompt:]))
    return pairs


def test_the_documented_example() -> None:
    (batch,) = micro_batches([([5, 6], [7, 8]), ([5], [9])], token_budget=6)
    assert batch.rows == (1, 0)
    assert batch.packed.input_ids.tolist() == [[5, 5, 6, 7]]
    assert batch.predictors.tolist() == [0, 2, 3]
    assert batch.targets.tolist() == [9, 7, 8]
    assert batch.lengths == (1, 2)


def test_every_predictor_precedes_its_target() -> None:
    pairs = pairs_of((3, 4), (1, 1), (7, 2), (2, 6), (5, 5))
    for batch in micro_batches(pairs, token_budget=20):
        before = batch.packed.input_ids[0, batch.predictors]
        assert (batch.targets - before).tolist() == [1] * len(batch.targets)


def test_the_budget_holds_and_nothing_is_lost_or_repeated() -> None:
    pairs = pairs_of((3, 4), (1, 1), (7, 2), (2, 6), (5, 5), (30, 3))
    batches = micro_batches(pairs, token_budget=20)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(6))
    for batch in batches:
        assert batch.packed.input_ids.numel() <= 20 or batch.rows == (5,)
    assert sum(batch.packed.input_ids.numel() for batch in batches) == 6 + 1 + 8 + 7 + 9 + 32


def test_what_is_shared_counts_once_for_the_budget() -> None:
    shared = list(range(20))
    pairs: list[Pair] = [([*shared, 30 + i], [50, 60]) for i in range(5)]
    (batch,) = micro_batches(pairs, token_budget=30)
    assert batch.packed.input_ids.numel() == 20 + 5 * 2
    assert [len(b.rows) for b in micro_batches(pairs, token_budget=29)] == [4, 1]


def test_split_gives_each_row_its_own_values() -> None:
    pairs = pairs_of((3, 4), (1, 1), (7, 2))
    seen: dict[int, list[int]] = {}
    for batch in micro_batches(pairs, token_budget=12):
        seen.update((row, part.tolist()) for row, part in batch.split(batch.targets))
    assert seen == {row: list(sampled) for row, (_, sampled) in enumerate(pairs)}


def test_pairs_with_nothing_sampled_are_in_no_batch() -> None:
    assert micro_batches([([1, 2], [])], token_budget=8) == []
    (batch,) = micro_batches([([1, 2], []), ([3], [4])], token_budget=8)
    assert batch.rows == (1,)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(TrainingError, match="sample 1 has an empty prompt"):
        micro_batches([([1], [2, 3]), ([], [4])], token_budget=8)


def test_the_result_depends_on_the_arguments_alone() -> None:
    pairs = pairs_of((3, 4), (4, 3), (2, 5))
    first, second = (micro_batches(pairs, token_budget=12) for _ in range(2))
    assert [b.rows for b in first] == [b.rows for b in second] == [(0, 1), (2,)]
    rows = [[b.packed.input_ids for b in batches] for batches in (first, second)]
    assert all(torch.equal(a, b) for a, b in zip(*rows, strict=True))


EPISODES = [["a0", "a1"], ["b0"], [], ["c0", "c1", "c2"], ["d0"], ["e0"]]


def test_mini_batches_keep_episodes_whole_and_drop_nothing() -> None:
    batches = mini_batches(EPISODES, 2, seed=3)
    assert sorted(item for batch in batches for item in batch) == sorted(
        item for episode in EPISODES for item in episode
    )
    sizes = [len({item[0] for item in batch}) for batch in batches]
    assert sizes == [3, 2]
    for episode in filter(None, EPISODES):
        assert sum(set(episode) <= set(batch) for batch in batches) == 1


def test_mini_batches_follow_the_seed() -> None:
    assert mini_batches(EPISODES, 2, seed=3) == mini_batches(EPISODES, 2, seed=3)
    orders = {str(mini_batches(EPISODES, 2, seed=seed)) for seed in range(10)}
    assert len(orders) > 3


def test_more_mini_batches_than_episodes_leaves_the_last_ones_empty() -> None:
    batches = mini_batches([["a"], ["b"]], 4, seed=0)
    assert sorted(map(len, batches)) == [0, 0, 1, 1]
    assert batches[2:] == [[], []]


def test_mini_batch_count_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        mini_batches(EPISODES, 0, seed=0)


def test_rows_are_dealt_out_the_longest_first_to_the_lightest_rank() -> None:
    lengths = {0: 4, 2: 9, 3: 5, 5: 4, 6: 4}
    assert deal(lengths, 2) == [[2, 5], [0, 3, 6]]  # 9 + 4 and 5 + 4 + 4
    assert deal(lengths, 1) == [[0, 2, 3, 5, 6]]
    assert deal({4: 7}, 3) == [[4], [], []]
    assert deal({}, 2) == [[], []]


def test_ranks_share_pairs_without_loss() -> None:
    pairs = [([1] * prompt, [2] * sampled) for prompt, sampled in ((3, 2), (1, 9), (4, 0), (2, 2))]
    shares = [micro_batches(pairs, 4096, rank, 3) for rank in range(3)]
    assert [[batch.rows for batch in share] for share in shares] == [[(1,)], [(0,)], [(3,)]]


def test_an_empty_prompt_is_seen_by_every_rank() -> None:
    pairs = [([1, 2], [3]), ([], [4])]
    for rank in range(2):
        with pytest.raises(TrainingError, match="sample 1 has an empty prompt"):
            micro_batches(pairs, 4096, rank, 2)
