"""The search for translations, shared by evaluation and `regard translate`, with confidence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import Pair, Tokenizer, collate, pair_preprocessor
from regard.data.batches import batch_by_length
from regard.decode import DecodeResult, beam, greedy, make_stepper
from regard.models.config import check_positive
from regard.ops.maybe_none import MaybeNone
from regard.tasks.translation.phrase_table import open_phrases
from regard.train.metrics import Calibration

# hypotheses per batch, all places of the beam counted: small steps leave a GPU idle
MAX_HYPOTHESES = {"cpu": 128, "cuda": 8192}
MAX_LOGIT = 20.0  # of raw scores: float32 resolves no probability nearer to 0 or 1


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Settings of the search for translations.

    Args:
        beam_width: 1 is greedy search.
        length_penalty: of `decode.beam`; a higher one favours longer answers.
        max_new_tokens: longest answer; what is cut there has not `ended`.

    >>> SearchConfig().beam_width
    1
    """

    beam_width: int = 1
    length_penalty: float = 0.6
    max_new_tokens: int = 100

    def __post_init__(self) -> None:
        check_positive(self, "beam_width", "max_new_tokens")


class Translation(NamedTuple):
    """One answer: text, length-penalised log-probability, whether it ended before the limit.

    `confidence` is the calibrated probability that the answer is correct, None for a run without a
    calibration; `raw_score` is the score it is calibrated on.
    """

    text: str
    score: float
    ended: bool
    confidence: float | MaybeNone = None
    raw_score: float = math.nan


class TranslationSearch:
    """Greedy or beam search for translations; each text is encoded once for all its languages.

    Args:
        model: a Translator or RecurrentTranslator, in evaluation mode.
        tokenizer: of its training; its normalisation is applied to every text.
        config: beam width, length penalty and longest answer.
        n_best: answers per text and language.
        calibration: of the confidence.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> tokenizer = rg.data.ByteTokenizer(languages=("de",))
    >>> search = TranslationSearch(model, tokenizer, SearchConfig(max_new_tokens=3))
    >>> len(search(["two", "three"], [["de"], ["de"]]))
    2
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        config: SearchConfig | None = None,
        *,
        n_best: int = 1,
        calibration: Calibration | None = None,
    ):
        self.model, self.tokenizer, self.stepper = model, tokenizer, make_stepper(model)
        self.config = config or SearchConfig()
        self.n_best, self.calibration = n_best, calibration
        table = getattr(model, "phrase_table", None)
        self.phrases = None if table is None else open_phrases(table, tokenizer)

    @torch.no_grad()
    def __call__(
        self, texts: Sequence[str], languages: Sequence[Sequence[str | None]]
    ) -> list[list[list[Translation]]]:
        """Translations by text and language, best first; None is a model's only language."""
        encode, config, stepper = pair_preprocessor(self.tokenizer), self.config, self.stepper
        encoded = [encode(Pair(text, "", None)) for text in texts]
        device = next(self.model.parameters()).device
        hypotheses = config.beam_width * max(1, max(map(len, languages), default=1))
        batch_size = max(1, MAX_HYPOTHESES.get(device.type, 128) // hypotheses)
        ends: dict[str, Any] = {
            "end": self.tokenizer.eos_id,
            "max_new_tokens": config.max_new_tokens,
        }
        results: list[list[list[Translation]]] = [[] for _ in texts]
        for rows in batch_by_length([len(ids["source"]) for ids in encoded], batch_size):
            batch = collate([encoded[n] for n in rows], self.tokenizer.pad_id)
            state = stepper.start(*(batch[x].to(device) for x in ("source", "source_lengths")))
            first, sources = self._first_tokens([languages[n] for n in rows], device)
            if any(len(languages[n]) != 1 for n in rows):
                state = stepper.select(state, sources)
            if config.beam_width == 1:
                decoded = greedy(stepper, state, first, **ends)
                decoded = DecodeResult(*(x[:, None] for x in decoded))
            else:
                decoded = beam(
                    stepper, state, first, **ends, width=config.beam_width,
                    length_penalty=config.length_penalty, n_best=self.n_best,
                )  # fmt: skip
            answers = iter(self._translations(decoded))
            for n in rows:
                results[n] = [next(answers) for _ in languages[n]]
                if self.phrases is not None:
                    for ranked in results[n]:
                        ranked[0] = self.phrases.answer(texts[n], ranked[0])
        return results

    def _first_tokens(
        self, languages: Sequence[Sequence[str | None]], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """The first token of each target, and the row of its source."""
        of_language = self.tokenizer.language_id
        pairs = [
            (self.tokenizer.bos_id if name is None else of_language(name), row)
            for row, names in enumerate(languages)
            for name in names
        ]
        first, sources = torch.tensor(pairs, dtype=torch.long, device=device).view(-1, 2).unbind(1)
        return first, sources

    def _translations(self, decoded: DecodeResult) -> list[list[Translation]]:
        texts = [self.tokenizer.decode(ids) for ids in decoded.to_lists()]
        scores = decoded.scores(self.config.length_penalty).flatten().tolist()
        raw = raw_scores(decoded).flatten().tolist()
        calibration = self.calibration
        sure = [None if calibration is None else calibration.confidence(x) for x in raw]
        rows = zip(texts, scores, decoded.ended.flatten().tolist(), sure, raw, strict=True)
        flat = [Translation(*row) for row in rows]
        return [flat[n : n + self.n_best] for n in range(0, len(flat), self.n_best)]


def raw_scores(decoded: DecodeResult) -> Tensor:
    """The scores that confidence is calibrated on: logits of length-damped probabilities.

    s = 6 · log p(y) / (5 + |y|),   raw = s - log(1 - exp s)

    For an empty answer s = log(1 - p(y)): the probability of any other answer.

    >>> two = [[4, 1], [1, 1]], [1, 0], [-0.7, -1e-3], [True, True]
    >>> raw_scores(DecodeResult(*map(torch.tensor, two)))
    tensor([ 0.1959, -6.9073])
    """
    log_prob = decoded.log_prob.double().clamp(-MAX_LOGIT, -math.exp(-MAX_LOGIT))
    empty = (decoded.lengths == 0) & decoded.ended
    score = torch.where(empty, _log1mexp(log_prob), decoded._replace(log_prob=log_prob).scores(1.0))
    return (score - _log1mexp(score)).clamp(-MAX_LOGIT, MAX_LOGIT).to(decoded.log_prob)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp x) of an x below 0."""
    return torch.log(-torch.expm1(x))


def translate_texts(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    languages: Sequence[str | None],
    config: SearchConfig | None = None,
) -> list[str]:
    """The best translation of each text.

    Args:
        model: a Translator or RecurrentTranslator, in evaluation mode.
        tokenizer: of its training.
        texts: in the source language.
        languages: one per text; None is a model's only one.
        config: of the search; greedy by default.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> tokenizer = rg.data.ByteTokenizer(languages=("de",))
    >>> len(translate_texts(model, tokenizer, ["two"], ["de"], SearchConfig(max_new_tokens=3)))
    1
    """
    search = TranslationSearch(model, tokenizer, config)
    return [row[0][0].text for row in search(texts, [[name] for name in languages])]
