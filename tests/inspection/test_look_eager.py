"""Attention that models write out themselves: softmax(q kᵀ + bias) v, and blocked patterns."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError
from regard.ops.terms import repeat_kv

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # DeBERTa

IDS = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
RIGHT = (torch.arange(9) < torch.tensor([[9], [6]])).long()
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"intermediate_size": 48, "max_position_embeddings": 64, **SPECIAL}
GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **SPECIAL}
DEBERTA = BERT | {"relative_attention": True, "pos_att_type": "c2p|p2c", "type_vocab_size": 0}
PAIR = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, **SPECIAL}
PAIR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 1}
PAIR |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
QUICK = {
    "GPTJ": ("GPTJForCausalLM", GPT | {"rotary_dim": 4}),
    "GPTNeo": (
        "GPTNeoForCausalLM",
        {"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 4, **SPECIAL}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "Bloom": (
        "BloomForCausalLM",
        {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4, **SPECIAL},
    ),
    "Mpt": (
        "MptForCausalLM",
        {"vocab_size": 50, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "CodeGen": ("CodeGenForCausalLM", GPT | {"rotary_dim": 4}),
    "Deberta": ("DebertaModel", DEBERTA | {"max_relative_positions": 16}),
    "DebertaV2": ("DebertaV2Model", DEBERTA | {"position_buckets": 8}),
    "XLNet": (
        "XLNetModel",
        {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, **SPECIAL},
    ),
    "OpenAIGPT": ("OpenAIGPTModel", GPT),
}
OTHERS = {
    "XGLM": (
        "XGLMModel",
        {"vocab_size": 50, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    ),
    "Flaubert": ("FlaubertModel", {"n_words": 50, "emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "FSMT": ("FSMTModel", PAIR | {"src_vocab_size": 50, "tgt_vocab_size": 50}),
    "MPNet": ("MPNetModel", BERT),
    "RoFormer": ("RoFormerModel", BERT),
    "MegatronBert": ("MegatronBertModel", BERT),
    "RemBert": ("RemBertModel", BERT | {"input_embedding_size": 32}),
    "Luke": ("LukeModel", BERT | {"entity_vocab_size": 10, "entity_emb_size": 8}),
    "ConvBert": ("ConvBertModel", BERT | {"embedding_size": 32}),
    "BigBird": ("BigBirdModel", BERT | {"attention_type": "original_full"}),
    "GPTNeoXJapanese": ("GPTNeoXJapaneseModel", BERT),
    "Mvp": ("MvpModel", PAIR),
}
MODELS = QUICK | OTHERS
ALL = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
SHAKE = {"XLNet": 25.0, "FSMT": 12.0}


def make(name: str, kind: str | None = None, options: dict | None = None):
    kind, options = (kind, options) if kind else MODELS[name]
    if name == "FSMT":
        options = {"langs": ["en", "de"]} | {k: v for k, v in options.items() if k != "vocab_size"}
    config = getattr(transformers, f"{name}Config")(**options)
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():  # random weights are so small that every map is flat
        for p in model.parameters():
            p.mul_(SHAKE.get(name, 6.0) if p.ndim > 1 and p.shape[0] != 50 else 1.0)
    return model


def inputs(name: str) -> dict[str, torch.Tensor]:
    given = {"input_ids": IDS, "attention_mask": RIGHT}
    return given | ({"decoder_input_ids": IDS[:, :5]} if name in ("FSMT", "Mvp") else {})


def real(x: torch.Tensor) -> torch.Tensor:
    """What the model says of real tokens; padding may say anything."""
    return x[RIGHT.bool()] if x.shape[:2] == RIGHT.shape else x


def maps_of(out) -> list[torch.Tensor]:
    keys = ("encoder_attentions", "attentions", "decoder_attentions", "cross_attentions")
    maps = [w for key in keys for w in (out.get(key) or ()) if w is not None]
    return [w.permute(2, 3, 0, 1) if w.shape[:2] == (9, 9) else w for w in maps]  # XLNet


def assert_output_is_of_weights(site):
    """The model's own output is the product of our weights and the values."""
    assert_close(site.weights() @ repeat_kv(site.v, site.q), site.out, rtol=1e-4, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ALL)
def test_outputs_stay_to_the_last_bit_and_maps_are_the_model_s(name):
    model, given = make(name), inputs(name)
    want = model(**given, output_attentions=True)
    with rg.look(model) as sight:
        got = model(**given)
    assert torch.equal(got[0], want[0])  # in padded rows too
    assert (sight.skipped == {}) == (name != "ConvBert")  # its convolution is named
    maps = maps_of(want)
    assert len(maps) == len(sight)
    for site in sight:
        assert_output_is_of_weights(site)
        mine, alive = site.weights(), site.lse > -torch.inf
        same = [w for w in maps if w.shape == mine.shape]
        assert min((mine[alive] - w[alive]).abs().max() for w in same) < 2e-5, site
        assert mine.amax() > 0.2  # the comparison is not one of flat maps


class BruteForce(TorchFunctionMode):
    """Changes the scores or weights of every softmax over 9 keys."""

    def __init__(self, before=lambda s: s, after=lambda w: w):
        super().__init__()
        self.before, self.after = before, after

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "softmax" and args[0].shape[-1] == 9:
            w = func(self.before(args[0]), *args[1:], **kwargs or {})
            return self.after(w)
        return func(*args, **kwargs or {})


def without_key(w: torch.Tensor) -> torch.Tensor:
    w = w * (torch.arange(9) != 2)
    return w / w.sum(-1, keepdim=True)


@torch.no_grad()
@pytest.mark.parametrize("name", ["GPTNeo", "Bloom", "DebertaV2", "XLNet", "OpenAIGPT"])
def test_edits_are_those_made_at_the_softmax(name):
    model, given = make(name), inputs(name)
    plain = real(model(**given)[0])
    for edit, brute in (
        (rg.edit.drop_key("*", 2, queries=range(3, 9)), BruteForce(after=lambda w: torch.where(
            torch.arange(9)[:, None] > 2, without_key(w), w))),
        (rg.edit.scale_scores("*", 0.5), BruteForce(before=lambda s: 0.5 * s)),
    ):  # fmt: skip
        with brute:
            want = real(model(**given)[0])
        with rg.look(model) as sight, rg.what_if(model, edit):
            got = real(model(**given)[0])
        assert len(sight) == 2  # nested: each attention is one call
        assert (want - plain).abs().max() > 1e-2
        assert_close(got, want, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["GPTNeo", "Bloom", "Mpt"])
def test_a_generated_text_joins_into_the_map_of_the_whole(name):
    model = make(name)
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    options["use_cache"] = True  # off in MPT
    want = model.generate(input_ids=IDS, **options)
    with rg.look(model) as sight:
        text = model.generate(input_ids=IDS, **options)
    assert torch.equal(text, want)
    with rg.look(model) as once:
        model(text[:, :-1])
    for site in once:
        joined = sight.join(site.name)
        assert_close(joined.weights(), site.weights(), rtol=1e-4, atol=2e-5)
        ask = ["mean_distance"]  # positions are counted alike
        a, b = (s.survey(statistics=ask).mean_distance for s in (joined, site))
        assert_close(a, b, rtol=1e-4, atol=2e-4)


@torch.no_grad()
def test_masks_and_biases_keep_their_structure():
    seen = {}
    for name in ("GPTNeo", "Bloom", "Mpt", "XLNet"):
        model = make(name)
        with rg.look(model) as sight:
            model(input_ids=IDS)
        seen[name] = sight.sites
    local = "Both(a=Causal(), b=Local(radius=3))"
    assert [str(site.terms.mask) for site in seen["GPTNeo"]] == ["Causal()", local]
    assert seen["GPTNeo"][0].terms.bias is None
    for name, shape in (("Bloom", (2, 4, 1, 9)), ("Mpt", (1, 4, 1, 9))):
        assert seen[name][0].terms.mask == rg.Causal()
        assert seen[name][0].terms.bias.values.shape == shape  # ALiBi: no n × n numbers
    assert seen["XLNet"][0].terms.bias.values.shape == (2, 4, 9, 9)


def test_gradients_pass_through_the_recorded_call():
    model = make("Bloom")
    name = "transformer.h.0.self_attention"
    found = rg.inspection.head_importance(model, lambda m: m(IDS).logits[..., 7].sum())
    with torch.no_grad():
        sums = []
        for factor in (0.99, 1.01):
            with rg.what_if(model, rg.edit.scale_head(name, 1, factor)):
                sums.append(model(IDS).logits[..., 7].double().sum())
    want = (sums[0] - sums[1]) / 0.02
    assert_close(found.first_order[name][1].double(), want, rtol=0.02, atol=1e-3)


class Written(nn.Module):
    """Attention as in a textbook, with a change of scores or weights."""

    def __init__(self, scores=lambda s: s, weights=lambda w: w, heads=1):
        super().__init__()
        self.scores, self.weights, self.num_heads = scores, weights, heads

    def forward(self, x):
        return self.weights(self.scores(x @ x.mT).softmax(-1)) @ x


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(2))
HIDE = torch.ones(5, 5).triu(1).bool()
SUPPORTED = {
    "plain": lambda s: s,
    "scale": lambda s: s * 0.5 / torch.tensor(2.0),
    "in place": lambda s: s.mul_(0.5).masked_fill_(HIDE, -torch.inf),
    "where": lambda s: torch.where(HIDE, torch.tensor(-1e9), s),
    "minus": lambda s: s - 1e4 * HIDE.float() - 3,
    "clamp": lambda s: (s + torch.full((5, 5), -1e38).triu(1)).clamp(min=-3e38),
    "old GPT": lambda s: s * (~HIDE).float() - 1e4 * HIDE.float(),
    "per head": lambda s: s * torch.tensor([1.0, 0.25]).view(2, 1, 1),
}
UNKNOWN = {
    "tanh": lambda s: s.tanh(),
    "in place": lambda s: s.tanh_(),
    "item": lambda s: s.index_fill_(-1, torch.tensor([1]), -3.0),
    "through a view": lambda s: (s.view(-1).mul_(2.0), s)[1],
    "zero is not hidden": lambda s: s * (~HIDE).float(),
    "transposed": lambda s: s.mT,
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_scale_bias_and_mask_are_traced(name):
    model, x = Written(SUPPORTED[name]), X[None] if name == "per head" else X
    want = model(x)
    with rg.look(model) as sight:
        assert torch.equal(model(x), want)
    (site,) = sight
    assert (site.batch, site.heads) == ((1, 2) if name == "per head" else (2, 1))
    w = SUPPORTED[name](x @ x.mT).softmax(-1).reshape(site.weights().shape)
    assert_close(site.weights(), w)
    assert (site.weights()[..., HIDE].abs().max() > 0) == (name in ("plain", "scale", "per head"))


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.usefixtures("users_view")
def test_an_operation_that_is_not_known_ends_the_trace(name):
    model = nn.Sequential(Written(UNKNOWN[name]))
    type(model[0]).__name__ = "WrittenAttention"
    with torch.inference_mode(name == "item"):  # no version counter
        want = model(X.clone())
        reason = r"softmax\(q kᵀ \+ bias\) v"
        with pytest.raises(LookError, match=reason), rg.look(model):
            assert torch.equal(model(X.clone()), want)


def test_weights_that_change_after_the_softmax_are_not_recorded():
    model = nn.Sequential(Written(weights=lambda w: w / 2), Written(), Written(heads=2))
    with rg.look(model) as sight:
        model(X)
    assert [site.name for site in sight] == ["1", "2"]
    assert sight["2"].heads == 2  # one axis for batch and heads: as the module says


def test_a_padded_row_of_zeros_has_no_weights():
    model = Written(
        lambda s: s.masked_fill(torch.arange(5)[:, None] > 3, -torch.inf),
        lambda w: w.masked_fill(torch.arange(5)[:, None] > 3, 0),  # as CPM-Ant
    )
    want = model(X)
    with rg.look(model) as sight:
        assert torch.equal(model(X), want)
    assert (sight.sites[0].lse[..., 4] == -torch.inf).all()
    assert_output_is_of_weights(sight.sites[0])


def test_dropout_of_weights_stays_the_model_s_and_is_passed_on():
    model = Written(weights=lambda w: F.dropout(w, 0.5, training=True))
    calls = []

    def note(call, proceed):
        calls.append(call.dropout)
        return proceed(call)

    torch.manual_seed(0)
    want = model(X)
    torch.manual_seed(0)
    with rg.look(model), rg.ops.intercept.intercepting(note):
        assert torch.equal(model(X), want)
    assert calls == [0.5]


@pytest.mark.parametrize("equation", ["ibnd,jbnd->bnij", "jbnd,ibnd->bnij"])
def test_einsum_in_any_layout(equation):
    q, k, v = torch.randn(3, 4, 2, 3, 8).unbind(0)  # (time, batch, head, value)

    class Time(nn.Module):
        def forward(self, q, k, v):
            pair = (q, k) if equation.startswith("i") else (k, q)
            w = F.softmax(torch.einsum(equation, pair) * 0.5, dim=3)
            return torch.einsum("bnij,jbnd->ibnd", w, v)

    model = Time()
    want = model(q, k, v)
    with rg.look(model) as sight:
        assert torch.equal(model(q, k, v), want)
    assert_close(sight.sites[0].q, q.permute(1, 2, 0, 3))
    assert_output_is_of_weights(sight.sites[0])
    with rg.what_if(model, rg.edit.drop_head("*", 1)):
        got = model(q, k, v)
    want[:, :, 1] = 0
    assert_close(got, want)


def test_half_precision_and_autocast_keep_the_output():
    model = make("GPTJ").bfloat16()
    with torch.no_grad(), rg.look(model) as sight:
        got = model(IDS).logits
    assert torch.equal(got, model(IDS).logits)
    assert sight.sites[0].q.dtype == torch.float32  # as the model computes its scores
    model = make("Bloom")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want = model(IDS).logits
        with rg.look(model) as sight:
            assert torch.equal(model(IDS).logits, want)
    assert_close(sight.sites[0].weights().sum(-1), torch.ones(2, 4, 9), rtol=0, atol=0.05)


LONG = torch.randint(3, 50, (2, 24), generator=torch.Generator().manual_seed(3))
SHORT = (torch.arange(24) < torch.tensor([[24], [17]])).long()
FIRST = torch.zeros_like(SHORT).index_fill(1, torch.tensor([0, 5]), 1)
BLOCKS = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
SPARSE = {
    "Longformer": ("LongformerModel", BERT | {"attention_window": [4, 8]}, {}),
    "Longformer, global": (
        "LongformerModel",
        BERT | {"attention_window": [4, 4]},
        {"global_attention_mask": FIRST},
    ),
    "BigBird": ("BigBirdModel", BERT | BLOCKS, {}),
    "LED": ("LEDModel", PAIR | {"attention_window": [4, 4]}, {"decoder_input_ids": LONG[:, :5]}),
    "BigBirdPegasus": ("BigBirdPegasusModel", PAIR | BLOCKS, {"decoder_input_ids": LONG[:, :5]}),
}


@torch.no_grad()
@pytest.mark.parametrize("name", SPARSE)
def test_blocked_attention_is_dense_attention_with_a_mask(name):
    kind, options, extra = SPARSE[name]
    model = make(name.split(",")[0], kind, options)
    given = {"input_ids": LONG, "attention_mask": SHORT, **extra}
    want = model(**given)[0]
    with rg.look(model) as sight:
        got = model(**given)[0]
    pad = SHORT.bool() if got.shape[1] == 24 else slice(None)
    assert_close(got[pad], want[pad], rtol=1e-5, atol=1e-5)
    assert (sight.skipped == {}) == (name != "ConvBert")  # its convolution is named
    for site in sight.sites[:2]:
        w, alive = site.weights(), site.lse > -torch.inf
        assert_output_is_of_weights(site)
        assert 24 * 24 * 0.15 < (w[0, 0] > 0).sum() < 24 * 24 * 0.8
        rows = SHORT.bool() & ~FIRST.bool() if "global" in name else SHORT.bool()
        assert torch.equal(alive, rows[:, None].expand_as(alive))
    with rg.what_if(model, rg.edit.scale_scores("*", 1.0)):  # our own computation, no change
        again = model(**given)[0]
    assert_close(again[pad], want[pad], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("name", "kind", "options"), [
    ("BigBirdPegasus", "BigBirdPegasusModel", PAIR | {"attention_type": "original_full"}),
    ("NllbMoe", "NllbMoeModel", PAIR | {"num_experts": 2, "expert_capacity": 64}),
    ("PegasusX", "PegasusXModel", PAIR | {"block_size": 4, "num_global_tokens": 2}),
])  # fmt: skip
def test_models_that_use_the_interface_in_part_get_masks_they_can_add(name, kind, options):
    model = make(name, kind, options)
    given = {"input_ids": LONG, "attention_mask": SHORT, "decoder_input_ids": LONG[:, :5]}
    want = model(**given)[0]
    with rg.look(model) as sight:
        got = model(**given)[0]
    assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert {s.terms.mask for s in sight if "decoder" in s.path and s.kind == "self"} == {
        rg.Causal()
    }


@torch.no_grad()
@pytest.mark.usefixtures("users_view")
def test_other_formulas_are_refused_by_name():
    options = BERT | {"num_landmarks": 3, "segment_means_seq_len": 9}
    model = make("Nystromformer", "NystromformerModel", options)
    with pytest.raises(LookError, match="NystromformerSelfAttention"), rg.look(model):
        model(IDS)


class Twice(nn.Module):
    """Uses its weights for values and for the embeddings of distances, as VITS does."""

    def __init__(self, second):
        super().__init__()
        self.second = second

    def forward(self, x):
        w = (x @ x.mT).softmax(-1)
        return w @ x + self.second(w, 2 * x)


AGAIN = {
    "matmul": lambda w, r: w @ r,
    "matmul of two axes": lambda w, r: w @ r[0],
    "bmm": torch.bmm,
    "einsum": lambda w, r: torch.einsum("bij,bjd->bid", w, r),
}
ELSEWHERE = {
    "padded": lambda w, r: F.pad(w, (1, 0))[..., 1:] @ r,
    "transposed": lambda w, r: (r.mT @ w.mT).mT,
    "the mean of heads": lambda w, r: w.mean(0) @ r[0],
    "linear": lambda w, r: F.linear(w, r[0].mT),
    "in place": lambda w, r: w.view_as(w).mul_(0.5) @ r,
    "joined": lambda w, r: torch.cat([w, w], -1) @ torch.cat([r, r], -2),
}


@pytest.mark.parametrize("name", AGAIN)
def test_weights_that_are_used_twice_are_two_calls_and_an_edit_changes_both(name):
    model = Twice(AGAIN[name])
    want = model(X)
    with rg.look(model) as sight:
        assert torch.equal(model(X), want)
    assert len(sight) == 2
    assert not sight.skipped
    assert_close((sight.sites[0].out + sight.sites[1].out)[:, 0], want)
    for site in sight:
        assert_output_is_of_weights(site)
    hidden = torch.arange(5) != 2
    with rg.what_if(model, rg.edit.drop_key("*", 2)):
        got = model(X)
    w = (X @ X.mT).masked_fill(~hidden, -torch.inf).softmax(-1)
    assert_close(got, w @ X + AGAIN[name](w, 2 * X))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_second_use_that_makes_no_call_is_named_and_no_edit_leaves_it_out_silently(name):
    model = nn.ModuleDict({"a": Twice(ELSEWHERE[name])})
    model.forward = lambda x: model["a"](x)
    want = model(X)
    with rg.look(model) as sight:
        assert torch.equal(model(X), want)
    assert "second use of its weights" in sight.skipped["a"]
    assert sight.names == ["a"]  # the first is exact
    with pytest.raises(LookError, match="used once"), rg.what_if(model, rg.edit.drop_key("*", 2)):
        model(X)


def test_reading_the_weights_is_no_second_use():
    def read(w, r):
        like = torch.zeros_like(w).sum() + w.new_ones(1).sum()
        return r.type_as(w) @ r.mT.to(w) @ r + like + w.detach().mean()

    with rg.look(model := Twice(read)) as sight:
        model(X)
    assert len(sight) == 1
    assert "second use" not in str(sight.skipped)  # the mean of the weights is more, though


@torch.no_grad()
def test_relative_values_of_vits_are_named():
    config = transformers.VitsConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16
    )
    torch.manual_seed(0)
    from transformers.models.vits.modeling_vits import VitsAttention

    layer = VitsAttention(config).eval()
    x = torch.randn(2, 6, 16)
    want = layer(x)[0]
    with rg.look(layer) as sight:
        assert torch.equal(layer(x)[0], want)
    assert_output_is_of_weights(sight.sites[0])  # although it is added to in place
    assert list(sight.skipped) == sight.names
