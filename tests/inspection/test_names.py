"""Both names of everything, "decoder.1.self" and "model.layers.1.self_attn", and heads from -1."""

import inspect

import pytest
import torch
import transformers
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.errors import LookError
from tests.inspection.edit_calls import ACTIVATION_EDITS, EDITS

IDS = torch.tensor([[3, 9, 4, 30, 7]])


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def own():
    torch.manual_seed(0)
    return rg.models.LanguageModel(rg.models.language_small(vocab=40, layers=2, dim=32)).eval()


PATHS = {"llama": ("model.layers.1", "self_attn"), "own": ("decoder.blocks.1", "self_attention")}


@pytest.mark.parametrize("which", PATHS)
def test_an_attention_has_both_names_everywhere(which, request, tmp_path):
    model, (block, attention) = request.getfixturevalue(which), PATHS[which]
    path = f"{block}.{attention}"
    with rg.look(model) as sight:
        model(IDS)
    assert sight["decoder.1.self"] is sight[path]
    assert rg.load_sight(sight.save(tmp_path))["decoder.1.self"].path == path
    edited = []
    for name in ("decoder.1.self", path):
        with rg.look(model, name) as one, rg.what_if(model, rg.edit.drop_head(name, 1)):
            edited.append(rg.inspection.adapters.model_calls.get_logits(model(IDS)))
        assert [site.path for site in one] == [path]
        assert rg.inspection.split_score(model, IDS, name, head=0, query=3, key=1).error < 1e-3
    assert torch.equal(edited[0], edited[1])
    with rg.look(model, "decoder.0.self") as part:
        model(IDS)
    with pytest.raises(LookError, match="got none of"):
        rg.inspection.attention_rollout(part, at="decoder.*.self")


@pytest.mark.parametrize("which", PATHS)
def test_an_activation_has_the_path_of_its_module(which, request):
    model, (block, attention) = request.getfixturevalue(which), PATHS[which]
    pairs = {
        block: "decoder.1.residual_out",
        f"{block}.mlp" if which == "llama" else f"{block}.feed_forward": "decoder.1.mlp.out",
        f"{block}.{attention}": "decoder.1.self.out",
        f"{block}.{attention}.heads": "decoder.1.self.heads",
        f"{block}.residual_in": "decoder.1.residual_in",
    }
    with rg.look(model, "", activations=list(pairs)) as sight, torch.no_grad():
        model(IDS)
    assert set(sight.activations) == set(pairs.values())
    for path, name in pairs.items():
        assert sight.activations[path] is sight.activations[name]
        with rg.what_if(model, rg.edit.zero_activation(path, positions=0)) as log:
            model(IDS)
        assert list(log.applied_calls[0]) == [name]


def test_errors_offer_the_nearest_of_either(llama):
    with rg.look(llama) as sight:
        llama(IDS)
    for wrong, near in (
        ("decoder.1.slef", "decoder.1.self"),
        ("model.layers.1.self_atn", "model.layers.1.self_attn"),
    ):
        with pytest.raises(LookError, match=f"try '{near}'"):
            sight[wrong]
        with pytest.raises(LookError, match=f"try '{near}'"), rg.look(llama, wrong):
            llama(IDS)
        edit = rg.edit.uniform(wrong)
        with pytest.raises(LookError, match=f"try '{near}'"), rg.what_if(llama, edit):
            llama(IDS)
        with pytest.raises(LookError, match=f"try '{near}"), rg.look(llama, "", activations=wrong):
            llama(IDS)


def test_the_command_takes_both(llama, tmp_path):
    llama.save_pretrained(tmp_path / "model")
    words = {f"w{i}": i for i in range(40)}
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(
        tmp_path / "model"
    )
    shown = []
    for at in ("decoder.1.self", "model.layers.1.self_attn"):
        result = CliRunner().invoke(
            app,
            [
                "look",
                str(tmp_path / "model"),
                "w3 w4 w5",
                "--at",
                at,
                "--out",
                str(tmp_path / "page.html"),
            ],
        )
        assert result.exit_code == 0, result.output
        shown.append(result.output)
    assert shown[0] == shown[1]
    assert "1 attention site, 4 heads" in shown[0]


@pytest.mark.parametrize("name", [*EDITS, *ACTIVATION_EDITS])
def test_edits_count_heads_from_the_last(name, llama):
    options = dict((EDITS | ACTIVATION_EDITS)[name])
    options |= {"queries": 3} if "queries" in options else {}  # the first query sees one key
    if options.get("source") == "SIGHT":
        with rg.look(llama) as options["source"]:
            llama(IDS.flip(1))
    results = []
    for head in (-1, 3, 0):
        edit = getattr(rg.edit, name)(**options | {"heads": head})
        with rg.what_if(llama, edit), torch.no_grad():
            results.append(llama(IDS).logits)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_sites_and_figures_count_heads_from_the_last(own):
    with rg.look(own, "*.0.self") as sight:
        own(IDS)
    (site,) = sight
    last = site.heads - 1
    calls = [
        lambda head: site.window(head),
        lambda head: torch.tensor(site.breakdown(head, 3, 1).weight),
        lambda head: rg.inspection.describe_head(site, head),
        lambda head: rg.inspection.MapPyramid(site, head).tile(0, 0, 0).values.nan_to_num(),
        lambda head: rg.inspection.compare_sights(sight, sight).maps(site.name, head).nan_to_num(),
    ]
    for call in calls:
        got, expected = call(-1), call(last)
        assert got == expected if isinstance(got, str) else torch.equal(got, expected)
    figures = {rg.draw.map, rg.draw.alignment, rg.draw.image_attention}
    takes_head = {
        f for f in map(rg.draw.__dict__.get, rg.draw.__all__)
        if f is not None and "head" in inspect.signature(f).parameters
    }  # fmt: skip
    assert takes_head == figures
    grid = rg.make_site(*torch.randn(2, 2, 17, 4))
    for figure in figures:
        is_image = figure is rg.draw.image_attention
        given = {"query": 0, "image": torch.rand(3, 32, 32)} if is_image else {}
        drawn = [figure(grid, head=head, **given) for head in (-1, 1)]
        titles = [[a.get_title() for a in f.axes] for f in drawn]
        assert titles[0] == titles[1]
        assert "head -1" not in str(titles)
