"""Patching sweeps against patches written out by hand, one at a time."""

import pytest
import torch
import transformers

import regard as rg
from regard.errors import FileError, LookError, ShapeError

CLEAN = torch.tensor([[3, 9, 4, 30, 7]])
CORRUPT = torch.tensor([[3, 21, 4, 30, 7]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def metric(logits):
    return logits[0, -1, 4] - logits[0, -1, 7]


@torch.no_grad()
def patched_by_hand(model, name, head, position):
    with rg.look(model, "", activations=name) as sight:
        model(CLEAN)
    value = sight.activations[name]
    options = {} if head is None else {"heads": head}
    options |= {} if position is None else {"positions": position}
    with rg.what_if(model, rg.edit.set_activation(name, value, **options)):
        return float(metric(model(CORRUPT).logits))


@pytest.mark.parametrize("batch_size", [3, 64])
def test_each_place_equals_one_patched_run(model, batch_size):
    result = rg.patching.sweep(model, CLEAN, CORRUPT, metric, batch_size=batch_size)
    assert result.axes == ("layer", "head", "position")
    assert result.values.shape == (2, 4, 5)
    for layer, head, position in [(0, 0, 1), (0, 3, 4), (1, 2, 4), (1, 1, 2)]:
        expected = patched_by_hand(model, f"decoder.{layer}.self.heads", head, position)
        assert float(result.values[layer, head, position]) == pytest.approx(expected, abs=1e-5)


def test_a_block_that_reads_more_than_the_output_of_the_one_before(model):
    seen = {}  # a second path between the blocks, which is gone if the first one is skipped
    first, second = model.model.layers
    hooks = [first.mlp.register_forward_hook(lambda module, args, out: seen.update(x=out))]
    hooks += [second.register_forward_hook(lambda module, args, out: out + seen.pop("x", 0))]
    try:
        values = rg.patching.sweep(model, CLEAN, CORRUPT, metric, over="mlp×position").values
        for layer in (0, 1):
            expected = patched_by_hand(model, f"decoder.{layer}.mlp.out", None, 1)
            assert float(values[layer, 1]) == pytest.approx(expected, abs=1e-5)
    finally:
        for hook in hooks:
            hook.remove()


def test_encoder_decoder():
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, init_std=0.3,
        max_position_embeddings=20,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).eval()
    target = torch.tensor([[2, 8, 5]])
    clean, corrupt = ({"input_ids": x, "decoder_input_ids": target} for x in (CLEAN, CORRUPT))
    for stack, name in (("encoder", "encoder.1.mlp.out"), ("decoder", "decoder.1.mlp.out")):
        over = {"over": "mlp×position", "stack": stack}
        found = rg.patching.sweep(model, clean, corrupt, metric, **over).values[1, 1]
        with rg.look(model, "", activations=name) as sight:
            model(**clean)
        edit = rg.edit.set_activation(name, sight.activations[name], positions=1)
        with torch.no_grad(), rg.what_if(model, edit):
            assert float(found) == pytest.approx(float(metric(model(**corrupt).logits)), abs=1e-5)


@pytest.mark.parametrize(
    ("over", "name", "shape"),
    [
        ("residual×position", "residual_in", (2, 5)),
        ("mlp x position", "mlp.out", (2, 5)),
        ("attention", "self.out", (2,)),
        ("head", "self.heads", (2, 4)),
    ],
)
def test_what_is_swept(model, over, name, shape):
    result = rg.patching.sweep(model, CLEAN, CORRUPT, metric, over=over)
    assert result.values.shape == shape
    position = 1 if "position" in over else None
    head = 2 if over == "head" else None
    at = [1, *([2] if head else []), *([1] if position else [])]
    expected = patched_by_hand(model, f"decoder.1.{name}", head, position)
    assert float(result.values[tuple(at)]) == pytest.approx(expected, abs=1e-5)


def test_residual_stream_at_the_changed_token_restores_everything(model):
    result = rg.patching.sweep(model, CLEAN, CORRUPT, metric, over="residual×position")
    torch.testing.assert_close(result.effect[0], torch.tensor([0.0, 1, 0, 0, 0]), atol=1e-5, rtol=0)


def test_gradient_estimates_small_changes(model):
    """With nearly equal inputs the estimate is first order, so its error is of second order."""
    x = model.model.embed_tokens(CLEAN).detach()
    near = {"inputs_embeds": x + 1e-3 * torch.randn_like(x)}
    both = [
        rg.patching.sweep(model, {"inputs_embeds": x}, near, metric, method=method)
        for method in ("exact", "gradient")
    ]
    exact, estimate = (result.values - result.corrupt for result in both)
    torch.testing.assert_close(exact, estimate, atol=0.05 * float(exact.abs().max()), rtol=0)
    assert both[1].method == "gradient"


def test_an_interrupted_sweep_continues(model, tmp_path):
    file, calls = tmp_path / "sweep.json", []

    def counting(logits):
        calls.append(1)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return metric(logits)

    with pytest.raises(KeyboardInterrupt):
        rg.patching.sweep(model, CLEAN, CORRUPT, counting, resume=file, batch_size=1)
    first = len(calls)
    calls.clear()
    calls += [1] * 100  # beyond the interruption
    result = rg.patching.sweep(model, CLEAN, CORRUPT, counting, resume=file)
    whole = rg.patching.sweep(model, CLEAN, CORRUPT, metric)
    torch.testing.assert_close(result.values, whole.values)
    assert first == 30
    assert len(calls) == 100 + 2 + 20  # the first layer is not run again
    with pytest.raises(FileError, match="needs the layers of this sweep"):
        rg.patching.sweep(model, CLEAN, CORRUPT, metric, over="mlp", resume=file)


def test_path_to_the_logits_is_the_direct_effect(model):
    """Held fixed otherwise, the last block's MLP reaches the logits by no other path."""
    whole = rg.patching.sweep(model, CORRUPT, CLEAN, metric, over="mlp")
    found = rg.patching.path(
        model, CLEAN, CORRUPT, metric, sender="decoder.1.mlp", receiver="logits"
    )
    assert found.patched == pytest.approx(float(whole.values[1]), abs=1e-5)


@torch.no_grad()
def test_path_through_the_keys_of_one_head_by_hand(model):
    names = ["decoder.0.self.heads", "decoder.0.mlp.out"]
    with rg.look(model, "", activations=names) as clean:
        model(CLEAN)
    with rg.look(model, "", activations=names) as corrupt:
        model(CORRUPT)
    heads, mlp = (clean.activations[name] for name in names)
    mixed = heads.clone()
    mixed[:, :, 3] = corrupt.activations[names[0]][:, :, 3]
    edits = rg.edit.set_activation(names[0], mixed), rg.edit.set_activation(names[1], mlp)
    with rg.look(model, "model.layers.1.*") as moved, rg.what_if(model, *edits):
        model(CLEAN)
    edit = rg.edit.patch("model.layers.1.*", moved, "keys", heads=2)
    with rg.what_if(model, edit):
        expected = float(metric(model(CLEAN).logits))
    found = rg.patching.path(
        model, CLEAN, CORRUPT, metric,
        sender=("decoder.0.self", 3), receiver=("decoder.1.self", 2, "keys"),
    )  # fmt: skip
    assert found.patched == pytest.approx(expected, abs=1e-6)
    assert found.patched != pytest.approx(found.clean, abs=1e-6)


def test_table_and_figure(model, tmp_path):
    words = ["The", "cat", "sat", "on", "$"]
    result = rg.patching.sweep(model, CLEAN, CORRUPT, metric, labels=words)
    text = repr(result)
    assert "2 × 4 × 5 places" in text
    assert "head" in text
    assert len(result.to_dicts()) == 40
    assert result.to_dicts()[0].keys() == {"layer", "head", "position", "value", "effect"}
    result.draw(path=tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"over": "layer"}, LookError, "over: needs residual, attention, mixer, mlp or head"),
        ({"over": "head×time"}, LookError, "over: needs"),
        ({"stack": "encoder"}, LookError, "stack: needs one of decoder, got 'encoder'"),
        ({"batch_size": 0}, ShapeError, "batch_size: needs 1 or more"),
        ({"corrupt": CLEAN[:, :4]}, ShapeError, "corrupt: needs the shape of clean"),
        ({"metric": lambda logits: logits[0, -1]}, ShapeError, "metric: needs to return a scalar"),
        ({"labels": ["a"]}, ShapeError, "labels: needs one per position, 5, got 1"),
    ],
)
def test_bad_arguments_are_refused(model, changes, error, message):
    arguments = {"clean": CLEAN, "corrupt": CORRUPT, "metric": metric} | changes
    with pytest.raises(error, match=message):
        rg.patching.sweep(model, **arguments)
