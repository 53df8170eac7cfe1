"""Small models, trained on demand, that recall one letter of a sequence."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.claims.measurements import Batch, train_model
from regard.errors import ConfigError
from regard.models import LanguageModel, language_tiny
from regard.nn import Recurrent
from regard.web.explorer.catalog import BoundedStore, one
from regard.web.jobs import Job

Kind = Literal["rnn", "gru", "lstm", "transformer", "linear"]
KINDS: tuple[Kind, ...] = ("rnn", "gru", "lstm", "transformer")
KEYS, NOISE = "ABCD", "abcdefgh"  # letters to recall, and letters in between
WIDTH, LENGTH, STEPS, LR = 32, 32, 250, 3e-3
TEST_LENGTH, TEST_SEQUENCES = 64, 6400  # twice as long as in training


class RecallModel(nn.Module):
    """Guesses, after each letter, which capital letter the sequence had.

    logits_t = W h_t,   h of one recurrent layer, or of two causal blocks of attention or, with
    "linear", of retention

    >>> RecallModel("gru")(torch.tensor([[0, 4, 5]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, kind: Kind):
        super().__init__()
        self.kind, vocab = kind, len(KEYS + NOISE)
        if kind in ("transformer", "linear"):
            mixer = "attention" if kind == "transformer" else "retention"
            config = language_tiny(vocab=vocab, dim=WIDTH, heads=2, dropout=0.0, mixer=mixer)
            self.layer = LanguageModel(config)
        else:
            self.embedding = nn.Embedding(vocab, WIDTH)
            self.layer = Recurrent(WIDTH, WIDTH, kind=kind)
            self.head = nn.Linear(WIDTH, len(KEYS))

    @property
    def input_embedding(self) -> nn.Module:
        """The module whose output has one vector per letter."""
        return self.layer.embedding if isinstance(self.layer, LanguageModel) else self.embedding

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time key"]:
        if isinstance(self.layer, LanguageModel):
            return self.layer(tokens)[..., : len(KEYS)]  # of its next-token logits, the capitals
        return self.head(self.layer(self.embedding(tokens))[0])


class Trained(NamedTuple):
    """A trained model, and its accuracy by the number of letters since the capital one."""

    model: RecallModel
    accuracy: list[float]


def parse_sequence(text: str) -> Int[Tensor, "batch time"]:
    """The token ids of letters, (1, time); spaces are skipped.

    >>> parse_sequence("aB c")
    tensor([[4, 1, 6]])
    """
    letters = [x for x in text if not x.isspace()]
    unknown = [x for x in letters if x not in KEYS + NOISE]
    if unknown or not letters:
        got = repr(unknown[0]) if unknown else "none"
        raise ConfigError(f"sequence: needs letters of {KEYS} and {NOISE}, got {got}")
    if sum(x in KEYS for x in letters) != 1:
        raise ConfigError(
            f"sequence: needs exactly one capital letter, as in training, got {text[:40]!r}"
        )
    return torch.tensor([[(KEYS + NOISE).index(x) for x in letters]])


def draw_sequences(rng: torch.Generator, count: int = 64, length: int | None = None) -> Batch:
    """Noise with one capital letter, which is the label, at a random position.

    The length is random too, so that a guess after every letter from the capital one on is trained.
    """
    length = length or int(torch.randint(2, LENGTH + 1, (), generator=rng))
    tokens = torch.randint(len(KEYS), len(KEYS + NOISE), (count, length), generator=rng)
    labels = torch.randint(len(KEYS), (count,), generator=rng)
    at = torch.randint(length, (count,), generator=rng)
    tokens[torch.arange(count), at] = labels
    return {"tokens": tokens, "labels": labels, "distance": length - 1 - at}


_trained = BoundedStore(16, one)  # a model depends on its kind and seed only


def trained_model(kind: Kind, seed: int, job: Job) -> Trained:
    """A model, trained once; the job reports how far the training is and can cancel it."""
    known = _trained.get((kind, seed))
    return known or _trained.put((kind, seed), _train(kind, seed, job))


def _train(kind: Kind, seed: int, job: Job) -> Trained:
    done = 0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal done
        done += 1
        job.report(done / STEPS, f"training {kind}, update {done} of {STEPS}")
        return F.cross_entropy(model(batch["tokens"])[:, -1], batch["labels"])

    model = train_model(
        lambda: RecallModel(kind), draw_sequences, loss, steps=STEPS, lr=LR, seed=seed
    )
    return Trained(model, accuracy_by_distance(model, seed))


@torch.no_grad()
def accuracy_by_distance(model: RecallModel, seed: int) -> list[float]:
    """Share of new sequences whose letter is recalled, by the letters since it."""
    test = draw_sequences(torch.Generator().manual_seed(10_000 + seed), TEST_SEQUENCES, TEST_LENGTH)
    right = (model(test["tokens"])[:, -1].argmax(-1) == test["labels"]).double()
    return [float(right[test["distance"] == d].mean()) for d in range(TEST_LENGTH)]
