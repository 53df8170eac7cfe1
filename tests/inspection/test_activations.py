"""Named activations: recorded, edited and differentiated, in models of regard and transformers."""

import threading

import pytest
import torch
import transformers
from torch import nn

import regard as rg
from regard.errors import LookError, ShapeError
from regard.inspection import activation_gradients, activation_names

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 32,
}  # fmt: skip
IDS = torch.tensor([[3, 9, 4, 30, 7], [8, 8, 2, 11, 5]])


def make(name: str, **changes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name.split('For')[0]}Config")(**SIZES | changes)
    return getattr(transformers, name)(config).eval()


VECTOR = torch.linspace(-3.0, 3.0, 16)


def llama():
    return make("LlamaForCausalLM", num_key_value_heads=2)


def record(model, *args, **inputs):
    with torch.no_grad(), rg.look(model, "", activations="*") as sight:
        out = model(*args, **inputs)
    return sight.activations, out


def test_names_and_values_are_those_of_the_converted_model():
    theirs = llama()
    ours = rg.models.from_transformers(theirs.state_dict(), theirs.config.to_dict()).eval()
    assert activation_names(ours) == activation_names(theirs)
    own, _ = record(ours, IDS)
    other, _ = record(theirs, input_ids=IDS)
    assert set(own) == set(other) == set(activation_names(theirs))
    for name, x in own.items():
        torch.testing.assert_close(x, other[name], atol=2e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("GPT2LMHeadModel", {}),
        ("OPTForCausalLM", {"ffn_dim": 24, "word_embed_proj_dim": 16}),  # flattens batch and time
        ("FalconForCausalLM", {}),  # adds to the output of its MLP in place
        ("Gemma2ForCausalLM", {"head_dim": 4, "num_key_value_heads": 2}),  # norms after each part
        ("Olmo2ForCausalLM", {}),
        ("MixtralForCausalLM", {"num_key_value_heads": 2}),
        ("GPTNeoXForCausalLM", {}),
        ("BloomForCausalLM", {}),
    ],
)
def test_parts_of_each_block_add_up(name, changes):
    if name == "GPT2LMHeadModel":
        config = transformers.GPT2Config(
            vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=32
        )
        model = transformers.GPT2LMHeadModel(config).eval()
    else:
        model = make(name, **changes)
    found, out = record(model, input_ids=IDS)
    assert torch.equal(found["logits"], out.logits)
    for block in ("decoder.0", "decoder.1"):
        middle, end = found.residual_mid(block), found[f"{block}.residual_out"]
        torch.testing.assert_close(middle + found[f"{block}.mlp.out"], end)
        assert found[f"{block}.self.heads"].shape == (2, 5, 4, 4)
        assert found[f"{block}.mlp.in"].shape == (2, 5, 16)


def test_encoder_decoder_has_both_stacks_and_cross_attention():
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    found, _ = record(model, input_ids=IDS, decoder_input_ids=IDS[:, :3])
    if model.encoder.embed_tokens is not model.shared:  # one module for both before version 5
        assert found["encoder.embedding"].shape == (2, 5, 16)
        assert found["decoder.embedding"].shape == (2, 3, 16)
    assert found["decoder.1.cross.heads"].shape == (2, 3, 4, 4)
    found.residual_mid("decoder.1")
    assert "encoder.0.cross.out" not in found


def test_post_norm_blocks_do_not_add_up_and_say_so():
    found, _ = record(make("BertForMaskedLM"), input_ids=IDS)
    with pytest.raises(LookError, match="needs one whose parts add up .* got encoder.1"):
        found.residual_mid("encoder.1")


def test_edit_equals_a_hook_by_hand():
    model = llama()
    layer = model.model.layers[1].mlp.down_proj

    def by_hand(module, args, out):
        out = out.clone()
        out[:, 2] = 0
        return out

    handle = layer.register_forward_hook(by_hand)
    with torch.no_grad():
        expected = model(IDS).logits
    handle.remove()
    with torch.no_grad(), rg.what_if(model, rg.edit.zero_activation("*.1.mlp.out", positions=2)):
        edited = model(IDS).logits
    assert torch.equal(edited, expected)
    assert not torch.equal(edited, model(IDS).logits)


def test_dropping_a_head_is_zeroing_its_activation():
    model = llama()
    path = "model.layers.0.self_attn"
    with torch.no_grad():
        with rg.what_if(model, rg.edit.drop_head(path, 3)):
            dropped = model(IDS).logits
        with rg.what_if(model, rg.edit.zero_activation("decoder.0.self.heads", heads=3)):
            zeroed = model(IDS).logits
    torch.testing.assert_close(dropped, zeroed)


def test_patching_everything_gives_the_other_run():
    model = llama()
    clean, expected = record(model, input_ids=IDS[:1])
    corrupt = IDS[1:]
    name = "decoder.1.residual_out"
    with torch.no_grad(), rg.what_if(model, rg.edit.set_activation(name, clean[name])):
        torch.testing.assert_close(model(corrupt).logits, expected.logits)


def test_edits_apply_in_order_and_a_look_records_what_they_made():
    model = llama()
    name, ones = "decoder.0.mlp.out", torch.ones(16)
    edits = rg.edit.set_activation(name, ones), rg.edit.scale_activation(name, 3.0)
    with torch.no_grad(), rg.look(model, "", activations=name) as sight:  # noqa: SIM117
        with rg.what_if(model, *edits) as log:
            model(IDS)
    assert bool((sight.activations[name] == 3).all())
    assert [dict(counts) for counts in log.applied_calls] == [{name: 1}, {name: 1}]


def test_adding_to_the_residual_stream_moves_the_logits_linearly_through_the_head():
    model = make("GPTNeoXForCausalLM")
    direction = torch.randn(16)
    with torch.no_grad(), rg.look(model, "", activations="*.final_norm") as sight:
        before = model(IDS).logits
    edit = rg.edit.add_to_activation("decoder.final_norm", direction, factor=0.5, positions=4)
    with torch.no_grad(), rg.what_if(model, edit):
        after = model(IDS).logits
    change = 0.5 * direction @ model.get_output_embeddings().weight.T
    torch.testing.assert_close(after[:, 4] - before[:, 4], change.expand(2, -1))
    assert torch.equal(after[:, :4], before[:, :4])
    assert sight.activations["decoder.final_norm"].shape == (2, 5, 16)


def test_mean_and_units():
    x = torch.arange(12.0).view(1, 3, 4)
    y = rg.edit.mean_activation("a", units=[1])(x)
    assert y[0, :, 1].tolist() == [5.0, 5.0, 5.0]
    assert torch.equal(y[..., [0, 2, 3]], x[..., [0, 2, 3]])


def test_gradients_are_those_of_finite_differences():
    hub = llama()  # computes its norms in float32
    model = rg.models.from_transformers(hub.state_dict(), hub.config.to_dict()).double().eval()
    name, step = "decoder.0.self.heads", 1e-6

    def score(model):
        return model(IDS[:1])[0, -1, 7]

    found = activation_gradients(model, score, [name, "*.residual_out"])
    direction = torch.randn(1, 5, 4, 4, dtype=torch.double)
    with torch.no_grad():
        value = score(model)
        with rg.what_if(model, rg.edit.add_to_activation(name, direction, factor=step)):
            moved = score(model)
    slope = float((found.gradients[name] * direction).sum())
    assert slope == pytest.approx(float((moved - value) / step), rel=1e-4)
    last = found.gradients["decoder.1.residual_out"]
    assert last[:, :4].abs().max() == 0 < last[:, 4].abs().max()


def test_gradients_of_a_frozen_model():
    model = llama().requires_grad_(False)
    found = activation_gradients(model, lambda m: m(IDS).logits.sum(), "*.mlp.out")
    assert found.gradients["decoder.0.mlp.out"].abs().max() > 0


def test_memory_limit_is_named_and_generation_has_calls():
    model = llama()
    note = "1 of 2 activations missing or incomplete"
    looking = rg.look(model, "", activations="*.mlp.out", max_bytes=700)
    with torch.no_grad(), pytest.warns(UserWarning, match=note), looking as sight:
        model(IDS)
    assert list(sight.activations) == ["decoder.0.mlp.out"]
    assert "over max_bytes=700" in sight.skipped["decoder.1.mlp.out"]
    with torch.no_grad(), rg.look(model, "", activations="logits") as sight:
        model.generate(IDS[:1], max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert [len(x[0]) for x in sight.activations.calls("logits")] == [1, 1, 1]
    with pytest.raises(LookError, match="needs a call too"):
        sight.activations["logits"]


def test_activations_of_other_threads_are_not_recorded():
    model = llama()
    with torch.no_grad(), rg.look(model, "", activations="*.mlp.out") as sight:
        thread = threading.Thread(target=model, args=(IDS,))
        thread.start()
        thread.join()
        assert not sight.activations
        model(IDS)
    assert sight.activations


def test_hooks_are_gone_afterwards():
    model = llama()
    record(model, input_ids=IDS)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: rg.edit.zero_activation("*.mlp.outs"), "got '\\*.mlp.outs'; try 'decoder"),
        (lambda m: rg.edit.zero_activation("*.mlp.out", positions=9), "positions: needs less than"),
        (lambda m: rg.edit.zero_activation("*.mlp.out", heads=0), "heads: needs an activation by"),
        (lambda m: rg.edit.set_activation("logits", torch.ones(3)), "value: needs a shape"),
        (lambda m: rg.edit.add_to_activation("logits", torch.ones(3)), "vector: needs a shape"),
    ],
)
def test_bad_edits_are_refused(call, message):
    model = llama()

    def run():
        with torch.no_grad(), rg.what_if(model, call(model)):
            model(IDS)

    with pytest.raises((LookError, ShapeError), match=message):
        run()


def test_model_without_blocks_has_its_output_only():
    assert activation_names(nn.Linear(2, 2)) == ["logits"]


@pytest.mark.parametrize("at", [1, 3, 5])
def test_positions_are_those_of_the_generated_sequence(at):
    """A step of a generation has one row: position 0 of it is the next of the sequence."""
    model, edit = llama(), rg.edit.add_to_activation("decoder.1.residual_out", VECTOR, positions=at)
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with rg.what_if(model, edit), rg.look(model, "", activations="*.residual_out") as sight:
        text = model.generate(IDS[:1, :3], **options)
    assert [x.shape[1] for x in sight.activations.calls("decoder.1.residual_out")] == [3, 1, 1, 1]
    with rg.what_if(model, edit), torch.no_grad():
        whole = model(text).logits[:, 2:-1]
    assert torch.equal(whole.argmax(-1), text[:, 3:])
    changed = torch.cat(sight.activations.calls("decoder.1.residual_out"), 1)
    with rg.look(model, "", activations="*.residual_out") as plain, torch.no_grad():
        model(text)
    moved = (changed - plain.activations["decoder.1.residual_out"][:, :6]).abs().amax(-1)[0] > 1e-3
    assert moved.tolist() == [i == at for i in range(6)]


def test_positions_of_a_generation_of_regard_and_those_never_reached():
    model = rg.models.LanguageModel(rg.models.language_small(vocab=40, layers=2, dim=32)).eval()
    edit = rg.edit.add_to_activation("decoder.1.residual_out", VECTOR.repeat(2), positions=4)
    stepper, name = rg.decode.make_stepper(model), "decoder.1.residual_out"
    both = []
    for edits in ((), (edit,)):
        with (
            torch.no_grad(),
            rg.what_if(model, *edits),
            rg.look(model, "*", activations=name) as sight,
        ):
            state = stepper.start(IDS[:1, :3])
            for token in (IDS[:1, 2], IDS[:1, 3], IDS[:1, 4], IDS[1:, 0]):
                _, state = stepper.step(token, state)
        both.append(torch.cat(sight.activations.calls(name), 1))
    moved = (both[1] - both[0]).abs().amax(-1)[0] > 1e-3
    assert moved.tolist() == [i == 4 for i in range(6)]
    edit = rg.edit.zero_activation("*.mlp.out", positions=9)
    message = "positions: needs less than 5, .* got 9"
    with pytest.raises(ShapeError, match=message), rg.what_if(model, edit):
        model(IDS)
