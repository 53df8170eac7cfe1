"""The search for translations that evaluation and `regard translate` share, with its confidence."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data import Pair, Tokenizer, collate, pair_preprocessor
from regard.data.batches import batch_by_length
from regard.decode import DecodeResult, beam, greedy, make_stepper
from regard.train.metrics.calibration import Calibration

# answers that are written together, all places of the beam counted: a step of a GPU is all waiting
ROWS = {"cpu": 128, "cuda": 8192}
MOST = 20.0  # bounds raw scores: float32 tells no probability nearer to 0 or 1


class Translation(NamedTuple):
    """One answer: its text, its score, and whether it came to its end before the limit.

    The score is that of `decode.beam`: the log-probability over the penalty of its length. The
    confidence is the calibrated probability that the answer is right, where the run has a
    calibration; `raw` is the score that it is calibrated from.

    >>> Translation("2 Tage", -0.1, True).text
    '2 Tage'
    """

    text: str
    score: float
    ended: bool
    confidence: float | None = None
    raw_score: float = math.nan


class TranslationSearch:
    """Texts to translations, by greedy or beam search; each text is read once for its languages.

    Args:
        model: a Translator or RecurrentTranslator, in evaluation mode.
        tokenizer: the one it was trained with; its normalisation is applied to every text.
        width: of the beam; 1 is greedy.
        penalty: of `decode.beam`, for short answers.
        best: how many answers are returned per text and language.
        limit: the most tokens of an answer.
        calibration: of the confidence.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> search = TranslationSearch(model, rg.data.ByteTokenizer(languages=("de",)), max_new_tokens=3)
    >>> len(search(["two", "three"], [["de"], ["de"]]))
    2
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        beam_width: int = 1,
        length_penalty: float = 0.6,
        n_best: int = 1,
        max_new_tokens: int = 100,
        calibration: Calibration | None = None,
    ):
        self.model, self.tokenizer, self.stepper = model, tokenizer, make_stepper(model)
        self.beam_width, self.length_penalty, self.n_best, self.max_new_tokens = (
            beam_width,
            length_penalty,
            n_best,
            max_new_tokens,
        )
        self.calibration = calibration

    @torch.no_grad()
    def __call__(
        self, texts: Sequence[str], languages: Sequence[Sequence[str | None]]
    ) -> list[list[list[Translation]]]:
        """What each text becomes in each of its languages, the best first.

        A language is None where the model knows but one.
        """
        encode = pair_preprocessor(self.tokenizer)
        encoded = [encode(Pair(text, "", None)) for text in texts]
        device = next(self.model.parameters()).device
        most = max(map(len, languages), default=1)
        together = max(1, ROWS.get(device.type, 128) // (self.beam_width * max(1, most)))
        found: list[list[list[Translation]]] = [[] for _ in texts]
        for rows in batch_by_length([len(one["source"]) for one in encoded], together):
            batch = collate([encoded[n] for n in rows], self.tokenizer.pad_id)
            source, lengths = (batch[x].to(device) for x in ("source", "source_lengths"))
            answers = iter(
                self._translations(self._search(source, lengths, [languages[n] for n in rows]))
            )
            for n in rows:
                found[n] = [next(answers) for _ in languages[n]]
        return found

    def _search(
        self, source: Tensor, lengths: Tensor, to: Sequence[Sequence[str | None]]
    ) -> DecodeResult:
        """One encoding, and one row of the search for every language."""
        stepper, words = self.stepper, self.tokenizer
        state = stepper.start(source, lengths)
        names = [name for some in to for name in some]
        first = [words.bos_id if name is None else words.language_id(name) for name in names]
        first = torch.tensor(first, device=source.device)
        if any(len(some) != 1 for some in to):
            each = torch.tensor([len(some) for some in to], device=source.device)
            rows = torch.arange(len(to), device=source.device).repeat_interleave(each)
            state = stepper.select(state, rows)
        if self.beam_width == 1:
            found = greedy(
                stepper, state, first, end=words.eos_id, max_new_tokens=self.max_new_tokens
            )
            return DecodeResult(*(x[:, None] for x in found))
        return beam(
            stepper, state, first, end=words.eos_id, max_new_tokens=self.max_new_tokens, width=self.beam_width,
            length_penalty=self.length_penalty, n_best=self.n_best,
        )  # fmt: skip

    def _translations(self, found: DecodeResult) -> list[list[Translation]]:
        texts = [self.tokenizer.decode(ids) for ids in found.to_lists()]
        scores, ended = found.scores(self.length_penalty).flatten().tolist(), found.ended.flatten()
        raw = raw_scores(found).flatten().tolist()
        sure = [None if self.calibration is None else self.calibration.confidence(x) for x in raw]
        flat = zip(texts, scores, ended.tolist(), sure, raw, strict=True)
        flat = [Translation(*one) for one in flat]
        return [flat[n : n + self.n_best] for n in range(0, len(flat), self.n_best)]


def raw_scores(decoded: DecodeResult) -> Tensor:
    """What confidence is calibrated from: the logit of the probability per token, length damped.

    s = 6 · log p(y) / (5 + |y|),   raw = s - log(1 - exp s)

    For an empty answer s = log(1 - p(y)): the probability that there is any other.

    >>> two = [[4, 1], [1, 1]], [1, 0], [-0.7, -1e-3], [True, True]
    >>> raw_scores(DecodeResult(*map(torch.tensor, two)))
    tensor([ 0.1959, -6.9073])
    """
    log_prob = decoded.log_prob.double().clamp(-MOST, -math.exp(-MOST))
    empty = (decoded.lengths == 0) & decoded.ended
    score = torch.where(empty, _log1mexp(log_prob), decoded._replace(log_prob=log_prob).scores(1.0))
    return (score - _log1mexp(score)).clamp(-MOST, MOST).to(decoded.log_prob)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp x) of an x below 0."""
    return torch.log(-torch.expm1(x))


def translate_texts(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    languages: Sequence[str | None],
    *,
    beam_width: int = 1,
    length_penalty: float = 0.6,
    max_new_tokens: int = 100,
) -> list[str]:
    """Texts in other languages, a language for each (None where a model knows but one).

    A `width` of 1 is greedy; a wider beam has the `penalty` of `decode.beam` for short answers.

    >>> model = rg.models.Translator(rg.models.translator_tiny(vocab=261)).eval()
    >>> len(translate_texts(model, rg.data.ByteTokenizer(languages=("de",)), ["two"], ["de"], max_new_tokens=3))
    1
    """
    search = TranslationSearch(
        model,
        tokenizer,
        beam_width=beam_width,
        length_penalty=length_penalty,
        max_new_tokens=max_new_tokens,
    )
    return [row[0][0].text for row in search(texts, [[name] for name in languages])]
