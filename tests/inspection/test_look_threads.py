"""Looks, edits and gates that overlap: in one thread without nesting, and in many at once."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import regard as rg
from regard.ops import intercept
from regard.ops.recurrence import reference as recurrence_door

IDS = torch.arange(12).view(2, 6)


def ours():
    return rg.models.LanguageModel(rg.models.language_tiny(vocab=20)).eval(), IDS


def torchs():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 6, 16)


def theirs(kind="eager"):
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, pad_token_id=0, attn_implementation=kind,
    )  # fmt: skip
    return LlamaModel(config).eval(), IDS


MODELS = pytest.mark.parametrize("make", [ours, torchs, theirs])


def out_of(model, x):
    with torch.no_grad():
        out = model(x)
    return getattr(out, "last_hidden_state", out)


def state_of(model):
    """Everything about a model, torch and us that a look could leave changed."""
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in vars(m))
        for m in model.modules()
    ]
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    functions = (
        nn.functional.scaled_dot_product_attention,
        torch.backends.mha.get_fastpath_enabled(),
    )
    modes = torch._C._len_torch_function_stack()
    return hooks, attention, functions, modes, intercept._interceptors._global


@MODELS
def test_looks_that_overlap_without_nesting_see_their_part_and_leave_nothing(make):
    model, x = make()
    before, want = state_of(model), out_of(model, x)
    a, b = rg.look(model), rg.look(model)
    first = a.__enter__()
    out_of(model, x)
    second = b.__enter__()
    out_of(model, x)
    a.__exit__(None, None, None)
    got = out_of(model, x)
    b.__exit__(None, None, None)
    assert state_of(model) == before
    assert (len(first), len(second)) == (4, 4)  # two layers, two runs each
    assert_close(got, want)
    assert torch.equal(out_of(model, x), want)


@MODELS
def test_a_look_and_an_edit_that_overlap_leave_nothing_also_after_an_error(make):
    model, x = make()
    before, want = state_of(model), out_of(model, x)
    a, b = rg.look(model), rg.what_if(model, rg.edit.drop_head("*", 0))
    sight = a.__enter__()
    edited = b.__enter__()
    changed = out_of(model, x)
    broken = [*model.modules()][-1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        out_of(model, x)
    broken.remove()
    a.__exit__(RuntimeError, RuntimeError("stop"), None)
    still = out_of(model, x)
    b.__exit__(None, None, None)
    assert state_of(model) == before
    assert len(sight) >= 2
    assert sum(edited.applied_calls[0].values()) >= 4
    assert torch.equal(still, changed)
    assert not torch.allclose(changed, want)
    assert torch.equal(out_of(model, x), want)


@MODELS
def test_a_model_in_other_threads_is_recorded_and_no_other_model(make):
    model, x = make()
    other, _ = make()
    before, runs = state_of(model), 30
    inputs = [x if x.dtype == torch.int64 else torch.randn_like(x) for _ in range(runs)]
    want = [out_of(model, one) for one in inputs]
    with rg.look(model) as sight, ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(out_of, m, one) for one in inputs for m in (model, other)]
        got = [job.result() for job in jobs]
    assert len(sight) == 2 * runs
    assert state_of(model) == before == state_of(other)
    for one, two in zip(want, got[::2], strict=True):
        assert_close(one, two)
    for name in sight.names:
        assert [site.call for site in sight.calls(name)] == list(range(runs))


def test_equal_call_numbers_belong_to_one_run_in_any_thread_order():
    model = nn.Sequential(rg.nn.EncoderBlock(8, 2), rg.nn.EncoderBlock(8, 2)).eval()
    lengths = list(range(1, 41))  # each run has its own
    with rg.look(model) as sight, ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda n: out_of(model, torch.randn(1, n, 8)), lengths))
    low, high = ([site.queries for site in sight.calls(name)] for name in sight.names)
    assert low == high
    assert sorted(low) == lengths


@MODELS
def test_a_thread_that_looks_or_edits_itself_is_left_to_itself(make):
    model, x = make()
    before, plain = state_of(model), out_of(model, x)
    with rg.what_if(model, rg.edit.drop_head("*", 1)):
        changed = out_of(model, x)
    start = threading.Barrier(4)

    def look(i):
        start.wait()
        counts = []
        for _ in range(4):
            with rg.look(model) as sight:
                assert_close(out_of(model, x), plain)
            counts.append(len(sight))
        return counts

    def edit(i):
        start.wait()
        for _ in range(4):
            with rg.what_if(model, rg.edit.drop_head("*", 1)) as edited:
                assert_close(out_of(model, x), changed)
            assert set(edited.applied_calls[0].values()) == {1}
        return [2] * 4

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work, i) for i in range(2) for work in (look, edit)]
        assert [job.result() for job in jobs] == [[2] * 4] * 4
    assert state_of(model) == before
    assert torch.equal(out_of(model, x), plain)


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_generation_that_outlives_the_look_is_correct(kind):
    """As with a TextIteratorStreamer whose reader stops listening in the middle of a step."""
    model, ids = theirs(kind)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0  # padded: a mask that cannot be read as the other kind
    before = state_of(model)
    with torch.no_grad():
        want = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    arrived, go_on = threading.Event(), threading.Event()

    def pause(*_):
        arrived.set()
        assert go_on.wait(20)

    hook = model.layers[0].mlp.register_forward_hook(pause)
    got = []

    def run():
        with torch.no_grad():
            got.append(model(ids, attention_mask=mask).last_hidden_state[mask.bool()])

    with rg.look(model) as sight:
        thread = threading.Thread(target=run)
        thread.start()
        assert arrived.wait(20)
    assert len(sight) == 1  # the second layer came too late to be seen
    go_on.set()
    thread.join()
    hook.remove()
    assert_close(got[0], want)
    assert len(sight) == 1
    assert state_of(model) == before


def test_streamed_generation_is_recorded_from_the_reading_thread():
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(theirs()[0].config).eval()

    def write():
        model.generate(IDS[:1, 1:], max_new_tokens=3, min_new_tokens=3, do_sample=False)

    with rg.look(model, "*.0.*") as sight:
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert [site.keys for site in sight] == [5, 6, 7]
    assert sight.join("model.layers.0.self_attn").queries == 7


def test_tokens_belong_to_their_thread():
    class Letters:
        def convert_ids_to_tokens(self, ids):
            return [chr(97 + i) for i in ids]

    model, _ = ours()
    rows = [torch.full((1, 3), i) for i in range(20)] * 3
    with rg.look(model, tokens=Letters()) as sight, ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda ids: out_of(model, ids), rows))
    low, high = (sight.calls(name) for name in sight.names)
    assert [s.query_tokens for s in low] == [s.query_tokens for s in high]
    assert sorted(s.key_tokens[0][0] for s in low) == sorted(3 * "abcdefghijklmnopqrst")


def test_parallel_copies_are_recorded_under_the_names_of_the_model():
    """As nn.DataParallel makes them: other modules with the same hooks."""
    model, ids = ours()

    def copy(module):
        new = module._replicate_for_data_parallel()
        for name, part in module._modules.items():
            new._modules[name] = None if part is None else copy(part)
            setattr(new, name, new._modules[name])
        new._parameters = dict(module._parameters)
        return new

    with rg.look(model) as sight, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda m: out_of(m, ids), [copy(model), copy(model)]))
    assert [site.name for site in sight] == 2 * ["decoder.0.self", "decoder.1.self"]


@pytest.mark.parametrize("make", [lambda: rg.nn.Recurrent(3, 4), lambda: nn.GRU(3, 4)])
def test_gates_are_kept_from_other_threads_and_of_no_other_model(make):
    model, other = make(), make()
    x = torch.randn(5, 2, 3)
    with (
        rg.inspection.record_gates(model) as first,
        rg.inspection.record_gates(model) as second,
        ThreadPoolExecutor(5) as pool,
    ):
        list(pool.map(lambda m: m(x), [model, other] * 30))
        other(x)
    for seen in (first, second):
        assert list(seen) == ["0"]
        assert len(seen.calls["0"]) == 30
    assert not recurrence_door._interceptors._global
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_gates_that_overlap_without_nesting_see_their_part():
    model, x = rg.nn.Recurrent(3, 4), torch.randn(2, 5, 3)
    a, b = rg.inspection.record_gates(model), rg.inspection.record_gates(model)
    first, second = a.__enter__(), b.__enter__()
    model(x)
    a.__exit__(None, None, None)
    model(x)
    b.__exit__(None, None, None)
    model(x)
    assert [len(first.calls["0"]), len(second.calls["0"])] == [1, 2]


def test_gradients_and_importance_are_not_disturbed_by_runs_elsewhere():
    model, x = torchs()
    stop = threading.Event()

    def run():
        while not stop.is_set():
            out_of(model, torch.randn(3, 2, 16))

    def ask():
        found = rg.inspection.gradient_norms(model, lambda: model(x).sum().square())
        worth = rg.inspection.head_importance(model, lambda m: m(x).square().sum())
        return [found.depth["layers"], *worth.gradient.values()]

    want = ask()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        got = [ask() for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    for one in got:
        assert_close(one, want)


@pytest.mark.parametrize(
    "edit",
    [rg.edit.drop_head("*", 0), rg.edit.zero_activation("*.mlp.out")],
    ids=["of attention", "of activations"],
)
def test_edits_act_in_other_threads_that_neither_look_nor_edit(edit):
    model, tokens = ours()[0], torch.tensor([[1, 2, 3]])
    with torch.no_grad(), rg.what_if(model, edit):
        want = model(tokens)
    results = {}

    @torch.no_grad()
    def plain():
        results["plain"] = model(tokens)

    @torch.no_grad()
    def looking():
        with rg.look(model):
            results["looking"] = model(tokens)

    with torch.no_grad(), rg.what_if(model, edit):
        assert torch.equal(model(tokens), want)
        for run in (plain, looking):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    with torch.no_grad():
        unedited = model(tokens)
    assert torch.equal(results["plain"], want)
    assert torch.equal(results["looking"], unedited)
    assert not torch.equal(want, unedited)


@pytest.mark.parametrize("make", [ours, theirs])
def test_a_deep_copy_is_a_model_of_its_own(make):
    model, tokens = make()[0], torch.tensor([[1, 2, 3]])
    want = out_of(model, tokens)
    hooks = [rg.edit.zero_activation("*.mlp.out"), rg.edit.drop_head("*", 0)]
    with torch.no_grad(), rg.look(model, activations="*") as sight, rg.what_if(model, *hooks):
        model(tokens)
        twin, count = copy.deepcopy(model), len(sight)
        assert torch.equal(out_of(twin, tokens), want)
        assert len(sight) == count
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in twin.modules())
    config = getattr(twin, "config", None)
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    assert getattr(config, "_attn_implementation", None) == before
    with torch.no_grad(), rg.look(twin) as sight:
        assert torch.equal(out_of(twin, tokens), want)
    assert len(sight) == count
