"""Parallel text in aligned files, and the Multi30k recipes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

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
from regard.tasks.recipe import EvalSplit, Recipe, Shard
from regard.tasks.registry import register
from regard.tasks.translation.data import TranslationData
from regard.tasks.translation.evaluator import TranslationEvaluator
from regard.tasks.translation.search import SearchConfig
from regard.train.config import TrainConfig
from regard.train.evaluation import score_texts

CORRECT_CHRF = 50.0  # chrF from which an answer is graded as correct
SORT_WINDOW = 8192  # pairs sorted by length together: little padding, and all are in memory anyway


@register
@dataclass(frozen=True, kw_only=True)
class ParallelTextData(TranslationData):
    """Sentence pairs in two aligned files per split: `folder`/train.de and `folder`/train.en, …

    All pairs are held in memory, encoded once.

    Args:
        folder: of the files.
        source_language, target_language: their suffixes.
        train_stem, valid_stem, test_stem: their names before the suffix.
        tokenizer_type: byte-pair encoding or words.
        vocab_size: of the vocabulary that both sides share.
        lowercase: lower-case both sides.
        bidirectional: also train in the other direction; the first target token is the language.
        search: on the test split; the valid split is searched greedily.

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
    vocab_size: int = 8000
    lowercase: bool = False
    bidirectional: bool = False
    search: SearchConfig = SearchConfig(length_penalty=1.0, max_new_tokens=80)

    def __post_init__(self) -> None:
        check_choices(self)
        check_positive(self, "vocab_size")

    def files(self, split: Literal["train", "valid", "test"]) -> tuple[Path, Path]:
        """The two files of a split."""
        stem = {"train": self.train_stem, "valid": self.valid_stem, "test": self.test_stem}[split]
        folder = Path(self.folder)
        return folder / f"{stem}.{self.source_language}", folder / f"{stem}.{self.target_language}"

    def pairs(self, split: Literal["train", "valid", "test"]) -> list[Pair]:
        """All pairs of a split, lower-cased and in both directions if configured."""
        self._check_files()
        files = [self.files(name) for name in ("train", "valid", "test")]
        languages = (self.source_language, self.target_language)
        pairs = list(ParallelCorpus(*files, languages=languages).pairs(split))
        if self.lowercase:
            pairs = [p._replace(source=p.source.lower(), target=p.target.lower()) for p in pairs]
        if self.bidirectional and split == "train":
            pairs += [Pair(p.target, p.source, self.source_language) for p in pairs]
        return pairs

    def target_languages(self, tokenizer: Tokenizer) -> list[str]:
        """The target language and, if bidirectional, the source language."""
        return [self.target_language, *([self.source_language] if self.bidirectional else [])]

    def tokenizer(self, seed: int) -> Tokenizer:
        """One vocabulary for both sides, trained on the train split."""
        texts = iter_texts(self.pairs("train"))
        languages = (self.source_language, self.target_language)
        if self.tokenizer_type == "words":
            tokenizer = WordTokenizer.train(texts, languages=languages, vocab_size=self.vocab_size)
        else:
            tokenizer = BPETokenizer.train(texts, self.vocab_size, languages=languages)
        tokenizer.normalizers = ("lower",) if self.lowercase else ()
        return tokenizer

    def batches(self, tokenizer: Tokenizer, train: TrainConfig, **shard: Unpack[Shard]) -> Batches:
        """Pairs of similar length, in a new order each epoch."""
        encoded = InMemorySource(train=list(_encode(self.pairs("train"), tokenizer)))
        return Batches(
            encoded, _identity, split="train", batch_tokens=self.batch_limit(train),
            sort_window=SORT_WINDOW, pad_id=tokenizer.pad_id, seed=train.seed, **shard,
        )  # fmt: skip

    def evaluator(self, tokenizer: Tokenizer, split: EvalSplit) -> TranslationEvaluator:
        """Loss, exact match and BLEU, cased and lower-cased."""
        search = self.search if split == "test" else replace(self.search, beam_width=1)
        source = InMemorySource(**{split: self.pairs(split)})
        return ParallelTextEvaluator(source, tokenizer, split=split, search=search)

    def _check_files(self) -> None:
        """Raise for a missing file before anything is read; nothing is downloaded."""
        for split in ("train", "valid", "test"):
            for file in self.files(split):
                if self.folder and file.is_file():
                    continue
                packed = file.with_name(f"{file.name}.gz").is_file()
                fix = f"gunzip --keep {file}.gz" if packed else "--set folder=…"
                raise FileError(
                    f"folder: needs {file.name}, one sentence per line, got "
                    f"{'it packed' if packed else 'none'} in {self.folder!r}; try {fix}"
                )


class ParallelTextEvaluator(TranslationEvaluator):
    """A `TranslationEvaluator` with lower-cased BLEU, `bleu_lower`, beside the cased one.

    >>> run, pairs = rg.load("phrases"), InMemorySource(valid=[Pair("2 days", "2 TAGE", "de")])
    >>> evaluator = ParallelTextEvaluator(pairs, run.tokenizer, split="valid")
    >>> sorted(evaluator(run.model))[:3]
    ['bleu', 'bleu_lower', 'exact']
    """

    def score(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of a model that gave these answers."""
        lower = score_texts([a.lower() for a in answers], [r.lower() for r in self.references])
        return super().score(model, answers) | {"bleu_lower": lower["bleu"]}

    def is_correct(self, answer: str, reference: str) -> bool:
        """Whether chrF (character n-gram F-score) is at least `CORRECT_CHRF`: few are identical."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF().sentence_score(answer, [reference]).score >= CORRECT_CHRF


def multi30k_de_en(kind: Literal["lstm", "gru", "gru-attention", "transformer"]) -> Recipe:
    """Multi30k, German to English, by one of four models on the same data."""
    train = TrainConfig(
        steps=1285 if kind == "transformer" else 1500, batch_tokens=8192, lr=2e-3, warmup=200,
        label_smoothing=0.1, weight_decay=0.05, monitor="bleu", evaluate_every=250, save_every=500,
    )  # fmt: skip
    cell, _, attention = kind.partition("-")
    if cell == "transformer":
        model = translator_small(1, dim=256, heads=4, ffn_dim=512, dropout=0.3)
    else:
        model = recurrent_small(
            1, cell=cell, dim=256, hidden=512, layers=1, dropout=0.4,
            attention="luong" if attention else "none",
        )  # fmt: skip
    data = ParallelTextData(source_language="de", target_language="en", lowercase=True)
    return Recipe(name=f"multi30k-de-en-{kind}", data=data, model=model, train=train)


for _kind in ("lstm", "gru", "gru-attention", "transformer"):
    register(partial(multi30k_de_en, _kind), name=f"multi30k-de-en-{_kind}")


@register
def multi30k_en_de() -> Recipe:
    """Multi30k, English to German, by a small Transformer with R-Drop and checkpoint averaging."""
    return Recipe(
        name="multi30k-en-de",
        data=ParallelTextData(
            source_language="en", target_language="de", vocab_size=10000, lowercase=True,
            search=SearchConfig(beam_width=5, length_penalty=1.0, max_new_tokens=80),
        ),
        model=translator_small(
            1, layers=4, decoder_layers=4, dim=256, heads=4, ffn_dim=512, dropout=0.3
        ),
        train=TrainConfig(
            steps=8400, batch_tokens=4096, lr=3e-3, schedule="inverse_sqrt", warmup=2000,
            label_smoothing=0.1, rdrop=2.5, weight_decay=0.05, monitor="bleu", evaluate_every=2100,
            save_every=210, keep_last=10, average_last=10,
        ),
    )  # fmt: skip


def _encode(pairs: list[Pair], tokenizer: Tokenizer) -> Iterator[dict[str, torch.Tensor]]:
    encode = pair_preprocessor(tokenizer)
    for pair in pairs:
        yield {name: torch.tensor(ids) for name, ids in encode(pair).items()}


def _identity(example: Any) -> Any:
    return example
