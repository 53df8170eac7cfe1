"""Own parallel text, two aligned files a part; Multi30k, from one language into another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from regard.data import (
    Batches,
    BPETokenizer,
    InMemorySource,
    Pair,
    ParallelCorpus,
    Tokenizer,
    WordTokenizer,
    iter_texts,
    pair_preprocessor,
)
from regard.errors import FileError
from regard.models import recurrent_small, translator_small
from regard.models.config import check_choices, check_positive
from regard.tasks.recipe import EvalSplit, Recipe
from regard.tasks.translation.evaluator import TranslationEvaluator, score_texts
from regard.train.config import TrainConfig

CORRECT_CHRF = 50.0  # chrF of an answer that counts as right when confidence is calibrated
WINDOW = 8192  # pairs that are sorted by length together: little padding, and all is held anyway


@dataclass(frozen=True, kw_only=True)
class ParallelTextData:
    """Pairs from two aligned files a part: `folder`/train.de and `folder`/train.en, and so on.

    All are held in memory, encoded once. `lowercase` forgets the case on both sides; `both` trains
    on the way back too, a token saying which way. The valid part is answered greedily, the test
    part by a beam of `width`; answers end at `longest` tokens.

    >>> ParallelTextData(folder="multi30k").files("valid")
    (PosixPath('multi30k/val.de'), PosixPath('multi30k/val.en'))
    """

    folder: str = ""
    source_language: str = "de"
    target_language: str = "en"
    train_stem: str = "train"
    valid_stem: str = "val"
    test_stem: str = "test_2016_flickr"
    tokenizer_type: Literal["bpe", "words"] = "bpe"
    vocab_size: int = 8000  # of the vocabulary, which both sides share
    lowercase: bool = False
    bidirectional: bool = False
    beam_width: int = 1
    length_penalty: float = 1.0
    max_new_tokens: int = 80

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "vocab_size", "beam_width", "max_new_tokens")

    @property
    def objective(self) -> str:
        """The loss, by its name."""
        return "translation"

    def files(self, split: Literal["train", "valid", "test"]) -> tuple[Path, Path]:
        """The two files of a part."""
        stem = {"train": self.train_stem, "valid": self.valid_stem, "test": self.test_stem}[split]
        folder = Path(self.folder)
        return folder / f"{stem}.{self.source_language}", folder / f"{stem}.{self.target_language}"

    def pairs(self, split: Literal["train", "valid", "test"]) -> list[Pair]:
        """All pairs of a part, as they are trained on and scored."""
        self._check()
        places = [self.files(part) for part in ("train", "valid", "test")]
        read = ParallelCorpus(
            *places, languages=(self.source_language, self.target_language)
        ).pairs(split)
        pairs = [_lower(pair) for pair in read] if self.lowercase else list(read)
        back = self.bidirectional and split == "train"
        return pairs + [Pair(p.target, p.source, self.source_language) for p in pairs if back]

    def tokenizer(self, seed: int) -> Tokenizer:
        """One vocabulary for both sides, learnt from the train part."""
        texts, languages = (
            iter_texts(self.pairs("train")),
            (self.source_language, self.target_language),
        )
        if self.tokenizer_type == "words":
            tokenizer = WordTokenizer.train(texts, languages=languages, vocab_size=self.vocab_size)
        else:
            tokenizer = BPETokenizer.train(texts, self.vocab_size, languages=languages)
        tokenizer.normalizers = ("lower",) if self.lowercase else ()
        return tokenizer

    def resolve(self, model: Any, tokenizer: Tokenizer) -> Any:
        """The model's config with the tokenizer's vocabulary on both sides."""
        return replace(model, source_vocab=tokenizer.vocab, target_vocab=tokenizer.vocab)

    def batches(
        self, tokenizer: Tokenizer, train: TrainConfig, *, rank: int = 0, world_size: int = 1
    ) -> Batches:
        """Pairs of like lengths together, in a new order each turn."""
        held = InMemorySource(train=list(_encoded(self.pairs("train"), tokenizer)))
        return Batches(
            held, _as_it_is, split="train", batch_tokens=train.batch_tokens, seed=train.seed,
            rank=rank, world_size=world_size, sort_window=WINDOW, pad_id=tokenizer.pad_id,
        )  # fmt: skip

    def evaluator(
        self, tokenizer: Tokenizer, split: EvalSplit
    ) -> Callable[[nn.Module], dict[str, Any]]:
        """Loss, exact answers and BLEU, as written and with the case forgotten."""
        return ParallelTextEvaluator(
            InMemorySource(**{split: self.pairs(split)}), tokenizer, split=split, max_new_tokens=self.max_new_tokens,
            beam_width=self.beam_width if split == "test" else 1, length_penalty=self.length_penalty,
        )  # fmt: skip

    def _check(self) -> None:
        """The files, before anything is read: what must be there, and that nothing fetches it."""
        for part in ("train", "valid", "test"):
            for file in self.files(part):
                if self.folder and file.is_file():
                    continue
                packed = file.with_name(f"{file.name}.gz").is_file()
                way = f"gunzip --keep {file}.gz" if packed else "--set folder=…"
                raise FileError(
                    f"folder: needs {file.name}, one sentence a line, got "
                    f"{'it packed' if packed else 'none'} in {self.folder!r}; try {way}"
                )


class ParallelTextEvaluator(TranslationEvaluator):
    """What a translator gets on pairs: as `TranslationEvaluator`, and BLEU with the case forgotten.

    >>> pairs = InMemorySource(valid_stem=[Pair("zwei", "Two", None)])
    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=260)).eval()
    >>> sorted(ParallelTextEvaluator(pairs, rg.data.ByteTokenizer(), split="valid", limit=5)(model))[:3]
    ['bleu', 'bleu_lower', 'exact']
    """

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of answers that the model gave."""
        lower = score_texts([a.lower() for a in answers], [r.lower() for r in self.references])
        return super().score(model, answers) | {"bleu_lower": lower["bleu"]}

    def is_correct(self, answer: str, reference: str) -> bool:
        """Whether chrF, the overlap in character n-grams, is `CORRECT_CHRF` or more: few are identical."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF().sentence_score(answer, [reference]).score >= CORRECT_CHRF


def multi30k_de_en(kind: Literal["lstm", "gru", "gru-attention", "transformer"]) -> Recipe:
    """A rung of the ladder on Multi30k, German to English: the same data, another model.

    >>> multi30k_de_en("gru").model.attention
    'none'
    """
    train = TrainConfig(
        steps=1285 if kind == "transformer" else 1500, batch_tokens=8192, lr=2e-3, warmup=200,
        label_smoothing=0.1, weight_decay=0.05, monitor="bleu", evaluate_every=250, save_every=500,
    )  # fmt: skip
    cell, _, attention = kind.partition("-")
    if cell == "transformer":
        model = translator_small(1, dim=256, heads=4, hidden=512, dropout=0.3)
    else:
        model = recurrent_small(
            1, cell=cell, dim=256, hidden=512, layers=1, dropout=0.4,
            attention="luong" if attention else "none",
        )  # fmt: skip
    data = ParallelTextData(source_language="de", target_language="en", lowercase=True)
    return Recipe(name=f"multi30k-de-en-{kind}", data=data, model=model, train=train)


def multi30k_en_de() -> Recipe:
    """Multi30k, English to German, by a small Transformer whose two passes over a batch must agree.

    The mean of the last ten checkpoints is what stays.

    >>> multi30k_en_de().data.beam_width
    5
    """
    return Recipe(
        name="multi30k-en-de",
        data=ParallelTextData(source_language="en", target_language="de", vocab_size=10000, lowercase=True, beam_width=5),
        model=translator_small(
            1, layers=4, decoder_layers=4, dim=256, heads=4, hidden=512, dropout=0.3
        ),
        train=TrainConfig(
            steps=8400, batch_tokens=4096, lr=3e-3, schedule="inverse_sqrt", warmup=2000, label_smoothing=0.1,
            rdrop=2.5, weight_decay=0.05, monitor="bleu", evaluate_every=2100, save_every=210, keep_last=10,
            average_last=10,
        ),
    )  # fmt: skip


def _encoded(pairs: list[Pair], tokenizer: Tokenizer) -> Iterator[dict[str, torch.Tensor]]:
    encode = pair_preprocessor(tokenizer)
    for pair in pairs:
        yield {name: torch.tensor(ids) for name, ids in encode(pair).items()}


def _as_it_is(example: Any) -> Any:
    return example


def _lower(pair: Pair) -> Pair:
    return pair._replace(source=pair.source.lower(), target=pair.target.lower())
