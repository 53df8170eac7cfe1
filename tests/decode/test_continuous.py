"""Sequences that join and leave a batch at any step are those that are generated alone."""

import random

import pytest
import torch

import regard as rg
from regard.decode import ContinuousBatch, GeneratedRow, Sampling, SuppressTokens, make_stepper
from regard.decode.search.generation import stream

END, RULES = 2, [SuppressTokens([0, 1])]


def model(**changes):
    torch.manual_seed(3)
    config = rg.models.language_tiny(vocab=40, **changes)
    made = rg.models.LanguageModel(config)
    for p in made.parameters():
        p.data *= 1.6
    return made.eval()


def alone(stepper, row: GeneratedRow) -> list[int]:
    prompt = torch.tensor([row.prompt])
    with torch.no_grad():
        state = stepper.start(prompt)
    steps = stream(
        stepper, state, prompt[:, -1], end=END, max_new_tokens=row.max_new_tokens,
        sampling=row.sampling, constraints=RULES,
    )  # fmt: skip
    return [int(step.tokens) for step in steps]


@pytest.mark.parametrize(
    "changes",
    [{}, {"positions": "learned", "max_positions": 64}, {"window": 4}, {"kv_heads": 1}],
    ids=["rotary", "learned", "window", "one key head"],
)
def test_each_is_as_alone_whenever_it_joins(changes):
    stepper, rng = make_stepper(model(**changes)), random.Random(5)
    rows = [
        GeneratedRow(
            [rng.randrange(3, 40) for _ in range(rng.choice([1, 2, 5, 11]))],
            rng.randint(1, 12),
            None if n % 2 else Sampling(temperature=0.9, top_p=0.8, seed=n),
        )
        for n in range(8)
    ]
    batch, waiting, ended = ContinuousBatch(stepper, end=END, constraints=RULES), rows.copy(), []
    while waiting or batch.rows:
        for _ in range(rng.choice([0, 0, 1, 3])):
            if waiting:
                assert batch.add(waiting.pop(0))
        ended += [row for row, _, is_last in batch.step() if is_last]
    assert sorted(map(id, ended)) == sorted(map(id, rows))
    for row in rows:
        assert row.tokens == alone(stepper, row)


def test_a_batch_that_never_empties_does_not_grow():
    batch = ContinuousBatch(make_stepper(model()), end=0, constraints=RULES)
    for n in range(40):
        if n % 5 == 0:
            batch.add(GeneratedRow([3 + n % 30], 8))
        batch.step()
        assert batch.state.cache.length <= 16


def test_one_that_is_removed_or_does_not_fit_leaves_the_others():
    stepper = make_stepper(model())
    batch = ContinuousBatch(stepper, end=END, constraints=RULES, max_cache=60)
    first, second, long = GeneratedRow([5], 9), GeneratedRow([6, 7], 9), GeneratedRow([8] * 30, 9)
    assert batch.add(first)
    batch.step()
    assert batch.add(second)
    assert not batch.add(long)
    batch.step()
    batch.remove(first)
    while batch.rows:
        assert batch.rows == [second]
        batch.step()
    assert second.tokens == alone(stepper, second)
    assert len(first.tokens) == 2
    assert batch.add(long)  # alone, whatever its size
    batch.remove(long)
    assert batch.step() == []
