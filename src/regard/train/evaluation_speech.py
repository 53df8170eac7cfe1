"""How good a recogniser is: its loss, and how many words and characters it gets wrong."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data import Sound, Tokenizer, collate, sound_encoder
from regard.data.batches import like_lengths
from regard.decode import BestPath
from regard.errors import ShapeError
from regard.train.evaluation import mean_loss
from regard.train.loss import objective

ROWS = 50  # sounds that are heard together


def edits(answer: Sequence[Any], reference: Sequence[Any]) -> int:
    """The fewest insertions, deletions and replacements that make one into the other (Levenshtein).

    d(i, j) = min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + [a_i ≠ b_j])

    >>> edits("kitten", "sitting")
    3
    """
    row = list(range(len(reference) + 1))
    for i, a in enumerate(answer, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(reference, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def error_rate(answers: Sequence[Sequence[Any]], references: Sequence[Sequence[Any]]) -> float:
    """Edits over the length of the references, all together: of words, or of characters.

    >>> error_rate(["ab", "c"], ["abb", "c"])
    0.25
    """
    if len(answers) != len(references) or not sum(map(len, references)):
        raise ShapeError(
            f"answers: needs one for each of {len(references)} references with something in them, "
            f"got {len(answers)}"
        )
    wrong = sum(edits(a, b) for a, b in zip(answers, references, strict=True))
    return wrong / sum(map(len, references))


def best_path(
    log_probs: Float[Tensor, "batch time vocab"], lengths: Int[Tensor, " batch"]
) -> list[list[int]]:
    """The labels of the likeliest path: repeats are joined, then blanks left out.

    >>> path = torch.tensor([[1, 1, 0, 1, 2, 2]])
    >>> best_path(torch.nn.functional.one_hot(path, 3).float().log(), torch.tensor([6]))
    [[1, 1, 2]]
    """
    return [
        BestPath()(row[:length]) for row, length in zip(log_probs, lengths.tolist(), strict=True)
    ]


@torch.no_grad()
def transcribe(model: nn.Module, tokenizer: Tokenizer, sounds: Sequence[Sound]) -> list[str]:
    """What a recogniser hears in sounds.

    >>> tokenizer = rg.data.Characters.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> len(transcribe(model, tokenizer, [Sound(torch.zeros(8000), "", 8000)]))
    1
    """
    texts = [""] * len(sounds)
    for rows, batch in _batches(model, tokenizer, sounds):
        log_probs, lengths = model(batch["frames"], batch["frames_lengths"])
        for n, labels in zip(rows, best_path(log_probs, lengths), strict=True):
            texts[n] = tokenizer.decode(labels)
    return texts


def _batches(model: nn.Module, tokenizer: Tokenizer, sounds: Sequence[Sound]) -> Any:
    """Sounds of like lengths together, ready for the model, with their places in the list."""
    encode = sound_encoder(tokenizer, mels=model.config.mels)  # type: ignore[attr-defined]
    device = next(model.parameters()).device
    for rows in like_lengths([len(sound.wave) for sound in sounds], ROWS):
        batch = collate([encode(sounds[n]) for n in rows])
        yield rows, {name: x.to(device) for name, x in batch.items()}


class SpeechScores:
    """What a recogniser gets on fixed sounds: loss, character error, share of exact answers.

    >>> tokenizer = rg.data.Characters.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> scores = SpeechScores([Sound(torch.zeros(8000), "ET", 8000)], tokenizer)
    >>> sorted(scores(model))
    ['error', 'exact', 'loss']
    """

    def __init__(self, sounds: Sequence[Sound], tokenizer: Tokenizer):
        if not sounds:
            raise ShapeError("sounds: needs 1 or more, got none")
        self.sounds, self.tokenizer = sounds, tokenizer

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        return self.judge(model, self.answers(model))

    def answers(self, model: nn.Module) -> list[str]:
        """What the model hears in each."""
        return transcribe(model, self.tokenizer, self.sounds)

    @property
    def asked(self) -> list[str]:
        """Which sound it is, in words."""
        return [
            f"sound {n}, {len(sound.wave) / sound.rate:.1f} s"
            for n, sound in enumerate(self.sounds)
        ]

    @property
    def right(self) -> list[str]:
        """What is said in each."""
        return [sound.text for sound in self.sounds]

    def judge(self, model: nn.Module, answers: Sequence[str]) -> dict[str, Any]:
        """The scores of answers that the model gave."""
        texts = self.right
        exact = sum(a == b for a, b in zip(answers, texts, strict=True)) / len(texts)
        batches = (batch for _, batch in _batches(model, self.tokenizer, self.sounds))
        loss = mean_loss(model, objective("ctc"), batches)
        return {"loss": loss, "error": error_rate(answers, texts), "exact": exact}
