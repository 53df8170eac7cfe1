"""N-grams mixed into a language model: the fit of the mix, generation, and what refuses them."""

from random import Random

import pytest
import torch

from regard.errors import ConfigError
from regard.models import LanguageConfig
from regard.runs import fit, load_run
from regard.tasks import Recipe
from regard.tasks.language.text import TextTask
from regard.train.config import TrainConfig


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A few steps on phrases of a small grammar, which n-grams know better at once."""
    folder, rng = tmp_path_factory.mktemp("mixture"), Random(0)
    phrases = ["the cat sat. ", "a dog ran off. ", "some birds sing. "]
    (folder / "text.txt").write_text("".join(rng.choices(phrases, k=400)))
    data = TextTask(
        folder=str(folder / "text.txt"), split_by="halves", tokenizer_type="characters",
        length=16, overlap=4, ngrams=True,
    )  # fmt: skip
    model = LanguageConfig(  # as the recipe of `regard new text`
        vocab=1, layers=1, dim=16, heads=2, positions="none", rope_theta=1e4, norm="rms",
        bias=False, scale_embedding=False,
    )  # fmt: skip
    train = TrainConfig(
        steps=6, warmup=1, batch_tokens=64, evaluate_every=3, save_every=3, device="cpu"
    )
    recipe = Recipe(name="mixture", data=data, model=model, train=train)
    fit(recipe, folder / "run", skip=["report", "card"])
    return load_run(folder / "run")


def loss(run, split, share=None):
    """Of the run, or with one mix everywhere: 1 is the network, 0 the n-grams."""
    fitted = run.model.ngrams.mix.clone()
    if share is not None:
        run.model.ngrams.mix.fill_(share)
    evaluator = run.data.evaluator(run.tokenizer, split)
    value = evaluator.tally(evaluator.predict(run.model)).scores()["loss"]
    run.model.ngrams.mix.copy_(fitted)
    return value


def test_the_fitted_mix_is_better_on_the_valid_split_than_any_one_share(run):
    fitted = loss(run, "valid")
    others = [loss(run, "valid", share) for share in (0.0, 0.02, 0.1, 0.5, 0.9, 1.0)]
    assert fitted <= min(others) + 1e-3
    assert others[0] < others[-1]  # n-grams alone beat a network of six steps


def test_a_step_continues_as_the_whole_text_does(run):
    prompts, size = ["the c", "a dog ran off. some b"], 12
    together = run.pipeline(max_new_tokens=size)(prompts)
    for prompt, text in zip(prompts, together, strict=True):
        ids = run.tokenizer.encode_input(prompt)
        for _ in range(size):
            with torch.no_grad():
                ids.append(int(run.model(torch.tensor([ids]))[0, -1].argmax()))
        assert text == run.tokenizer.decode(ids)[-size:]
        assert text == run.generate(prompt, max_new_tokens=size)


def test_resuming_a_run_without_weights_fits_the_same_ngrams(run):
    tables = run.data.resolve(run.recipe.model, run.tokenizer).ngrams
    assert tables == run.model.config.ngrams != ()


def test_what_cannot_mix_names_the_option(run, tmp_path):
    with pytest.raises(ConfigError, match=r"^ngrams: needs \(\) to export, got \("):
        run.export(tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match=r"ngrams: needs \(\) for a arcee checkpoint"):
        run.save_pretrained(tmp_path / "hub")


def test_the_logit_lens_and_attribution_are_those_of_the_network(run):
    from regard.inspection import logit_attribution, logit_lens, verify

    ids = torch.tensor([run.tokenizer.encode_input("the cat")])
    lens = logit_lens(run.model, ids).logits[-1]
    with torch.no_grad():
        torch.testing.assert_close(run.model.ngrams(lens, ids), run.model(ids))
    assert abs(logit_attribution(run.model, ids, 5).error) < 1e-4
    checks = {check.name: check for check in verify(run.model, ids).results}
    assert checks["lens"].error == 0


def test_valid_and_test_are_the_halves_of_the_last_tenth(tmp_path):
    text = "".join(map(chr, range(200, 400)))
    (tmp_path / "a.txt").write_text(text[:150])
    (tmp_path / "b.txt").write_text(text[150:])
    data = TextTask(folder=str(tmp_path), split_by="halves", tokenizer_type="characters")
    assert data.texts("train") == [text[:180]]
    assert (data.texts("valid"), data.texts("test")) == ([text[180:190]], [text[190:]])
