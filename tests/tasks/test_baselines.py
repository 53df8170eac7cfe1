"""Baselines: their weights are the optimum, and a training is compared with them."""

import json
import math
import re
from collections import defaultdict
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import regard as rg
from regard import tasks
from regard.data import Pair
from regard.errors import ConfigError
from regard.ops import crf_log_likelihood
from regard.runs import fit, override_settings
from regard.runs.baseline import BaselineScores
from regard.tasks.baselines import tag_chain
from regard.tasks.baselines.linear_text import fit_linear_text
from regard.tasks.baselines.tag_chain import fit_crf_tagger, make_batches
from regard.tasks.language.baseline import byte_losses, name_beside_xz
from regard.tasks.translation.baseline import pairs_baseline, word_dictionary
from regard.train.linear import SparseRows, fit_best_linear, fit_linear
from regard.train.metrics import Tally

WORDS = ["red", "blue", "green", "one", "two", "three"]


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5))
def test_sparse_rows_multiply_as_dense_ones(rows):
    starts = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0)[:-1]])
    columns = torch.tensor([x for row in rows for x in row], dtype=torch.long)
    values = torch.randn(len(columns), dtype=torch.double)
    dense = torch.zeros(len(rows), 5, dtype=torch.double)
    places = [n for n, row in enumerate(rows) for _ in row]
    dense.index_put_((torch.tensor(places, dtype=torch.long), columns), values, accumulate=True)
    sparse, x = SparseRows(columns, starts, values, 5), torch.randn(5, 3).double()
    assert_close(sparse @ x, dense @ x)
    y = torch.randn(len(rows), 2).double()
    assert_close(sparse.mT @ y, dense.mT @ y)


@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_logistic_regression_is_at_its_optimum(penalty):
    x, labels = torch.randn(50, 4).double(), torch.randint(3, (50,))
    model = fit_linear(x, labels, 3, penalty)
    weight, bias = (y.requires_grad_() for y in model)
    loss = F.cross_entropy(x @ weight + bias, labels, reduction="sum")
    (loss + penalty / 2 * weight.square().sum()).backward()
    gradients = [x.grad.abs().max() for x in (weight, bias) if x.grad is not None]
    assert max(gradients) < 1e-2  # of a sum over 50 examples


def test_the_penalty_is_that_of_the_lowest_loss_on_the_valid_split():
    x, labels = torch.randn(60, 5).double(), torch.randint(2, (60,))
    halves = (x[:30], labels[:30]), (x[30:], labels[30:])
    best = fit_best_linear(*halves, 2, penalties=(10.0, 0.01))  # labels are noise: the stronger
    assert_close(best.weight, fit_linear(*halves[0], 2, 10.0).weight)


def test_texts_of_unknown_words_are_given_the_class_of_the_biases():
    data = ["red one", "red two", "blue one"], [0, 0, 1]
    model = fit_linear_text(data, data, 2)
    assert_close(model.logits(["~", ""])[0], model.bias)
    assert model.logits(["RED!", "blue"]).argmax(-1).tolist() == [0, 1]


def test_the_crf_is_at_its_optimum_and_batches_by_length_do_not_matter():
    sentences = [WORDS[:n] for n in (1, 2, 6, 3, 1)]
    tags = [[n % 3 for n in range(len(x))] for x in sentences]
    tagger = fit_crf_tagger(sentences, tags, 3).requires_grad_()
    parameters = [tagger.weight, *tagger.chain]
    loss = tag_chain.PENALTY / 2 * torch.stack([x.square().sum() for x in parameters]).sum()
    for words, row in zip(sentences, tags, strict=True):  # one by one
        (batch,) = make_batches([words], tagger.numbers)
        emissions = tagger.emissions(batch)
        loss = (
            loss
            - crf_log_likelihood(emissions, torch.tensor([row]), tagger.chain, batch.lengths).sum()
        )
    gradients = torch.autograd.grad(loss, parameters)
    assert max(float(x.abs().max()) for x in gradients) < 0.05
    assert tagger.tag(sentences) == tags
    assert tagger.tag([[], ["unseen"]])[0] == []


def test_a_comparison_is_by_the_same_examples():
    def tally(correct):
        rows = torch.tensor([[float(x), 1.0] for x in correct])
        return Tally(rows, lambda x: {"accuracy": x[0] / x[1], "error": 1 - x[0] / x[1]})

    right = [n % 4 > 0 for n in range(200)]
    more = [True] * 200
    baseline = tally(right)
    stored = BaselineScores("linear model", 1.0, baseline.scores(), baseline.rows.tolist())
    assert (
        "not better, the difference is 0.000 to 0.000"
        in stored.compare(tally(right), "accuracy")["verdict"]
    )
    verdict = stored.compare(tally(more), "accuracy")["verdict"]
    assert verdict.startswith("accuracy 1.000, baseline 0.750 (linear model): better by 0.1")
    assert ": better by" in stored.compare(tally(more), "error")["verdict"]
    worse = tally([n % 2 for n in range(200)])
    assert ": worse by" in stored.compare(worse, "error")["verdict"]
    assert "--baseline-only" in stored.compare(worse, "error", can_keep=True)["verdict"]
    kept = stored.compare(tally(more), "error", can_keep=True)["verdict"]
    assert "--baseline-only" not in kept


@pytest.fixture
def labels(tmp_path):
    """Texts whose class is in one word."""
    lines = [f"{a} {b} {c},{a}" for a in WORDS[:3] for b in WORDS[3:] for c in WORDS[3:]] * 9
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *lines]))
    (tmp_path / "task.toml").write_text(
        'task = "labels"\n[data]\ntrain = "texts.csv"\nvalid = "texts.csv"\n'
        'test = "texts.csv"\ntokenizer_type = "words"\n'
        '[model]\ntype = "classifier"\nlayers = 1\ndim = 16\nheads = 2\npooling = "mean"\n'
        "[train]\nsteps = 2\n"
    )
    return tmp_path


def test_a_training_says_first_and_last_what_it_has_to_beat(labels, capsys):
    recipe = override_settings(tasks.recipe(str(labels / "task.toml")), ["device=cpu"])
    fit(recipe, labels / "run", show=True)
    out = capsys.readouterr().out
    assert out.index("baseline, linear model on n-grams: accuracy 1.000") < out.index("worse by")
    result = json.loads((labels / "run" / "result.json").read_text())
    assert result["baseline"]["scores"]["accuracy"] == 1.0
    assert "(linear model on n-grams): worse by" in result["baseline"]["verdict"]
    for file in ("CARD.md", "report.html"):
        text = (labels / "run" / file).read_text()
        verdict = (
            r"0\.\d+ ± 0\.0\d+, baseline 1\.000 ± 0\.0\d+ \(linear model on n-grams\): worse by"
        )
        assert re.search(verdict, text), file


def test_a_resumed_training_takes_the_baseline_of_before_and_skip_leaves_it_out(
    labels, monkeypatch
):
    recipe = override_settings(tasks.recipe(str(labels / "task.toml")), ["device=cpu"])
    fit(recipe, labels / "run", skip=["report", "card"])
    monkeypatch.setattr(tasks.LabelsTask, "baseline", lambda *_: pytest.fail("computed again"))
    fit(labels / "run", settings=["steps=3"], skip=["report", "card"])
    assert "baseline" in json.loads((labels / "run" / "result.json").read_text())
    fit(recipe, labels / "other", skip=["report", "card", "baseline"])
    assert "baseline" not in json.loads((labels / "other" / "result.json").read_text())


def test_model_1_finds_the_dictionary_that_made_the_pairs():
    rng = Random(0)
    words = {f"s{n}": f"t{n}" for n in range(30)}
    pairs = [Pair(" ".join(x), " ".join(words[w] for w in x), "t") for x in (
        rng.sample(list(words), 5) for _ in range(80)
    )]  # fmt: skip
    assert word_dictionary(pairs) == words
    shuffled = [Pair(x.source, " ".join(rng.sample(x.target.split(), 5)), "t") for x in pairs]
    assert word_dictionary(shuffled) == words  # it has no order of words


def test_model_1_maximises_the_likelihood():
    """Each pass of EM makes the likelihood of the texts larger, as the definition has it."""
    pairs = [("a b", "x y"), ("a c", "x z"), ("b", "y"), ("c c", "z")]
    table = {}
    for _ in range(6):
        counts = defaultdict(lambda: defaultdict(float))
        for source, target in pairs:
            words = ["", *source.split()]
            for t in target.split():
                p = [table.get(s, {}).get(t, 1.0 if not table else 0.0) for s in words]
                for s, x in zip(words, p, strict=True):
                    counts[s][t] += x / sum(p)
        table = {s: {t: x / sum(y.values()) for t, x in y.items()} for s, y in counts.items()}
    want = {s: max(y, key=lambda t, y=y: y[t]) for s, y in table.items() if s}
    assert word_dictionary([Pair(*x, "t") for x in pairs]) == want == {"a": "x", "b": "y", "c": "z"}


def test_the_baseline_of_pairs_is_the_better_one_on_the_valid_split():
    texts = ("eins zwei", "one two"), ("zwei drei", "two three"), ("drei", "three")
    train = [Pair(*x, "en") for x in texts]
    name, texts = pairs_baseline(train, train, ["drei vier!"])
    assert (name, texts) == ("dictionary of IBM Model 1", ["three vier!"])
    same = [Pair(x.source, x.source, "en") for x in train]
    assert pairs_baseline(train, same, ["drei vier!"]) == ("copy of the source", ["drei vier!"])
    assert word_dictionary([]) == {}


SENTENCES = [("in", "New", "York"), ("Bonn", "is", "a\u00a0b"), ("",), ("é", "in")]


def test_a_tagger_over_bytes_tags_the_words_as_they_are():
    tags = [[0, 1, 2], [1, 0, 0], [0], [0, 0]]
    tagger = fit_crf_tagger(SENTENCES, tags, 3)
    words = rg.data.ByteTokenizer()
    rows = [[x for word in words_ for x in words.encode(f" {word}")] for words_ in SENTENCES]
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(x) for x in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    best, logits = tagger.decode(tokens, lengths), tagger(tokens, lengths)
    for n, (row, want) in enumerate(zip(rows, tags, strict=True)):
        starts = [i for i, x in enumerate(row) if x == tag_chain.SPACE]
        assert best[n, starts].tolist() == want == tagger.tag([SENTENCES[n]])[0]
        assert_close(logits[n, starts].exp().sum(-1), torch.ones(len(want)))


def test_the_baseline_is_a_run_that_is_applied_evaluated_and_reported(labels, capsys):
    recipe = tasks.recipe(str(labels / "task.toml"))
    outcome = fit(recipe, labels / "base", show=True, baseline_only=True)
    assert outcome.scores["accuracy"] == 1.0
    assert "baseline, linear model on n-grams" in capsys.readouterr().out
    run = rg.load(labels / "base", device="cpu")
    (classes,) = run.label("RED one two!")
    assert classes[0][0] == "red"
    assert run.evaluate("valid").scores["accuracy"] == 1.0
    fitted: Any = recipe.data.fit(0).fit_baseline()
    rows = torch.tensor([fitted.tokenizer.encode("red one?"), fitted.tokenizer.encode("~ ~ ~ ~ ")])
    assert torch.equal(run.model(rows), fitted.model(rows))
    assert {x.suffix for x in (labels / "base").iterdir()} == {
        ".md",
        ".html",
        ".json",
        ".safetensors",
        ".toml",
    }  # noqa: E501
    for file in ("CARD.md", "report.html"):
        text = (labels / "base" / file).read_text()
        assert re.search(r"ccuracy 1\.000 ± 0\.0\d+: the baseline, linear model", text), file
    with pytest.raises(ConfigError, match="needs one that is trained, got the baseline"):
        fit(labels / "base")
    with pytest.raises(
        ConfigError, match="needs one with a baseline that can be applied, got glyp"
    ):
        fit(tasks.recipe("glyphs"), labels / "none", baseline_only=True)
    with pytest.raises(ConfigError, match="curve: needs the baseline, got it skipped"):
        fit(recipe, labels / "none", baseline_only=True, curve=True)
    with pytest.raises(ConfigError, match="recipe: needs a Recipe for a new run"):
        fit(labels / "base", baseline_only=True)


def test_the_baseline_of_tags_is_a_run_with_the_tags_of_the_best_sequence(tmp_path):
    lines = [f"{a} O\nNew B-CITY\n{b} I-CITY\n" for a in WORDS[:3] for b in WORDS[3:]]
    (tmp_path / "t.conll").write_text("\n".join(lines * 4))
    file = str(tmp_path / "t.conll")
    data = tasks.TaggingTask(train=file, valid=file, test=file)
    config = rg.models.classifier_tiny(vocab=1, classes=1, pooling="none")
    train = rg.train.TrainConfig(steps=1, device="cpu", monitor="f1")
    recipe = tasks.Recipe(name="t", data=data, model=config, train=train)
    assert fit(recipe, tmp_path / "run", skip=["report"], baseline_only=True).scores["f1"] == 1.0
    tagged = rg.load(tmp_path / "run", device="cpu").tag(["red New three", "blue", ""])
    assert tagged[0].spans[0].text == "New three"
    assert [len(x) for x in tagged] == [3, 1, 0]
    assert 0.5 < tagged[0].confidence <= 1


def test_the_baseline_of_text_is_a_run_that_generates_alone_and_together(tmp_path):
    (tmp_path / "data").mkdir()
    for n in range(40):
        lines = [f"stir the {a} and the {b} for {n} minutes." for a in WORDS for b in WORDS[:2]]
        (tmp_path / "data" / f"{n}.txt").write_text("\n".join(lines))
    data = tasks.TextTask(folder=str(tmp_path / "data"), length=32, overlap=8)
    config, train = rg.models.language_tiny(vocab=1), rg.train.TrainConfig(steps=1)
    recipe = tasks.Recipe(name="t", data=data, model=config, train=train)
    outcome = fit(recipe, tmp_path / "run", skip=["report"], baseline_only=True)
    fitted: Any = data.fit_baseline()
    nats = torch.cat([byte_losses(fitted.model, text) for text in data.texts("test")])
    bits = float(nats.mean()) / math.log(2)
    assert outcome.scores["bits_per_byte"] == pytest.approx(bits, rel=0.03)  # and ends of files
    assert fitted.name in (tmp_path / "run" / "CARD.md").read_text()
    run = rg.load(tmp_path / "run", device="cpu")
    prompts = ["stir the red", "s", "a word that it never saw: Ω"]
    alone = [run.generate(prompt, max_new_tokens=20) for prompt in prompts]
    assert alone[0][:5] in (" for ", " and ")
    assert run.apply(prompts, max_new_tokens=20) == alone


def test_an_n_gram_model_step_by_step_is_the_model_on_the_whole():
    rows = torch.randint(3, 9, (3, 40))
    model = rg.models.fit_ngrams(list(rows), vocab=10, order=4)
    stepper, whole = rg.decode.make_stepper(model), model(rows[:, :7])
    state = stepper.start(rows[:, :1])
    for n in range(7):
        logits, state = stepper.step(rows[:, n], state)
        assert_close(logits, whole[:, n])
    lengths = torch.tensor([5, 1, 7])
    state = stepper.start(rows[:, :7], lengths)
    last = rg.decode.last_tokens(rows[:, :7], lengths)
    logits, _ = stepper.step(last, stepper.select(state, torch.arange(3)))
    assert_close(logits, whole[torch.arange(3), lengths - 1])


def test_where_xz_is_better_the_name_says_that_it_cannot_be_applied():
    text = "".join(Random(0).choices("abcdefgh", k=3000))  # only a copy is predictable
    model = rg.models.fit_ngrams([torch.tensor([4 + ord(x) for x in text])], vocab=260, order=2)
    name = name_beside_xz(model, [text], [text])
    assert name == "Kneser-Ney n-grams of 2 bytes; xz is better and cannot be applied"
    other = "".join(Random(1).choices("abcdefgh", k=3000))
    assert name_beside_xz(model, [text], [other]) == "Kneser-Ney n-grams of 2 bytes"
