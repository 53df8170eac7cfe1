"""Tagging, labelled texts and images of own files: from a folder and a recipe to a served run."""

import json
import random
import re
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageDraw
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.costs import cost
from regard.data.text.words import measure_word_split
from regard.errors import ConfigError, FileError
from regard.models import Classifier, classifier_tiny
from regard.tasks import TaggedText, TaggingTask
from regard.tasks.annotated_verb import TagOptions
from regard.tasks.class_names import class_tally
from regard.tasks.labels import LabelsTask
from regard.tasks.tagging import tag_tally

CITIES = ("Oslo", "Lima", "New York", "Cairo", "San Jose", "Quito")
PEOPLE = ("Ada", "Grace", "Alan Turing", "Emmy", "Kurt")
GOOD = ("works perfectly", "great battery", "very happy", "arrived quickly", "solid and quiet")
BAD = ("broke at once", "poor sound", "never again", "arrived damaged", "cheap and loud")


def run_cli(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def sentences(count, seed=0):
    """Sentences with BIO tags, made of templates."""
    rng = random.Random(seed)
    for number in range(count):
        person, city = rng.choice(PEOPLE), rng.choice(CITIES)
        frame = rng.choice(
            ("{} moved to {} in {} .", "yesterday {} saw {} {} times .", "{} : {} ( {} )")
        )
        names = {person: "PER", city: "CITY"}
        rows = []
        for word in frame.format("@1", "@2", number).split():
            name = {"@1": person, "@2": city}.get(word)
            parts = name.split() if name else [word]
            for n, part in enumerate(parts):
                rows.append((part, f"{'BI'[n > 0]}-{names[name]}" if name else "O"))
        yield rows


def conll(rows):
    return "".join("".join(f"{word}\t{tag}\n" for word, tag in row) + "\n" for row in rows)


def comments(count, seed=0):
    rng = random.Random(seed)
    for number in range(count):
        good = rng.random() < 0.5
        yield f"order {number}, {rng.choice(GOOD if good else BAD)}", "good" if good else "bad"


def draw_shapes(folder, count, seed=0):
    """Discs, squares and crosses, in colour, in one folder per class."""
    rng = random.Random(seed)
    for number in range(count):
        shape = ("cross", "disc", "square")[number % 3]
        image = Image.new("RGB", (40, 32), tuple(rng.randint(0, 60) for _ in range(3)))
        draw, ink = ImageDraw.Draw(image), tuple(rng.randint(150, 255) for _ in range(3))
        x, y, r = rng.randint(12, 26), rng.randint(12, 20), rng.randint(7, 11)
        if shape == "disc":
            draw.ellipse((x - r, y - r, x + r, y + r), fill=ink)
        elif shape == "square":
            draw.rectangle((x - r, y - r, x + r, y + r), fill=ink)
        else:
            draw.line((x - r, y - r, x + r, y + r), fill=ink, width=3)
            draw.line((x - r, y + r, x + r, y - r), fill=ink, width=3)
        place = folder / shape
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{number}.png")


TEXT_MODEL = """
[model]
type = "classifier"
layers = 1
dim = 32
heads = 2
pooling = "{pooling}"

[train]
steps = 90
batch_tokens = 600
lr = 1e-2
warmup = 10
evaluate_every = 45
save_every = 45
device = "cpu"
"""


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """A run trained by the command line on a CoNLL file, whose data is gone afterwards."""
    folder = tmp_path_factory.mktemp("tags")
    (folder / "data.conll").write_text(conll(sentences(400)))
    (folder / "task.toml").write_text(
        'task = "tagging"\n[data]\ntrain = "data.conll"\nvocab_size = 300\n'
        + TEXT_MODEL.format(pooling="none")
    )
    result = run_cli("train", folder / "task.toml", "--out", folder / "run")
    assert "f1" in result.output
    return folder / "run"


@pytest.fixture(scope="module")
def labeller(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    rows = [f"{verdict};{text}" for text, verdict in comments(400)]
    (folder / "comments.csv").write_text("\n".join(["verdict;comment", *rows]) + "\n")
    (folder / "task.toml").write_text(
        'task = "labels"\n[data]\ntrain = "comments.csv"\ntext_column = "comment"\n'
        'label_column = "verdict"\ntokenizer_type = "characters"\n'
        + TEXT_MODEL.format(pooling="mean").replace("600", "1200")
    )
    run_cli("train", folder / "task.toml", "--out", folder / "run")
    return folder / "run"


IMAGES = """
task = "images"
[data]
path = "shapes"
size = 16
channels = 3
shift = 0

[model]
type = "resnet"
width = 16

[train]
steps = 60
batch_size = 60
lr = 1e-2
warmup = 5
evaluate_every = 30
save_every = 30
device = "cpu"
"""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    draw_shapes(folder / "shapes", 240)
    (folder / "task.toml").write_text(IMAGES)
    run_cli("train", folder / "task.toml", "--out", folder / "run")
    return folder / "run"


# ---- worked numbers


def test_spans_are_those_of_conlleval():
    tags = ["I-A", "I-A", "B-A", "O", "I-B", "I-A", "B-B", "I-B"]
    text = TaggedText((str(n), tag) for n, tag in enumerate(tags))
    assert [span[:3] for span in text.spans] == [
        ("A", 0, 2), ("A", 2, 3), ("B", 4, 5), ("A", 5, 6), ("B", 6, 8)
    ]  # fmt: skip
    assert text.spans[0].text == "0 1"


def test_plain_tags_are_scored_by_token():
    reference = TaggedText([("a", "DET"), ("dog", "NOUN"), ("runs", "VERB"), ("fast", "ADV")])
    answer = TaggedText([("a", "DET"), ("dog", "NOUN"), ("runs", "NOUN"), ("fast", "ADV")])
    assert tag_tally([answer], [reference]).scores() == {"accuracy": 0.75, "f1": 0.75}


def test_macro_f1_is_that_of_sklearn():
    answers, references = list("aabbcd"), list("abbbca")
    # a: 2·1/4, b: 2·2/5, c: 2·1/2, d: 0/1
    want = (0.5 + 0.8 + 1 + 0) / 4
    assert class_tally(answers, references).scores()["macro_f1"] == pytest.approx(want)


def test_the_first_subword_of_a_word_carries_its_tag(tmp_path):
    (tmp_path / "a.conll").write_text(conll(sentences(200)))
    data = TaggingTask(train=str(tmp_path / "a.conll"), tokenizer_type="characters").fit(0)
    assert data.names == ("B-CITY", "B-PER", "I-CITY", "I-PER", "O")
    encode = data.encoder(data.tokenizer(0))
    encoded = encode(rg.data.TaggedTokens(("Oslo", "in"), ("B-CITY", "O")))
    assert encoded["tags"] == [1, 0, 0, 0, 0, 5, 0, 0]  # " Oslo", " in"
    assert len(encoded["tokens"]) == 8


# ---- the model


def test_a_classifier_without_pooling_has_logits_per_token_and_ignores_padding():
    model = Classifier(classifier_tiny(9, 4, pooling="none")).eval()
    tokens = torch.tensor([[4, 5, 6, 0], [4, 5, 6, 7]])
    logits = model(tokens, torch.tensor([3, 4]))
    assert logits.shape == (2, 4, 4)
    torch.testing.assert_close(logits[0, :3], model(tokens[:1, :3])[0])
    with pytest.raises(ConfigError, match="pooler: needs pooling first or mean, got pooling none"):
        classifier_tiny(9, 4, pooling="none", pooler=True)


def test_its_cost_diagram_and_onnx_are_per_token(tmp_path):
    pooled, tagger = (
        Classifier(classifier_tiny(9, 4, pooling=pooling)).eval() for pooling in ("mean", "none")
    )
    heads = [cost(model, source=7)["head"].multiply_adds for model in (pooled, tagger)]
    assert heads[1] == 7 * heads[0]
    assert "(time, 4)" in rg.diagram(tagger).svg
    ((_, difference),) = rg.models.export_onnx(tagger, tmp_path)
    assert difference < 1e-5


# ---- tagging


def test_a_tagger_learns_and_needs_no_data_to_be_opened(tagger, tmp_path):
    moved = tmp_path / "alone"
    tagger_files = [file for file in tagger.iterdir() if file.is_file()]
    moved.mkdir()
    for file in tagger_files:
        (moved / file.name).write_bytes(file.read_bytes())
    recipe = json.loads((moved / "recipe.json").read_text())
    recipe["recipe"]["data"]["train"] = "/gone"
    (moved / "recipe.json").write_text(json.dumps(recipe))
    run = rg.load(moved, device="cpu")
    assert run.result["test"]["f1"] > 0.9
    text, words = run.apply(["Grace moved to New York in 1950.", ["Emmy", "saw", "Lima"]])
    assert [span[0::3] for span in text.spans] == [("PER", "Grace"), ("CITY", "New York")]
    assert words == [("Emmy", "B-PER"), ("saw", "O"), ("Lima", "B-CITY")]
    assert run.tag(["", "Oslo"])[0] == []
    assert run.verbs == ["tag", "look", "evaluate", "export", "quantize"]
    assert len(run.look("Ada saw Lima").names) == 1


def test_the_commands_of_a_tagger(tagger):
    line = run_cli("tag", tagger, "Emmy moved to San Jose in 7.").stdout
    assert line == "Emmy/B-PER moved to San/B-CITY Jose/I-CITY in 7 .\n"
    assert run_cli("apply", tagger, "Emmy moved to San Jose in 7.").stdout == line
    assert "accuracy" in run_cli("evaluate", tagger, "--split", "valid").stdout
    error = run_cli("tag", "morse", "x", code=2).output
    assert "run: needs a model that can tag, got a Recogniser" in error
    assert "option: needs one of the task tagging" in run_cli(
        "apply", tagger, "x", "-o", "beam=3", code=2
    ).output  # fmt: skip


@pytest.fixture(scope="module")
def flag_tagger(tmp_path_factory):
    """A run by `regard new tags` on commands, whose words begin with - and have . and / inside."""
    folder = tmp_path_factory.mktemp("flags")
    rng = random.Random(0)
    flags = ["--force", "-v", "--dry-run", "--all", "-rf"]
    rows = []
    for _ in range(500):
        flag, file = rng.choice(flags), f"{rng.choice(['src/a', './b', 'c'])}.{rng.choice('xyz')}"
        verb = rng.choice(["run", "copy", "remove"])
        row = [(verb, "O"), (flag, "B-FLAG"), (file, "B-FILE"), (",", "O"), ("then", "O")]
        rows.append(rng.choice([row, [*row, (rng.choice(flags), "B-FLAG"), (".", "O")]]))
    (folder / "flags.conll").write_text(conll(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_cli("new", "tags", "flags.conll")
        changes = ["steps=60", "layers=1", "dim=32", "heads=2", "warmup=5", "device=cpu"]
        sets = [word for change in changes for word in ("--set", change)]
        run_cli("train", "task.toml", "--out", "run", *sets)
    return folder / "run"


def test_texts_are_split_as_the_data_is(flag_tagger, tmp_path):
    """The F1 of `regard tag` on the test sentences is that of `regard evaluate`."""
    run = rg.load(flag_tagger, device="cpu")
    assert run.data.word_split == "edges"
    examples = run.data.load().examples["test"]
    (tmp_path / "a.txt").write_text("".join(" ".join(x.tokens) + "\n" for x in examples))
    run_cli("tag", flag_tagger, tmp_path / "a.txt", "--out", tmp_path / "out.txt")
    answers = []
    for line, example in zip(
        (tmp_path / "out.txt").read_text().splitlines(), examples, strict=True
    ):
        words = line.split(" ")
        assert len(words) == len(example.tokens)
        pairs = zip(words, example.tokens, strict=True)
        answers.append(TaggedText((x, word.removeprefix(x)[1:] or "O") for word, x in pairs))
    references = [TaggedText(zip(*x, strict=True)) for x in examples]
    scores = run.evaluate("test").scores
    assert tag_tally(answers, references).scores()["f1"] == scores["f1"] > 0.9
    recipe = (flag_tagger.parent / "task.toml").read_text()
    assert 'word_split = "edges"' in recipe
    assert "it reproduces 100.0% of these words" in recipe


def test_words_may_be_given_as_words(flag_tagger, users_view):
    run = rg.load(flag_tagger, device="cpu")
    text = "run --force c.x, then -v."
    words = ["run", "--force", "c.x", ",", "then", "-v", "."]
    assert [word for word, _ in run.tag([text])[0]] == words
    (as_they_are,) = run.tag([text], word_split="spaces")
    assert as_they_are == run.tag([text.split()])[0]
    assert [word for word, _ in as_they_are] == text.split()
    line = run_cli("tag", flag_tagger, text, "-o", "word_split=spaces").stdout
    assert line == f"{as_they_are}\n"
    error = run_cli("tag", flag_tagger, text, "-o", "word_split=no", code=2).output
    assert "word_split: needs one of punctuation, edges, sentence, spaces, got 'no'" in error
    old = replace(run.data, word_split="")  # a run from before the setting
    assert old.apply(run, [text], TagOptions()) == run.tag([text])
    with pytest.raises(ConfigError, match="word_split: needs to be given for a run without it"):
        replace(old, train="gone.conll").apply(run, [text], TagOptions())


def test_the_split_is_measured():
    def measured(*words):
        return measure_word_split([(words, ["O"] * len(words))])

    assert measured("It", "rains", ".").name == "punctuation"
    assert measured("It", "'s", "--all", ".").name == "edges"
    assert measured("a.b", "...", ":)", "@you", "#x", "!!").name == "edges"
    assert measured("Dr.", "Ada", "'s", ".").name == "sentence"
    assert measured("It", "rains.") == ("spaces", 1.0)
    # the words with a tag decide too, where they are few
    words, tags = ["the"] * 999 + ["a,"], ["O"] * 999 + ["B-X"]
    assert measure_word_split([(words, tags)]).name == "spaces"
    assert measure_word_split([(words, ["O"] * 1000)]).name == "punctuation"


def test_mistakes_of_a_tagger_are_sentences_with_tags(tagger):
    run = rg.load(tagger, device="cpu")
    with torch.no_grad():
        run.model.head.bias[run.data.names.index("O")] += 100
    result = run.evaluate("test")
    assert result.scores["f1"] == 0
    assert "/B-" in str(result.mistakes[0].reference)
    assert str(result.mistakes[0].prediction) == result.mistakes[0].source  # all O


def test_a_tagger_resumes(tagger, tmp_path):
    for name in ("recipe.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((tagger / name).read_bytes())
    (first, *_), to = sorted((tagger / "checkpoints").glob("step-*")), tmp_path / "checkpoints"
    copy = shutil.copytree if first.is_dir() else shutil.copy
    to.mkdir()
    copy(first, to / first.name)
    outcome = rg.runs.fit(tmp_path)
    assert outcome.step == 90
    assert outcome.scores == pytest.approx(rg.load(tagger).result["test"], abs=1e-4)


def test_a_tagger_is_exported_and_quantized(tagger, tmp_path):
    run = rg.load(tagger, device="cpu")
    run.export(tmp_path / "onnx")
    assert json.loads((tmp_path / "onnx/export.json").read_text())["classes"] == list(
        run.data.names
    )
    result = run.quantize(tmp_path / "int8")
    assert result.scores_after["f1"] > 0.9


# ---- labelled texts


def test_labels_are_learned_and_served(labeller):
    run = rg.load(labeller, device="cpu")
    assert run.data.names == ("bad", "good")
    assert run.result["test"]["macro_f1"] > 0.9
    good, bad = run.apply(["very happy, works perfectly", "broke at once"])
    assert [good[0][0], bad[0][0]] == ["good", "bad"]
    assert sum(probability for _, probability in good) == pytest.approx(1, abs=1e-5)
    assert run.label(["poor sound"], top=1)[0][0][0] == "bad"
    assert re.fullmatch(
        r"bad [01]\.\d{4}\n", run_cli("label", labeller, "poor sound", "-o", "top=1").stdout
    )
    assert "macro_f1" in run_cli("evaluate", labeller).stdout


def test_own_files_of_valid_and_test_are_used_as_they_are(tmp_path):
    for split, count in (("train", 60), ("valid", 10), ("test", 12)):
        rows = [{"text": text, "label": label} for text, label in comments(count, len(split))]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    paths = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "valid", "test")}
    sizes = [len(rows) for rows in LabelsTask(**paths).load().examples.values()]
    assert sizes == [60, 10, 12]
    del paths["valid"]  # a twentieth of train
    train, valid, test = (len(rows) for rows in LabelsTask(**paths).load().examples.values())
    assert (train + valid, test) == (60, 12)
    assert valid > 0


def test_a_changed_file_is_read_again(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text(
        "text,label\n" + "".join(f"{t.replace(',', '')},{x}\n" for t, x in comments(80))
    )
    data = LabelsTask(train=str(file))
    before = data.load()
    assert data.load() is before
    file.write_text(file.read_text() + "a new one,good\n")
    assert data.load().report.loaded == before.report.loaded + 1


# ---- images


def test_own_images_are_learned_and_served(shapes):
    run = rg.load(shapes, device="cpu")
    assert run.data.names == ("cross", "disc", "square")
    assert run.result["test"]["accuracy"] > 0.8
    files = [
        shapes.parent / "shapes" / name for name in ("cross/0.png", "disc/1.png", "square/2.png")
    ]
    assert [row[0][0] for row in run.classify(files)] == ["cross", "disc", "square"]
    assert run_cli("classify", shapes, files[1], "--top", 1).stdout.split("\t")[1] == "disc"
    assert run_cli("apply", shapes, files[2]).stdout.startswith(f"{files[2]}\tsquare\t0.")
    assert "accuracy" in run_cli("evaluate", shapes).stdout


def test_a_table_of_labels_and_given_names(shapes, tmp_path):
    root = shapes.parent / "shapes"
    rows = [f"{file},{file.parent.name}" for file in sorted(root.rglob("*.png"))]
    (tmp_path / "labels.csv").write_text("\n".join(["image,class", *rows]))
    names = ("square", "star", "cross", "disc")
    table = rg.tasks.ImagesTask(path=str(tmp_path / "labels.csv"), size=8, names=names).fit(0)
    folders = rg.tasks.ImagesTask(path=str(root), size=8).fit(0)
    assert (table.names, folders.names) == (names, ("cross", "disc", "square"))
    for split in ("train", "valid", "test"):
        theirs, ours = (sorted(x.load().labels[split].tolist()) for x in (table, folders))
        assert theirs == sorted({0: 2, 1: 3, 2: 0}[n] for n in ours)
    assert table.data_warnings() == [
        "class star: none in train, so it cannot be learned; valid 0, test 0"
    ]


def test_a_valid_split_is_taken_from_train_beside_a_test_folder(tmp_path):
    draw_shapes(tmp_path / "train", 90)
    draw_shapes(tmp_path / "test", 9, seed=1)
    images = rg.tasks.ImagesTask(path=str(tmp_path), size=8).load()
    train, valid, test = (len(labels) for labels in images.labels.values())
    assert (train + valid, test) == (90, 9)
    assert valid > 0


# ---- bad input


@pytest.mark.usefixtures("users_view")
def test_what_cannot_be_trained_on_is_one_line_and_leaves_no_run(tmp_path):
    file, toml = tmp_path / "a.conll", tmp_path / "task.toml"
    toml.write_text(
        'task = "tagging"\n[data]\ntrain = "a.conll"\n' + TEXT_MODEL.format(pooling="none")
    )

    def message():
        result = run_cli("train", toml, "--out", tmp_path / "run", code=2)
        assert not (tmp_path / "run").exists()
        return result.output

    assert re.search("a.conll: cannot be read, No such file", message())
    file.write_text("")
    assert re.search(r"a.conll: needs annotated texts, got none: no rows", message())
    file.write_text("Ada\nsleeps\n")
    assert "got none: 1 column instead of 2 (a.conll:1)" in message()
    file.write_text("Ada O\n\nOslo B-CITY\n")
    assert re.search("(valid|test): needs examples, got none of 2; try a larger file", message())
    file.write_text(conll([("Ada", "O"), (str(n), "O")] for n in range(99)))
    assert "names: needs two classes or more, got O alone" in message()
    toml.write_text(
        toml.read_text().replace("classifier", "language").replace('pooling = "none"', "")
    )
    file.write_text(conll(sentences(99)))
    assert "model.type: needs classifier for tagging, got language" in message()


def test_misaligned_sentences_are_skipped_and_named(tmp_path):
    text = conll(sentences(100)).split("\n\n")
    text[3] = text[3].replace("\t", "", 1)
    (tmp_path / "a.conll").write_text("\n\n".join(text))
    data = TaggingTask(train=str(tmp_path / "a.conll"))
    (warning,) = data.data_warnings()
    assert warning.startswith("loaded 99, skipped 1\n  1 × ")
    rows = [
        json.dumps({"tokens": ["a", "b"], "tags": ["O", "X"][: 2 - (n == 5)]}) for n in range(99)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(f"{row}" for row in rows))
    data = TaggingTask(train=str(tmp_path / "a.jsonl"))
    assert "1 × not one tag per token: a.jsonl:6" in str(data.load().report)


def test_a_label_only_in_test_is_named_and_counts_as_a_mistake(tmp_path):
    for split, count in (("train", 60), ("valid", 10), ("test", 10)):
        rows = [f"{text}\t{label}" for text, label in comments(count)]
        rows += ["what is it\tunclear"] * (split == "test")
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]))
    data = LabelsTask(
        **{split: str(tmp_path / f"{split}.tsv") for split in ("train", "valid", "test")}
    )
    assert data.fit(0).names == ("bad", "good", "unclear")
    assert data.data_warnings() == [
        "class unclear: none in train, so it cannot be learned; valid 0, test 1"
    ]
    with pytest.raises(ConfigError, match="names: needs every label of the data, got 'bad'"):
        LabelsTask(train=data.train, names=("good", "ba")).fit(0)


def test_unreadable_images_and_a_class_with_one_are_named(tmp_path):
    draw_shapes(tmp_path / "shapes", 120)
    (tmp_path / "shapes/disc/bad.png").write_bytes(b"not an image")
    (tmp_path / "shapes/star").mkdir()
    Image.new("L", (9, 9)).save(tmp_path / "shapes/star/1.png")
    (tmp_path / "task.toml").write_text(IMAGES.replace("steps = 60", "steps = 2"))
    result = run_cli("train", tmp_path / "task.toml", "--out", tmp_path / "run")
    assert "loaded 121, skipped 1" in result.output
    assert "bad.png" in result.output
    assert (
        "class star: one example" in result.output or "class star: none in train" in result.output
    )
    assert rg.load(tmp_path / "run").data.names[-1] == "star"


@pytest.mark.usefixtures("users_view")
def test_images_that_cannot_be_trained_on_raise(tmp_path):
    with pytest.raises(FileError, match="needs one folder per class or a table of labels"):
        rg.tasks.ImagesTask(path=str(tmp_path)).fit(0)
    draw_shapes(tmp_path, 3)
    with pytest.raises(ConfigError, match="needs examples, got none of 3; try more images, or fo"):
        rg.tasks.ImagesTask(path=str(tmp_path)).fit(0)
    with pytest.raises(ConfigError, match="channels: need to be 1"):
        rg.tasks.ImagesTask(path=str(tmp_path), channels=2).fit(0)
