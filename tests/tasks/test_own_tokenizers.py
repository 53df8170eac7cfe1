"""A recipe names its tokenizer, trained or a file; dropout is for training alone."""

import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard import Run, load, runs
from regard.data import BPETokenizer, Tokenizer
from regard.errors import ConfigError, FileError
from regard.models import LanguageModel, language_tiny
from regard.tasks import recipe
from regard.tasks.labels import LabelsTask
from regard.tasks.language.text import TextTask
from regard.tasks.tagging import TaggingTask
from regard.tasks.translation.parallel_text import PairsTask
from regard.train import TrainConfig

WORDS = {"дом": "house", "вода": "water", "日本": "Japan", "улица": "street", "über": "over"}
MODEL = """
[data.search]
max_new_tokens = 4
[model]
type = "translator"
layers = 1
decoder_layers = 1
dim = 16
heads = 2
ffn_dim = 16
[train]
steps = 2
batch_tokens = 400
device = "cpu"
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Pairs, labelled texts and tagged words."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    rows = [rng.choices(list(WORDS), k=5) for _ in range(120)]
    pairs = (f"{' '.join(row)}\t{' '.join(WORDS[word] for word in row)}\n" for row in rows)
    Path("pairs.tsv").write_text("".join(pairs))
    labelled = (f"{' '.join(row)},{row[0]}\n" for row in rows)
    Path("labels.csv").write_text("text,label\n" + "".join(labelled))
    Path("tags.conll").write_text(
        "\n".join("".join(f"{w} {'XY'[w > 'а']}\n" for w in row) for row in rows)
    )


def write_engine() -> Engine:
    engine = Engine(models.BPE(unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    engine.train_from_iterator([*WORDS, *WORDS.values()] * 9, trainer)
    Path("given").mkdir()
    engine.save("given/tokenizer.json")
    return engine


def write_recipe(tokenizer: str) -> str:
    data = f'folder = "."\ntrain = ["pairs.tsv"]\n{tokenizer}\n'
    Path("task.toml").write_text(f'task = "pairs"\n[data]\n{data}{MODEL}')
    return "task.toml"


def test_a_unigram_tokenizer_is_trained_saved_and_used():
    name = write_recipe('tokenizer_type = "unigram"\nvocab_size = 290')
    runs.fit(recipe(name), "run", recipe_text=Path(name).read_text())
    run = load("run", device="cpu")
    assert type(run.tokenizer).__name__ == "UnigramTokenizer"
    assert run.model.config.target_vocab == run.tokenizer.vocab <= 290
    text = "дом über 日本 😀\t\n"
    assert run.tokenizer.decode(run.tokenizer.encode(text)) == text
    assert list(run.translate(["дом вода"], to=["target"])) == ["target"]
    again = recipe(name).data.tokenizer(0)
    assert again.encode(text) == run.tokenizer.encode(text)


def test_a_tokenizer_json_is_used_with_its_ids_and_special_tokens(tmp_path):
    engine = write_engine()
    name = write_recipe('tokenizer_file = "given"\nbpe_dropout = 0.2')
    recipe_ = recipe(str(tmp_path / name))
    assert recipe_.data.tokenizer_file == str(tmp_path / "given")
    runs.fit(recipe_, "run")
    Path("given/tokenizer.json").unlink()  # the run has its own
    run = load("run", device="cpu")
    assert run.tokenizer.encode("дом water") == engine.encode("дом water").ids
    assert (run.tokenizer.pad_id, run.tokenizer.bos_id, run.tokenizer.eos_id) == (0, 2, 3)
    assert run.model.config.source_vocab == engine.get_vocab_size() + 2  # two languages
    assert list(run.translate(["дом"], to=["target"])) == ["target"]
    with pytest.raises(FileError, match="tokenizer.json: needs to be a file"):
        recipe_.data.tokenizer(0)


def tasks(**settings):
    return [
        PairsTask(train=("pairs.tsv",), **settings),
        LabelsTask(train="labels.csv", **settings),
        TaggingTask(train="tags.conll", **settings),
    ]


@pytest.mark.parametrize("number", range(3))
def test_every_task_takes_a_saved_tokenizer(number):
    BPETokenizer.train(WORDS, vocab_size=290).save("mine.json")
    given = tasks(tokenizer_file="mine.json")[number].tokenizer(0)
    plain = BPETokenizer.train(WORDS, vocab_size=290)
    assert given.decode(given.encode("дом")) == "дом"
    shift = len(given.languages)  # language tokens come before those of the text
    assert given.encode("дом") == [i + shift for i in plain.encode("дом")]


@pytest.mark.parametrize("number", range(3))
def test_dropout_changes_with_the_epoch_and_continues_exactly(number):
    config = TrainConfig(steps=1, batch_tokens=300, seed=3)
    plain, task = (tasks(vocab_size=300, bpe_dropout=rate)[number] for rate in (0.0, 0.5))
    tokenizer = plain.tokenizer(0)

    def batches(task, config=config, state=None, count=24):
        source = task.batches(tokenizer, config)
        source.sort_window = 60  # quick, and so that two epochs are seen
        if state is not None:
            source.restore(state)
        return list(islice(source, count)), source.state()

    (first, state), (again, _) = batches(task, count=8), batches(task)
    more, _ = batches(task, state=state, count=16)
    assert len(again) == 24
    for a, b in zip([*first, *more], again, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)
    field = next(iter(first[0]))
    lengths = {name: sum(int(b[f"{field}_lengths"].sum()) for b in batches(x)[0])
               for name, x in (("plain", plain), ("dropped", task))}  # fmt: skip
    assert lengths["dropped"] != lengths["plain"]
    texts = [tuple(row.tolist()) for batch in again for row in batch[field]]
    assert len(set(texts)) > len({tuple(r.tolist()) for b in batches(plain)[0] for r in b[field]})
    other, _ = batches(task, TrainConfig(steps=1, batch_tokens=300, seed=4), count=1)
    assert not all(torch.equal(other[0][x], again[0][x]) for x in other[0])
    shown, dropped = (x.evaluator(tokenizer, "valid") for x in (plain, task))
    assert str(getattr(shown, "encoded", 0)) == str(getattr(dropped, "encoded", 0))


def test_dropout_needs_byte_pairs():
    write_engine()
    with pytest.raises(ConfigError, match="bpe_dropout: needs tokenizer_type=bpe, got words"):
        PairsTask(train=("pairs.tsv",), tokenizer_type="words", bpe_dropout=0.1)
    with pytest.raises(ConfigError, match="bpe_dropout: needs 0 for text"):
        TextTask(bpe_dropout=0.1)
    Tokenizer.registry["ByteTokenizer"]().save("bytes.json")
    with pytest.raises(ConfigError, match="bpe_dropout: needs byte pairs"):
        LabelsTask(train="labels.csv", tokenizer_file="bytes.json", bpe_dropout=0.1).tokenizer(0)


def test_generated_text_keeps_the_spaces_between_its_tokens():
    write_engine()
    tokenizer = Tokenizer.load("given")
    torch.manual_seed(0)
    model = LanguageModel(language_tiny(vocab=tokenizer.vocab)).eval()
    run = Run(None, recipe("stdlib"), model, tokenizer)
    prompt = "house water"
    parts = list(run.generate(prompt, max_new_tokens=40))
    ids = [tokenizer.eos_id, *tokenizer.encode(prompt)]
    allowed = [
        i not in tokenizer.special_tokens or i == tokenizer.eos_id
        for i in range(model.config.vocab)
    ]
    for _ in range(40):
        logits = model(torch.tensor([ids]))[0, -1].masked_fill(~torch.tensor(allowed), -torch.inf)
        ids.append(int(logits.argmax()))
        if ids[-1] == tokenizer.eos_id:
            break
    assert prompt + "".join(parts) == tokenizer.decode(ids)
    assert " " in "".join(parts)
