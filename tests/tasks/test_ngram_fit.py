import random

import pytest
import torch

from regard import models
from regard.ops import crf_decode
from regard.runs.contents import build_model
from regard.tasks import Recipe
from regard.tasks.labels import LabelsTask
from regard.tasks.ngram_fit import fit_mix
from regard.tasks.tagging import TaggingTask
from regard.train import TrainConfig

STEMS = ["bal", "kor", "mun", "tes", "vil", "wan", "zor", "dep"]


def words(rng, end):
    return "".join(rng.choices(STEMS, k=3)) + end


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    """Texts of words that hardly repeat; the end of one of them decides."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("labels") / "data.csv"
    rows = [
        f"{words(rng, '')} {words(rng, end)} {words(rng, '')},{label}\n"
        for _ in range(200) for end, label in (("ing", "verb"), ("ness", "noun"))
    ]  # fmt: skip
    path.write_text("text,label\n" + "".join(rows))
    return built(LabelsTask(train=str(path), vocab_size=300), "mean")


@pytest.fixture(scope="module")
def tags(tmp_path_factory):
    """A capital begins a name, which the next word, of any kind, continues."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("tags") / "data.conll"
    rows = ""
    for _ in range(300):
        plain = [f"{words(rng, '')}\tO\n" for _ in range(rng.randint(1, 3))]
        name = [f"{words(rng, '').title()}\tB-NAME\n", f"{words(rng, '')}\tI-NAME\n"]
        rows += "".join([*plain, *name, *plain]) + "\n"
    path.write_text(rows)
    return built(TaggingTask(train=str(path), vocab_size=300), "none")


def built(task, pooling):
    data = task.fit(0)
    config = models.classifier_tiny(vocab=1, classes=1, pooling=pooling, ngrams=1 << 14)
    recipe = Recipe(name="a", data=data, model=config, train=TrainConfig(steps=1))
    tokenizer = data.tokenizer(0)
    return data, tokenizer, build_model(recipe, tokenizer).eval()


@torch.no_grad()
def test_texts_are_classified_by_the_ends_of_new_words_before_any_training(labels):
    data, tokenizer, model = labels
    assert data.evaluator(tokenizer, "valid")(model)["accuracy"] == 1
    assert data.evaluator(tokenizer, "test")(model)["accuracy"] == 1


@torch.no_grad()
def test_new_words_are_tagged_by_shape_and_neighbour_before_any_training(tags):
    data, tokenizer, model = tags
    assert data.evaluator(tokenizer, "valid")(model)["f1"] == 1
    assert data.evaluator(tokenizer, "test")(model)["f1"] == 1
    sentence = data.tag(model, tokenizer, [["balkor", "Munvil", "deptes"]])[0]
    assert [tag for _, tag in sentence] == ["O", "B-NAME", "I-NAME"]
    assert 0.5 < sentence.confidence <= 1


@torch.no_grad()
def test_in_training_the_network_stands_alone(labels):
    model, tokens = labels[2], torch.tensor([[1, 5, 6]])
    before, model.mix.data = model.mix.data, torch.tensor([1.0, 0.0])
    network = model(tokens)
    model.mix.data = before
    for layer in model.train().modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    torch.testing.assert_close(model(tokens).log_softmax(-1), network)
    linear = model.eval().ngrams(tokens)
    torch.testing.assert_close(model(tokens), before[0] * network + before[1] * linear)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["labels", "tags"])
def test_the_mix_leaves_out_what_tells_nothing(kind, request):
    data, tokenizer, model = request.getfixturevalue(kind)
    rows, before = data.encoded(tokenizer, "valid"), model.mix.tolist()
    fit_mix(model, rows)
    assert model.mix[1] > 0.5  # n-grams decide, the untrained network does not
    weight = model.ngrams.weight.clone()
    model.ngrams.weight.data.zero_()
    fit_mix(model, rows)
    assert model.mix[0] >= 0
    model.ngrams.weight.data.copy_(weight)
    model.mix.data = torch.tensor(before)


@torch.no_grad()
def test_the_chain_is_mixed_as_the_ngrams_are(tags):
    model = tags[2]
    before, model.mix.data = model.mix.data, torch.tensor([0.0, 2.0])
    for mixed, fitted in zip(model.tag_chain, model.ngrams.chain, strict=True):
        torch.testing.assert_close(mixed, 2 * fitted)
    emissions = torch.zeros(1, 3, 3)
    assert crf_decode(emissions, model.tag_chain, torch.tensor([3])).shape == (1, 3)
    model.mix.data = before
