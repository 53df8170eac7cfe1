"""Head importance from one backward pass, against finite differences and exact ablation."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import LookError, ShapeError

TOKENS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])


@pytest.fixture
def model():
    torch.manual_seed(1)
    config = models.language_tiny(vocab=12, kv_heads=2)
    return models.LanguageModel(config).double().eval()


def loss(model):
    logits = model(TOKENS)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten(), reduction="sum")


def test_the_gradient_is_the_limit_of_a_small_gate(model):
    found = rg.inspection.head_importance(model, loss)
    assert list(found.gradient) == ["decoder.0.self", "decoder.1.self"]
    for name, want in found.first_order.items():
        for head in range(4):
            with torch.no_grad(), rg.what_if(model, rg.edit.scale_head(name, head, 1 - 1e-5)):
                slope = (loss(model) - found.loss) / 1e-5
            assert_close(slope, want[head], rtol=1e-3, atol=1e-6)


def test_the_error_of_the_prediction_falls_with_the_square_of_the_step(model):
    found, head = rg.inspection.head_importance(model, loss), 1
    errors = []
    for step in (0.02, 0.01):
        with (
            torch.no_grad(),
            rg.what_if(model, rg.edit.scale_head("decoder.0.self", head, 1 - step)),
        ):
            real = float(loss(model)) - found.loss
        errors.append(real - step * float(found.first_order["decoder.0.self"][head]))
    assert 3.8 < errors[0] / errors[1] < 4.2


def test_the_exact_table_is_the_loss_with_one_head_dropped(model):
    found = rg.inspection.head_importance(model, loss, exact=True)
    with torch.no_grad(), rg.what_if(model, rg.edit.drop_head("decoder.1.self", 3)):
        want = float(loss(model)) - found.loss
    assert_close(float(found.ablation["decoder.1.self"][3]), want)
    name, head = found.ranking()[0]
    assert float(found.ablation[name][head]) == max(float(d.max()) for d in found.ablation.values())


def test_blocks_before_a_dropped_head_are_computed_once(model):
    calls = []
    inner = model.decoder.blocks[0].feed_forward
    with inner.register_forward_hook(lambda *_: calls.append(1)):
        found = rg.inspection.head_importance(model, loss, exact=True)
    assert len(calls) == 1 + 1 + 4  # gradient, recording, heads of this block
    assert "forward" not in vars(model.decoder.blocks[0])
    for head in range(4):
        with torch.no_grad(), rg.what_if(model, rg.edit.drop_head("decoder.1.self", head)):
            assert_close(
                float(found.ablation["decoder.1.self"][head]), float(loss(model)) - found.loss
            )


@pytest.mark.parametrize("kind", ["Llama", "BitNet"])  # BitNet has a norm before W_O
def test_dropped_heads_of_transformers(kind):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, initializer_range=0.3, pad_token_id=None,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()
    loss = lambda model: model(TOKENS, labels=TOKENS).loss  # noqa: E731
    found = rg.inspection.head_importance(model, loss, exact=True)
    for name, changes in found.ablation.items():
        with torch.no_grad(), rg.what_if(model, rg.edit.drop_head(name, 2)):
            want = float(loss(model)) - found.loss
        assert float(changes[2]) == pytest.approx(want, abs=1e-6)


def test_every_sequence_has_its_own_gates(model):
    both = rg.inspection.head_importance(model, loss).gradient["decoder.0.self"]
    one = rg.inspection.head_importance(
        model, lambda m: F.cross_entropy(m(TOKENS[:1])[0, :-1], TOKENS[0, 1:], reduction="sum")
    )
    assert both.shape == (2, 4)
    assert_close(both[:1], one.gradient["decoder.0.self"])


def test_sites_are_chosen_by_name_and_parameters_keep_their_gradients(model):
    found = rg.inspection.head_importance(model, loss, "*.1.self")
    assert list(found.gradient) == ["decoder.1.self"]
    assert all(p.grad is None for p in model.parameters())


def test_importance_prints_a_ranked_table(model, capsys):
    found = rg.inspection.head_importance(model, loss, exact=True, progress=True)
    first, header, *rows = str(found).splitlines()
    assert first == f"8 heads, loss {found.loss:.5f}"
    assert len(rows) == 8
    name, head = found.ranking()[0]
    assert rows[0].split()[:2] == [name, str(head)]
    assert rows[0].endswith(f"{found.ablation[name][head]:+.5f}")


def test_frozen_models_can_be_weighed(model):
    want = rg.inspection.head_importance(model, loss).first_order
    got = rg.inspection.head_importance(model.requires_grad_(False), loss).first_order
    for name in want:
        assert_close(got[name], want[name])


@pytest.mark.usefixtures("users_view")
def test_invalid_arguments_of_importance_raise(model):
    with pytest.raises(LookError, match="at: needs an attention that ran, got 'encoder"):
        rg.inspection.head_importance(model, loss, "encoder.*")
    with pytest.raises(ShapeError, match=r"loss: needs to return a scalar, got \(2, 5, 12\)"):
        rg.inspection.head_importance(model, lambda m: m(TOKENS))
    with pytest.raises(ShapeError, match="loss: needs to require a gradient"):
        rg.inspection.head_importance(model, lambda m: m(TOKENS).sum().detach())
    with pytest.raises(ShapeError, match="loss: needs batches of one size, got 2 .* after 1"):
        rg.inspection.head_importance(model, lambda m: m(TOKENS[:1]).sum() + m(TOKENS).sum())
