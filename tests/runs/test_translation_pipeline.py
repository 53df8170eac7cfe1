"""One encoding serves every language; each translation equals that of its language alone."""

from dataclasses import replace

import pytest
import torch

import regard as rg
from regard.data import ByteTokenizer, CharTokenizer
from regard.decode import Sampling
from regard.errors import ConfigError
from regard.runs import Run, TranslationPipeline, generate_run
from regard.tasks import SearchConfig, Translation, recipe, translate_texts
from regard.train import Calibration

TEXTS = ["two days", "a", "three long nights", "one"]


def lively(model: torch.nn.Module) -> torch.nn.Module:
    for p in model.parameters():
        p.data *= 1.6
    return model.eval()


@pytest.fixture(params=["transformer", "gru"])
def run(request) -> Run:
    words = CharTokenizer.train(["abcdefghijklmnop"], languages=("de", "en", "fr", "cs"))
    if request.param == "gru":
        model = rg.models.RecurrentTranslator(rg.models.recurrent_tiny(vocab=words.vocab))
    else:
        model = rg.models.Translator(rg.models.translator_tiny(vocab=words.vocab))
    return Run(None, recipe("phrases"), lively(model), words, [], {})


def writer(**changes) -> Run:
    words = ByteTokenizer()
    model = rg.models.LanguageModel(rg.models.language_tiny(vocab=words.vocab, **changes))
    return Run(None, recipe("stdlib"), lively(model), words, [], {})


# ---- properties


@pytest.mark.parametrize("width", [1, 3])
def test_together_is_each_language_and_text_alone(run, width):
    found = run.translate(TEXTS, to=["fr", "de", "cs"], beam_width=width, max_new_tokens=9)
    assert list(found) == ["fr", "de", "cs"]
    for language, answers in found.items():
        for text, answer in zip(TEXTS, answers, strict=True):
            search = SearchConfig(beam_width=width, max_new_tokens=9)
            alone = translate_texts(run.model, run.tokenizer, [text], [language], search)
            assert alone == [answer]


def test_the_source_is_read_once_for_all_languages(run):
    calls, pipeline = [], TranslationPipeline(run, ["fr", "de", "cs"], max_new_tokens=4)
    run.model.encoder.register_forward_hook(lambda *args: calls.append(1))
    pipeline.translate(TEXTS)
    assert len(calls) == 1
    assert pipeline.counts.texts == len(TEXTS)
    assert pipeline.counts.source_tokens == sum(len(run.tokenizer.encode(t)) + 1 for t in TEXTS)


def test_the_best_come_with_scores_in_order(run):
    for row in TranslationPipeline(
        run, ["fr", "de"], beam_width=4, n_best=3, max_new_tokens=6
    ).translate(TEXTS):
        assert [len(answers) for answers in row] == [3, 3]
        assert all(a.score >= b.score for x in row for a, b in zip(x, x[1:], strict=False))


def test_a_text_is_a_list_of_one(run):
    options = {"to": "de", "max_new_tokens": 3}
    assert run.translate("two", **options) == run.translate(["two"], **options)


def test_a_text_goes_on_as_its_tokens_say_and_letters_come_whole():
    run, how = writer(), Sampling(seed=4)
    pieces = list(generate_run(run, "é", max_new_tokens=30, sampling=how))
    assert "".join(pieces) == run.generate("é", max_new_tokens=30, sampling=how)
    assert all(piece.isprintable() or not piece.startswith("�") for piece in pieces[:-1])
    letters = ByteTokenizer().encode("é€")
    run.model.readout.forward = lambda x, table: (
        torch.nn.functional.one_hot(torch.tensor([[letters.pop(0) if letters else 2]]), 260) * 9.0
    )
    assert list(generate_run(run, "", max_new_tokens=9)) == ["é", "€", ""]


def test_a_text_of_as_many_tokens_as_the_model_reads_is_translated(run):
    pipeline = TranslationPipeline(run, ["de"])
    most = pipeline.max_source_tokens - 1  # and the end
    assert pipeline.refusal("a" * most) == ""
    assert pipeline.refusal("a" * (most + 1)).startswith(f"it needs at most {most + 1} tokens")


def test_an_answer_is_unsure_below_the_threshold_or_without_text(run):
    calibration = Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=9)
    pipeline = TranslationPipeline(replace(run, calibration=calibration), ["de"])
    answers = (("a", 0.5), ("a", 0.499), (" ", 0.9), ("", None))
    unsure = [pipeline.is_unsure(Translation(text, -0.1, True, p)) for text, p in answers]
    assert unsure == [False, True, True, False]  # without a calibration nothing is known


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_what_cannot_be_translated_is_reported(run):
    with pytest.raises(ConfigError, match="to: needs one or more of de fr cs, got 'den'; try de"):
        run.translate(["two"], to=["den"])
    with pytest.raises(ConfigError, match="to: needs one or more of de fr cs, got none"):
        run.translate(["two"])
    with pytest.raises(ConfigError, match="to: needs each language once, got de de"):
        run.translate(["two"], to=["de", "de"])
    with pytest.raises(ConfigError, match="text: needs to fit the model, got '  '; it needs words"):
        run.translate(["two", "  "], to=["de"])
    with pytest.raises(ConfigError, match="got 'a+…'; it needs at most 2048 tokens, got 3001; try"):
        run.translate(["a" * 3000], to=["de"])
    with pytest.raises(ConfigError, match="n_best: needs 1 to beam_width=2, got 3"):
        TranslationPipeline(run, ["de"], beam_width=2, n_best=3)
    with pytest.raises(
        ConfigError, match="run: needs a model that can generate, got a .*; try translate"
    ):
        generate_run(run, "a")


@pytest.mark.usefixtures("users_view")
def test_what_a_language_model_cannot_do_is_reported():
    run = writer(positions="learned", max_positions=8)
    with pytest.raises(
        ConfigError,
        match="run: needs a model that can translate, got a LanguageModel; try generate, look",
    ):
        run.translate(["a"], to=["de"])
    with pytest.raises(
        ConfigError, match="max_new_tokens: needs at most 5 after this prompt, .* got 9"
    ):
        generate_run(run, "ab", max_new_tokens=9)
    assert "".join(generate_run(run, "ab", max_new_tokens=5)) is not None
    tail = replace(run, recipe=recipe("shakespeare"))
    with pytest.raises(ConfigError, match="prompt: needs a text for this model .*, got none"):
        generate_run(tail, "")
