"""The KV cache grows in place; an earlier state is unchanged."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard import models
from regard.decode import cache, make_stepper
from regard.decode.cache import KVCache, KVStorage

LAYER = nn.Identity()


def grown(kept: KVCache, *numbers: float) -> KVCache:
    k = torch.tensor(numbers)[None, None, :, None]
    growing = kept.append(len(numbers))
    growing(LAYER, k, -k)
    return growing.new_cache()


def held(kept: KVCache) -> list[float]:
    k, v = kept.keys_values(0)
    assert_close(v, -k)
    return k[0, 0, :, 0].tolist()


def test_a_step_appends_in_place():
    one = grown(KVCache(), 1.0, 2.0)
    place = one.storage.layers[0].data_ptr()
    two = grown(one, 3.0)
    assert two.storage.layers[0].data_ptr() == place
    assert held(two) == [1.0, 2.0, 3.0]
    assert held(one) == [1.0, 2.0]


def test_a_state_can_be_continued_twice():
    one = grown(KVCache(), 1.0)
    left, right = grown(one, 2.0), grown(one, 3.0)
    assert held(left) == [1.0, 2.0]
    assert held(right) == [1.0, 3.0]
    assert held(grown(left, 4.0)) == [1.0, 2.0, 4.0]


def test_a_full_cache_grows(monkeypatch):
    monkeypatch.setattr(cache, "INITIAL_CAPACITY", 2)
    kept = KVCache()
    for n in range(7):
        kept = grown(kept, float(n))
    assert held(kept) == list(map(float, range(7)))


def test_selected_rows_keep_the_free_capacity():
    k = torch.arange(3.0)[:, None, None, None]
    growing = KVCache().append(1)
    growing(LAYER, k, k)
    picked = growing.new_cache().select(torch.tensor([2, 2, 0]))
    keys, _ = picked.keys_values(0)
    assert keys.flatten().tolist() == [2.0, 2.0, 0.0]
    assert picked.storage.layers[0].shape[2] == cache.INITIAL_CAPACITY


def test_a_bounded_cache_keeps_the_last_steps_and_every_handle_stays_valid():
    first = grown(KVCache(max_length=3), 1.0, 2.0)
    later = grown(grown(first, 3.0), 4.0, 5.0)
    assert (held(first), held(later)) == ([1.0, 2.0], [3.0, 4.0, 5.0])
    assert held(grown(first, 9.0)) == [1.0, 2.0, 9.0]
    assert later.storage.layers[0].untyped_storage().nbytes() == 2 * 3 * 4


def test_rows_of_a_source_differ_by_their_history():
    history = torch.tensor([[[True, False, False, True], [False, True, True, False]]])
    k = torch.arange(1.0, 5.0)[None, None, :, None]  # two steps of two rows
    storage = KVStorage([torch.cat([k, -k], 1)], 2)
    cache = KVCache(storage, 2, rows_per_source=2, history=history)
    assert held(cache.select(torch.tensor([0]))) == [1.0, 4.0]
    assert held(cache.select(torch.tensor([1]))) == [2.0, 3.0]
    assert held(cache.reorder(torch.tensor([1, 0])).select(torch.tensor([0]))) == [2.0, 3.0]


@pytest.mark.parametrize("batch", [1, 3])
def test_no_step_without_gradients_allocates_a_cache(batch):
    model = models.LanguageModel(models.language_tiny(9, dim=16, heads=2, dropout=0.0)).eval()
    stepper, token = make_stepper(model), torch.ones(batch, dtype=torch.long)
    with torch.no_grad():
        state = stepper.start(token[:, None].expand(-1, 4))
        _, state = stepper.step(token, state)
        places = [k.data_ptr() for k in state.cache.storage.layers]
        for _ in range(5):
            _, state = stepper.step(token, state)
    assert [k.data_ptr() for k in state.cache.storage.layers] == places


def test_a_gradient_goes_back_through_every_step():
    model = models.LanguageModel(models.language_tiny(9, dim=16, heads=2, dropout=0.0)).eval()
    tokens = torch.tensor([[3, 4, 5, 6]])
    stepper = make_stepper(model)
    state, steps = stepper.start(tokens[:, :1]), []
    for token in tokens.unbind(1):
        logits, state = stepper.step(token, state)
        steps.append(logits)
    torch.stack(steps, 1).square().sum().backward()
    stepped = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()  # which lets them go, and keeps ours
    model(tokens).square().sum().backward()
    for name, p in model.named_parameters():
        assert_close(stepped[name], p.grad, atol=1e-4, rtol=1e-4, msg=name)
