"""Linear attention in the place of self-attention: padding, packed documents, what it refuses."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from regard import look, models, nn, ops
from regard.decode import make_stepper
from regard.errors import ConfigError, ShapeError
from regard.ops import Causal, Documents, Local, Padding
from regard.ops.mixers import intercepting_mixers

each_mixer = pytest.mark.parametrize("mixer", ["gated_delta", "retention"])


def layer(mixer: str, **options) -> nn.LinearAttention:
    made = nn.LinearAttention(8, 2, mixer=mixer, **options).double()  # pyright: ignore[reportArgumentType]
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def test_the_gated_delta_rule_by_its_equation():
    made, x = layer("gated_delta"), torch.randn(1, 5, 8).double()
    q, k, v = (f(x)[0].view(5, 2, 4) for f in (made.to_q, made.to_k, made.to_v))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    assert made.to_beta is not None
    assert made.to_decay is not None
    beta, decay = made.to_beta(x)[0].sigmoid(), torch.exp(-F.softplus(made.to_decay(x)[0]))
    outs = []
    for h in range(2):
        state, reads = torch.zeros(4, 4).double(), []
        for t in range(5):
            erase = torch.eye(4).double() - beta[t, h] * torch.outer(k[t, h], k[t, h])
            state = decay[t, h] * state @ erase + beta[t, h] * torch.outer(v[t, h], k[t, h])
            reads.append(state @ q[t, h])
        outs.append(torch.stack(reads))
    y = made.norm(torch.stack(outs, 1)).flatten(1)
    assert_close(made(x)[0], made.to_out(y))


@each_mixer
def test_padding_on_either_side_changes_nothing(mixer):
    made, x = layer(mixer), torch.randn(2, 7, 8).double()
    right = made(x, mask=Causal() & Padding(torch.tensor([4, 7])))
    assert_close(right[0, :4], made(x[:1, :4])[0])
    assert_close(right[1], made(x[1:])[0])
    left = made(x, mask=Padding(torch.tensor([7, 7]), torch.tensor([3, 0])))
    assert_close(left[0, 3:], made(x[:1, 3:])[0])
    assert_close(left[1], made(x[1:])[0])


@each_mixer
def test_packed_documents_do_not_see_each_other(mixer):
    made, x = layer(mixer), torch.randn(1, 7, 8).double()
    packed = made(x, mask=Causal() & Documents(torch.tensor([[0, 0, 0, 1, 1, 1, 1]])))
    assert_close(packed, torch.cat([made(x[:, :3]), made(x[:, 3:])], 1))


@each_mixer
def test_outputs_do_not_depend_on_later_tokens(mixer):
    made, x = layer(mixer, rope_theta=100.0), torch.randn(3, 2, 6, 8).double()
    assert_close(made(x)[..., :4, :], made(x[..., :4, :]))
    assert_close(made(x)[1, 1], made(x[1, 1]))


def test_each_layer_of_a_model_passes_the_interception_point():
    model = models.LanguageModel(models.language_delta(11, layers=2, dim=8, heads=2)).eval()
    seen = []

    def count(mixer, proceed):
        seen.append(mixer.q.shape)
        return proceed(mixer)

    with intercepting_mixers(count):
        model(torch.tensor([[1, 2, 3]]))
    assert seen == [(1, 2, 3, 4)] * 2


@pytest.mark.usefixtures("users_view")
def test_what_it_does_not_compute_is_refused_by_name():
    made, x = layer("retention"), torch.randn(1, 3, 8).double()
    for mask in (Local(1), Causal() & Local(1), torch.ones(3, 3).bool()):
        with pytest.raises(ShapeError, match="mask: needs Causal, Padding or Documents"):
            made(x, mask=mask)
    with pytest.raises(ShapeError, match="bias: needs None"):
        made(x, bias=ops.ALiBi(torch.ones(2)))
    with pytest.raises(ShapeError, match="dim: needs a multiple of heads=3"):
        nn.LinearAttention(8, 3)
    config = models.language_delta(11, layers=1, dim=8, heads=2)
    changes = {"kv_heads": 1, "softcap": 2.0, "sinks": True, "scale": 1.0, "qk_norm": "head"}
    for name, value in (changes | {"relative_bias": "alibi", "attention_dropout": 0.1}).items():
        with pytest.raises(ConfigError, match=f"{name}: needs .* with mixer='gated_delta'"):
            replace(config, **{name: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="mixer: needs one of attention, gated_delta, retention"):
        replace(config, mixer="mamba")  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("users_view")
def test_a_hugging_face_folder_cannot_hold_it(tmp_path):
    sizes = {"layers": 1, "dim": 8, "heads": 2, "kv_heads": None}
    config = models.language_small(11, mixer="gated_delta", **sizes)
    with pytest.raises(ConfigError, match=r"llama \(mixer: needs 'attention'"):
        models.save_pretrained(models.LanguageModel(config), tmp_path)


@each_mixer
def test_look_records_it_and_its_map_gives_the_output(mixer):
    config = models.language_delta(11, layers=2, dim=8, heads=2, mixer=mixer)
    model, tokens = models.LanguageModel(config).eval(), torch.randint(11, (2, 9))
    with look(model) as sight:
        recorded = model(tokens, torch.tensor([9, 5]))
    assert torch.equal(recorded, model(tokens, torch.tensor([9, 5])))
    assert sight.mixer_names == ["decoder.0.self", "decoder.1.self"]
    assert not sight.skipped
    site = sight.mixers[0]
    assert_close(site.weights() @ site.mixer.v, site.out, atol=1e-5, rtol=1e-4)
    assert (site.weights()[1, :, :, 5:] == 0).all()  # padding writes nothing


def test_steps_of_generation_are_those_of_the_whole_text():
    model = models.LanguageModel(models.language_delta(11, layers=2, dim=8, heads=2)).eval()
    stepper, tokens = make_stepper(model), torch.randint(11, (2, 6))
    state, steps = stepper.start(tokens[:, :3], torch.tensor([3, 2])), []  # the second is padded
    for token in tokens[:, 3:].unbind(1):
        logits, state = stepper.step(token, state)
        steps.append(logits)
    short = torch.cat([tokens[1:, :1], tokens[1:, 3:]], 1)
    whole = [model(torch.cat([tokens[:1, :2], tokens[:1, 3:]], 1))[0, 2:], model(short)[0, 1:]]
    assert_close(torch.stack(steps, 1), torch.stack(whole), atol=1e-5, rtol=1e-4)
