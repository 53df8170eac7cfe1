"""Invalid arguments of looks, sites, figures and edits raise errors of Regard."""

from dataclasses import replace

import pytest
import torch
from edit_calls import ACTIVATION_EDITS, EDITS, EXPERT_EDITS, MIXER_EDITS
from torch import nn
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError, RegardError, ShapeError

pytestmark = pytest.mark.usefixtures("users_view")

IDS = torch.arange(12).view(2, 6)
WORDS = ["a", "b", "it", "d", "it", "f"]


@pytest.fixture(scope="module")
def model():
    return rg.models.LanguageModel(rg.models.language_tiny(vocab=20)).eval()


@pytest.fixture(scope="module")
def sight(model):
    with rg.look(model) as sight, torch.no_grad():
        model(IDS)
    return sight.with_tokens(WORDS)


# ------------------------------------------------------------------ tokens


@pytest.mark.parametrize("count", [5, 7])
def test_tokens_of_a_wrong_length_are_an_error(model, sight, count):
    said = rf"tokens: needs 6 \(decoder.0.self\) tokens, got {count}"
    with pytest.raises(ShapeError, match=said), rg.look(model, tokens=["x"] * count) as seen:
        model(IDS)
    assert len(seen) == 2  # what was seen is not lost
    with pytest.raises(ShapeError, match=said):
        sight.with_tokens(["x"] * count)
    with pytest.raises(ShapeError, match="for each of 2 sequences tokens, got 6 for each of 3"):
        sight.with_tokens([WORDS] * 3)
    with pytest.raises(ShapeError, match="needs strings or lists of strings, got 3"):
        sight.with_tokens([3, 4])


def test_one_side_of_a_translator_may_be_named_but_must_fit():
    model = rg.models.Translator(rg.models.translator_tiny(vocab=20)).eval()
    with rg.look(model, tokens={"source": WORDS}) as sight:
        model(IDS, IDS[:, :4])
    assert sight["decoder.0.cross"].key_tokens == [WORDS] * 2
    assert sight["decoder.0.self"].key_tokens is None
    with pytest.raises(ShapeError, match=r"target: needs 4 \(decoder.0.self\) tokens, got 6"):
        sight.with_tokens({"source": WORDS, "target": WORDS})


# ------------------------------------------------------------------ rollout of a part


def test_rollout_of_a_partial_sight_names_the_missing_sites(model, tmp_path):
    with rg.look(model, "*.1.*") as part:
        model(IDS)
    said = "sight: needs every attention of the stack, got none of decoder.0.self"
    for sight in (part, rg.load_sight(part.save(tmp_path)), part.with_tokens(WORDS)):
        for ask in (rg.inspection.attention_rollout, rg.inspection.attention_flow):
            with pytest.raises(LookError, match=said):
                ask(sight, 0)
    assert (
        rg.inspection.attention_rollout(part, 0, "*.1.*").own.shape
        == rg.inspection.attention_rollout(part.sites, 0).own.shape
    )
    with (
        pytest.warns(UserWarning, match="attentions missing"),
        rg.look(model, max_bytes=20000) as full,
    ):
        model(IDS)
    assert full.skipped
    with pytest.raises(LookError, match="got none of decoder.1.self"):
        rg.inspection.attention_rollout(full, 0)
    with rg.look(model, survey=["entropy"]) as surveyed:
        model(IDS)
    with pytest.raises(LookError, match="needs its queries and keys"):
        rg.inspection.attention_rollout(surveyed, 0)


# ------------------------------------------------------------------ statistics


@pytest.mark.parametrize("form", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("dense", [False, True])
def test_first_share_skips_left_padding(form, dense):
    q, k = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4)
    skip = torch.tensor([4, 0])
    mask = rg.Causal() & rg.Padding(torch.tensor([9, 9]), skip)
    j = torch.arange(9)
    allowed = (j <= j[:, None]) & (j >= skip[:, None, None])
    terms = {"mask": allowed[:, None] if dense else mask}
    _, lse = rg.attend(q, k, k, **terms)
    found = rg.survey(
        q, k, lse, statistics=["first_share", "entropy"], first_keys=2, backend=form, **terms
    )
    w = (q.double() @ k.double().mT / 2).masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    w = w.nan_to_num(nan=0.0)
    want = torch.stack([w[0, :, :, 4:6].sum(-1), w[1, :, :, 0:2].sum(-1)])
    assert_close(found.first_share.double(), want, atol=1e-5, rtol=1e-5)
    # and its gradient is of the same numbers
    q.requires_grad_()
    _, lse = rg.attend(q, k, k, **terms)
    rg.survey(
        q, k, lse.detach(), statistics=["first_share"], first_keys=2, backend=form, **terms
    ).first_share.sum().backward()
    assert q.grad[0, :, 5:].abs().sum() > 0


def test_first_share_of_a_model_does_not_depend_on_left_padding():
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    llama = LlamaModel(LlamaConfig(vocab_size=20, num_attention_heads=2, **sizes)).eval()
    padded, mask = torch.tensor([[0, 0, 0, 0, 0, 3, 4, 5, 6, 7]]), torch.arange(10)[None] > 4
    with rg.look(llama) as alone, torch.no_grad():
        llama(padded[:, 5:])
    with rg.look(llama) as among, torch.no_grad():
        places = (torch.arange(10)[None] - 5).clamp(min=0)
        llama(padded, attention_mask=mask.long(), position_ids=places)
    want, got = (s.sites[0].survey(first_keys=1).first_share for s in (alone, among))
    assert_close(got[..., 5:], want, atol=1e-5, rtol=1e-5)


PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [-1, -1, 3, 3, 3, 3, 4, 4, 4]])


@pytest.mark.parametrize("form", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("kind", ["documents", "dense", "causal and dense", "both ways"])
def test_first_share_counts_from_the_start_of_each_packed_document(form, kind):
    q, k = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4)
    same, j = PACKED[:, :, None] == PACKED[:, None], torch.arange(9)
    causal = j <= j[:, None]
    documents, dense = rg.ops.masks.Documents(PACKED), rg.ops.masks.DenseMask(same[:, None])
    mask, allowed = {
        "documents": (rg.Causal() & documents, same & causal),
        "dense": (rg.ops.masks.DenseMask((same & causal)[:, None]), same & causal),
        "causal and dense": (rg.Causal() & dense, same & causal),
        "both ways": (dense, same),
    }[kind]
    _, lse = rg.attend(q, k, k, mask=mask)
    found = rg.survey(
        q, k, lse, statistics=["first_share"], first_keys=2, backend=form, mask=mask
    ).first_share
    w = (q @ k.mT / 2).masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    starts = torch.tensor([[0, 0, 0, 3, 3, 3, 3, 7, 7], [0, 0, 2, 2, 2, 2, 6, 6, 6]])
    first = (j - starts < 2)[:, None, None]
    assert_close(found, (w * first).sum(-1), atol=1e-5, rtol=1e-5)


def test_first_share_skips_padding_that_sees_itself_as_in_xlnet():
    from transformers import XLNetConfig, XLNetModel

    sizes = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    model = XLNetModel(XLNetConfig(vocab_size=20, **sizes)).eval()
    padded, mask = torch.tensor([[0, 0, 0, 0, 3, 4, 5, 6, 7]]), torch.arange(9)[None] > 3
    with torch.no_grad(), rg.look(model) as alone:
        model(padded[:, 4:])
    with torch.no_grad(), rg.look(model) as among:
        model(padded, attention_mask=mask.long())
    want, got = (s.sites[0].survey(first_keys=1).first_share for s in (alone, among))
    assert_close(got[..., 4:], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", [rg.Causal(), rg.Causal() & rg.ops.masks.Local(2), None])
def test_first_share_of_one_document_counts_from_key_0(mask):
    dense = torch.ones(7, 7).bool() if mask is None else mask.dense(7, 7)
    assert not rg.ops.masks.DenseMask(dense).sequence_starts(3, 7).any()


def test_a_recorded_survey_is_returned_without_naming_its_statistics(model):
    with rg.look(model, survey=("entropy", "peak")) as sight:
        model(IDS)
    found = sight.sites[0].survey()
    assert found.entropy.shape == (2, 4, 6)
    assert found.received is None
    with pytest.raises(LookError, match="some of those recorded, entropy, peak, got 'first_share'"):
        sight.sites[0].survey(statistics=["first_share"])
    with pytest.raises(ShapeError, match="needs names of .*, got 'entrpy'"):
        rg.look(model, survey=["entrpy"]).__enter__()


# ------------------------------------------------------------------ refusals, patches, queries


def test_refusals_are_grouped_one_line_per_reason():
    class OwnAttention(nn.Module):
        def forward(self, x):
            return (x @ x.mT).tanh() @ x

    deep = nn.Sequential(*(OwnAttention() for _ in range(24)))
    said = "0, 1, 2 and 21 more: OwnAttention"
    with pytest.raises(LookError, match=said) as refused, rg.look(deep):
        deep(torch.randn(1, 3, 4))
    assert len(str(refused.value)) < 250


def test_a_patch_needs_a_source_with_recorded_tensors(model, sight):
    with rg.look(model, survey=["entropy"]) as bare, torch.no_grad():
        model(IDS)
    for source in (bare, replace(sight.sites[0], v=sight.sites[0].v.to("meta"), q=bare.sites[0].q)):
        with pytest.raises(LookError, match="needs its queries and keys"):
            rg.inspection.compare_edits(model, IDS, rg.edit.patch("*.0.*", source))
    with pytest.raises(LookError, match="source: needs a sight or a site of another run"):
        rg.edit.patch("*", "other run")


def test_a_query_can_be_named_by_a_token_that_occurs_once(sight):
    assert rg.draw.token(sight.sites[0], "d").axes[0].get_title() == "attention of d"
    with pytest.raises(LookError, match="occurs once, got 'it'; try 2, 4"):
        rg.draw.token(sight.sites, query="it")
    with pytest.raises(LookError, match="query: needs one of the tokens, got 'cat'"):
        rg.draw.lines(sight.sites[0], query="cat")


def test_an_index_selects_one_row_and_may_be_a_tensor(sight):
    site = sight.sites[0]
    assert torch.equal(site.window(rows=3), site.window(rows=slice(3, 4)))
    assert torch.equal(site.window(keys=-1), site.window(keys=slice(5, 6)))
    assert torch.equal(site.window(torch.tensor(1)), site.window(1))
    with pytest.raises(ShapeError, match="head: needs a whole number, got '3'; try 3"):
        site.window(head="3")
    with pytest.raises(ShapeError, match="rows: needs a slice or a whole number, got 'x'"):
        site.window(rows="x")
    with pytest.raises(LookError, match="model: needs a torch.nn.Module, got 'gpt2'; try a model"):
        rg.look("gpt2").__enter__()


# ------------------------------------------------------------------ everything public

WRONG = ["3", 1.5, -99, 99, None, slice(0, 1), ["x"], True, object(), torch.zeros(2, 2)]
VALID = {  # how each is called rightly; every argument is then replaced by every wrong thing
    **{f"edit.{name}": call for name, call in (EDITS | ACTIVATION_EDITS).items()},
    "draw.map": {"site": "SITE", "head": 0, "batch": 0, "rows": slice(0, 2), "keys": slice(0, 2)},
    "draw.token": {"sites": "SITE", "query": 0, "batch": 0},
    "draw.alignment": {"site": "SITE", "head": 0, "batch": 0},
    "draw.lines": {"site": "SITE", "heads": 0, "query": 0, "batch": 0, "rows": slice(0, 2)},
    "draw.heads": {"sites": "SITE", "batch": 0},
    "draw.statistics": {"site": "SITE", "batch": 0},
    "draw.image_attention": {
        "site": "SITE", "image": torch.rand(3, 2, 3), "head": 0, "query": 0,
    },
    "describe_head": {"site": "SITE", "head": 0, "batch": 0},
    "drop_key_effect": {"site": "SITE", "keys": 0},
    "scale_key_effect": {"site": "SITE", "key": 0, "alpha": 2.0},
    "jitter_key_effect": {"site": "SITE", "key": 0, "sigma": 0.1},
    "jitter_query_effect": {"site": "SITE", "query": 0, "sigma": 0.1},
    "scale_scores_effect": {"site": "SITE", "factor": 2.0, "rows": slice(0, 1)},
    "attention_rollout": {"sight": "SIGHT", "token": 0, "at": "*", "residual": 0.5},
    "attention_flow": {"sight": "SIGHT", "token": 0, "at": "*", "residual": 0.5},
    "weighted_value_norms": {"site": "SITE", "w_out": torch.rand(4, 16, 8), "rows": 0, "keys": 0},
    "value_norms": {"site": "SITE", "w_out": torch.rand(4, 16, 8)},
    "Site.window": {"head": 0, "rows": 0, "keys": 0, "pool": (1, 1), "reduce": "mean"},
    "Site.survey": {
        "statistics": ["entropy"], "first_keys": 1, "radius": 1, "top_k": 1, "pooled_size": 2,
    },
    "Site.breakdown": {"head": 0, "query": 0, "key": 0, "batch": 0},
    "Site.influence": {"effect": "remove", "alpha": 2.0},
    "Sight.calls": {"name": "decoder.0.self"},
    "Sight.join": {"name": "decoder.0.self"},
    "Sight.with_tokens": {"tokens": WORDS},
    "Sight.__getitem__": {"name": "decoder.0.self"},
    "look": {
        "model": "MODEL", "at": "*", "max_bytes": 1 << 30, "tokens": WORDS, "survey": ["entropy"],
        "activations": "*.mlp.out",
    },
    "what_if": {"model": "MODEL"},
    "record_gates": {"model": "MODEL", "at": "*"},
    "compare_edits": {"model": "MODEL", "inputs": IDS},
    "gradient_norms": {"model": "MODEL", "loss": "LOSS"},
    "head_importance": {"model": "MODEL", "loss": "LOSS", "at": "*"},
    "relevance": {"model": "MODEL", "score": "LOSS", "token": 0, "at": "*"},
    "activation_names": {"model": "MODEL"},
    "activation_gradients": {"model": "MODEL", "score": "LOSS", "activations": "*.heads"},
    "hidden_states": {"model": "MODEL", "inputs": IDS, "depth": 0},
}  # fmt: skip
FREE = {"inputs", "loss", "score"}  # a caller's own code or data: errors there are the caller's


def test_every_edit_and_figure_is_tried():
    edits = {f"edit.{name}" for name in rg.edit.__all__} - {"edit.Edit", "edit.ActivationEdit"}
    of_results = {
        "head_types",
        "gates",
        "head_scores",
        "comparison",
        "experts",
    }  # not of a site or a sight
    figures = {f"draw.{name}" for name in set(rg.draw.__all__) - of_results}
    assert len(edits) > 10
    assert (edits | figures) <= set(VALID) | {f"edit.{name}" for name in MIXER_EDITS | EXPERT_EDITS}


@pytest.mark.filterwarnings("ignore:look. .* over max_bytes:UserWarning")
@pytest.mark.parametrize("name", VALID)
def test_invalid_arguments_raise_regard_errors(name, model, sight):
    named = {"MODEL": model, "SIGHT": sight, "SITE": sight.sites[0]}
    named["LOSS"] = lambda *_: model(IDS).sum()
    valid = {k: named.get(v, v) if isinstance(v, str) else v for k, v in VALID[name].items()}
    owner, _, method = name.rpartition(".")
    owners = {"Site": sight.sites[0], "Sight": sight, "edit": rg.edit, "draw": rg.draw}
    held = owners.get(owner, rg.inspection)
    with (
        torch.no_grad()
        if name not in ("gradient_norms", "head_importance")
        else torch.enable_grad()
    ):
        _use(getattr(held, method), valid, model)  # as it is meant
        wrong = [(arg, x) for arg in valid if arg not in FREE for x in WRONG]
        for arg, x in wrong:
            try:
                _use(getattr(held, method), valid | {arg: x}, model)
            except RegardError as error:
                assert ": need" in str(error), f"{arg}={x!r}: {error}"  # noqa: PT017
            except Exception as error:
                raise AssertionError(f"{name}({arg}={x!r}): {error!r}") from error


def _use(function, kwargs, model):
    found = function(**kwargs)
    if isinstance(
        found, rg.edit.Edit | rg.edit.ActivationEdit
    ):  # what is wrong with an edit may show when it acts
        with rg.what_if(model, found):
            model(IDS)
    elif hasattr(found, "__enter__"):
        with found:
            model(IDS)
    elif hasattr(found, "change"):
        assert found.change.shape


def test_tokens_of_an_unrecorded_side_are_ignored():
    model = rg.models.Translator(rg.models.translator_tiny(vocab=9)).eval()
    words = {"source": ["a", "b", "c"], "target": ["d", "e"]}
    with rg.look(model, "encoder.*", tokens=words) as sight:
        model(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 2, dtype=torch.long))
    assert sight.sites[0].key_tokens == [["a", "b", "c"]]
