"""Translator, LanguageModel, Classifier: information flow, and configs that raise."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.models import (
    Classifier,
    LanguageModel,
    Translator,
    classifier_base,
    classifier_tiny,
    language_base,
    language_small,
    language_tiny,
    nearest_by_cosine,
    translator_base,
    translator_small,
    translator_tiny,
)

SIZES = {"dim": 16, "heads": 4}
VARIANTS = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "max_positions": 20},
    "rotary": {"positions": "none", "rope_theta": 10000.0, "kv_heads": 2},
    "buckets": {"positions": "none", "relative_bias": "buckets"},
    "toeplitz": {"relative_bias": "toeplitz", "max_distance": 4},
    "keys": {"relative_bias": "keys", "max_distance": 4},
    "alibi": {"relative_bias": "alibi", "sinks": True},
    "post-LN": {"norm_first": False, "final_norm": False, "activation": "relu"},
}
variants = pytest.mark.parametrize("variant", VARIANTS)


def draw(*shape):
    return torch.randint(0, 12, shape)


def language(variant, **changes):
    config = language_tiny(12, **{**SIZES, **VARIANTS[variant], **changes})
    return LanguageModel(config).eval()


def translator(variant, **changes):
    config = translator_tiny(12, **{**SIZES, **VARIANTS[variant], **changes})
    return Translator(config).eval()


def close(got, want):
    assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_the_base_translator_has_the_63_million_numbers_of_the_paper():
    with torch.device("meta"):
        model = Translator(translator_base(vocab=37000))
    count = sum(p.numel() for p in model.parameters())
    attention, ffn, norm = 4 * (512**2 + 512), 2099712, 2 * 512
    layers = 6 * (attention + ffn + 2 * norm) + 6 * (2 * attention + ffn + 3 * norm)
    assert count == layers + 37000 * 512  # 63 million, the paper says 65
    assert 62e6 < count < 65e6


def test_the_initial_loss_is_close_to_chance():
    # tied, it starts by repeating what it reads: the residual stream still holds the token
    for config in (language_tiny(64, tied=False), language_small(64, layers=2, tied=False)):
        logits = LanguageModel(config).eval()(draw(4, 32))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), draw(4, 32).flatten())
        assert abs(loss - torch.tensor(64.0).log()) < 1


@variants
@pytest.mark.parametrize(("now", "time"), [(0, 1), (0, 5), (3, 8)])
def test_causal_outputs_do_not_depend_on_later_tokens(variant, now, time):
    model, tokens = language(variant), draw(2, time)
    before = model(tokens)[:, : now + 1]
    close(model(tokens[:, : now + 1]), before)
    tokens[:, now + 1 :] = 7
    close(model(tokens)[:, : now + 1], before)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_window_masks_distant_tokens(window):
    model, tokens = language("rotary", window=window, layers=1), draw(1, 8)
    last = model(tokens)[:, -1]
    other = tokens.clone()
    other[:, : 8 - window] = (tokens[:, : 8 - window] + 1) % 12
    close(model(other)[:, -1], last)
    other[:, 8 - window] = (tokens[:, 8 - window] + 1) % 12
    assert not torch.allclose(model(other)[:, -1], last, atol=1e-4)


@variants
@pytest.mark.parametrize(("source", "target", "extra"), [(1, 1, 1), (5, 3, 2)])
def test_padding_changes_nothing(variant, source, target, extra):
    model, x, y = translator(variant), draw(2, source), draw(2, target)
    padded = torch.cat([x, draw(2, extra)], 1)
    close(model(padded, y, torch.full((2,), source)), model(x, y))


@variants
def test_step_by_step_is_teacher_forcing(variant):
    model, source, target, kept = translator(variant), draw(1, 5), draw(1, 6), {}

    def cache(site, k, v):
        old = kept.get(site, (k[..., :0, :], v[..., :0, :]))
        kept[site] = torch.cat([old[0], k], -2), torch.cat([old[1], v], -2)
        return kept[site]

    memory = model.decoder.project_memory(model.encode(source))
    steps = [model.decode(target[:, t : t + 1], memory, offset=t, cache=cache) for t in range(6)]
    close(torch.cat(steps, 1), model(source, target))


def test_one_encoding_decoded_twice_is_bit_identical():
    model, source, lengths = translator("sinusoidal"), draw(2, 5), torch.tensor([5, 2])
    memory = model.encode(source, lengths)
    copy = memory.clone()
    for start in (3, 4):
        target = torch.full((2, 1), start)
        assert torch.equal(model.decode(target, memory, lengths), model(source, target, lengths))
    assert torch.equal(memory, copy)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_classifier_does_not_see_padding(pooling):
    model = Classifier(classifier_tiny(12, 3, pooling=pooling, **SIZES)).eval()
    x, lengths = draw(2, 6), torch.tensor([6, 4])
    close(model(x, lengths)[1:], model(x[1:, :4]))


def test_without_positions_a_mean_does_not_know_order():
    model = Classifier(classifier_tiny(12, 3, positions="none", **SIZES)).eval()
    x = draw(1, 6)
    close(model(x.flip(1)), model(x))


def test_nearest_neighbours_ignore_the_vector_norm():
    vectors = torch.randn(9, 4)
    alike, which = nearest_by_cosine(3.0 * vectors, vectors, count=2)
    assert which[:, 0].tolist() == list(range(9))
    assert_close(alike[:, 0], torch.ones(9))
    assert (alike[:, 1] <= alike[:, 0]).all()


def test_empty_sources_and_targets():
    model = translator("sinusoidal")
    assert model(draw(2, 0), draw(2, 3)).shape == (2, 3, 12)
    assert model(draw(2, 3), draw(2, 0)).shape == (2, 0, 12)
    assert not model(draw(2, 3), draw(2, 3), torch.tensor([3, 0])).isnan().any()
    assert language("rotary")(draw(1, 0)).shape == (1, 0, 12)


def test_a_tied_output_is_the_embedding():
    model = language("learned")
    model(draw(1, 3)).sum().backward()
    assert "readout.weight" not in model.state_dict()
    assert "readout.weight" in language("learned", tied=False).state_dict()


def test_every_part_learns():
    model = translator(
        "keys", tied=False, shared_embedding=False, sinks=True, gated=True, output_bias=True
    )
    model(draw(2, 6), draw(2, 6)).pow(2).sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None}
    assert silent == set()
    flat = {name for name, p in model.named_parameters() if not p.grad.abs().sum() > 0}
    assert all(name.endswith("to_k.bias") for name in flat)  # adds the same to every score


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_translator_learns_to_say_it_backwards(norm_first):
    model = translator("sinusoidal", layers=1, decoder_layers=1, dim=32, norm_first=norm_first)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(100):
        source = torch.randint(2, 12, (32, 4))
        said = torch.cat([torch.ones(32, 1).long(), source.flip(1)], 1)
        logits = model(source, said[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), said[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.5  # guessing costs log 10 = 2.3


@pytest.mark.gpu
@variants
def test_a_gpu_gives_the_same_numbers(variant):
    model, x, lengths = translator(variant), draw(2, 6), torch.tensor([6, 3])
    want, memory = model(x, x, lengths), model.encode(x, lengths)
    model, x, lengths = model.cuda(), x.cuda(), lengths.cuda()
    assert_close(model(x, x, lengths).cpu(), want, atol=1e-3, rtol=1e-3)
    half = model.bfloat16().encode(x, lengths).float().cpu()
    real = torch.arange(6) < lengths.cpu()[:, None]
    assert_close(half[real], memory[real], atol=0.1, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [language_base(50), translator_base(50), translator_small(50), classifier_base(50, 3)],
    ids=lambda config: type(config).__name__,
)
def test_presets_build(config):
    kind = {"L": LanguageModel, "T": Translator, "C": Classifier}[type(config).__name__[0]]
    assert sum(p.numel() for p in kind(config).parameters()) > 1e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "dim: needs a multiple of heads=3, got 16"),
        ({"kv_heads": 3}, "kv_heads: needs a divisor of 4, got 3"),
        ({"layers": 0}, "layers: needs a whole number of 1 or more, got 0"),
        ({"dim": -4}, "dim: needs a whole number of 1 or more, got -4"),
        ({"dropout": 1.0}, "dropout: needs 0 ≤ rate < 1, got 1.0"),
        ({"activation": "tanh"}, "activation: needs one of relu, .* got 'tanh'"),
        ({"relative_bias": "shaw"}, "relative_bias: needs one of none, buckets, .* got 'shaw'"),
        ({"positions": "rotary"}, "positions: needs one of sinusoidal, .* got 'rotary'"),
        ({"target_vocab": 13}, "target_vocab: needs source_vocab=12 .* try shared_embedding=False"),
        ({"segments": -1}, "segments: needs 0 or more, got -1"),
    ],
)
def test_configs_that_cannot_be(change, message, users_view):
    with pytest.raises(ConfigError, match=message):
        translator_tiny(12, **{**SIZES, **change})


def test_a_config_is_not_changed_after_it_was_checked():
    config = language_tiny(12)
    with pytest.raises(FrozenInstanceError):
        config.heads = 3
    assert replace(config, heads=8).resolved_head_dim == 8


def test_inputs_that_cannot_be(users_view):
    with pytest.raises(ShapeError, match="positions: needs at most 19, .* got 20"):
        language("learned")(draw(1, 21))
    with pytest.raises(ShapeError, match="tokens: needs 0 … 11, the vocabulary, got 12"):
        language("learned")(torch.tensor([[12]]))
    with pytest.raises(ShapeError, match="tokens: needs at least one to pool"):
        Classifier(classifier_tiny(12, 3, **SIZES))(draw(1, 0))
    with pytest.raises(ShapeError, match="lengths: needs one for each of 2 sequences, got 1"):
        language("learned")(draw(2, 3), torch.tensor([3]))
    with pytest.raises(ShapeError, match="count: needs 1 to 3, the number of vectors, got 4"):
        nearest_by_cosine(torch.zeros(2), torch.zeros(3, 2), count=4)
    with pytest.raises(ConfigError, match="classes: needs 0 or more"):
        classifier_tiny(12, -1)
