"""Fits the n-gram logits of a classifier of texts or words, before it is trained."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data import Tokenizer, collate
from regard.data.batches import Encoded, batch_by_length
from regard.models.ngram_logits import LONGEST, NgramLogits
from regard.ops import TagChain, crf_log_likelihood
from regard.tasks.baselines.tag_chain import fit_crf_tagger
from regard.tasks.class_names import file_stamp
from regard.train.linear import SparseRows, fit_best_linear

MIX_ITERATIONS, BATCH_SIZE = 12, 64


def fit_ngrams(task: Any, model: Any, tokenizer: Tokenizer) -> None:
    """Set the n-gram weights of a new classifier of texts or words."""
    config = model.config
    sizes = config.vocab, config.ngrams, config.classes
    stamps = tuple(file_stamp(path) for path in (task.train, task.valid, task.test))
    model.ngrams.load_state_dict(_fit(task, tokenizer, sizes, model.ngrams.words, stamps))


@lru_cache(1)  # trials begin with the same
@torch.no_grad()
def _fit(
    task: Any, tokenizer: Tokenizer, sizes: tuple[int, int, int], words: bool, stamps: Any
) -> dict[str, Tensor]:
    layer = NgramLogits(*sizes, words=words)
    for row, name in zip(layer.characters, spellings(tokenizer), strict=True):
        codes = [ord(c) for c in name[:LONGEST]]
        row[: len(codes)] = torch.tensor(codes, dtype=torch.int32)
    train = task.encoded(tokenizer, "train")
    if words:
        _fit_words(layer, train)
    else:
        _fit_texts(layer, train, task.encoded(tokenizer, "valid") or train)
    return layer.state_dict()


@torch.no_grad()
def fit_mix(model: Any, rows: Sequence[Encoded]) -> None:
    """Set how the network and the n-grams of a classifier are mixed, by rows of the valid split.

    minimise -Σ log p(labels | mix) + ½ ‖mix - (0, 1)‖²,   mix ≥ 0
    """
    device, parts = model.mix.device, list[tuple[Tensor, ...]]()
    for indices in batch_by_length([len(row["tokens"]) for row in rows], BATCH_SIZE):
        batch = {k: x.to(device) for k, x in collate([rows[n] for n in indices]).items()}
        both = []
        for alone in torch.eye(2, device=device):
            model.mix.copy_(alone)
            both.append(model(batch["tokens"], batch["tokens_lengths"]))
        if not model.ngrams.words:
            parts.append((*both, batch["label"]))
            continue
        mask = batch["tags"] > 0  # the words, without gaps
        order = (~mask).byte().argsort(dim=1, stable=True)[:, : max(1, int(mask.sum(1).max()))]
        at, present = order[..., None].expand(-1, -1, both[0].shape[2]), mask.any(1)
        words = [x.gather(1, at) for x in both]
        words += [batch["tags"].gather(1, order) - 1, mask.sum(1)]
        parts.append(tuple(x[present] for x in words))
    start = torch.tensor([0.0, 1.0], device=device)
    mix = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([mix], max_iter=MIX_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        weights = mix.clamp(min=0)
        total = (mix - start).square().sum() / 2
        for a, b, labels, *lengths in parts:
            logits = weights[0] * a + weights[1] * b
            if lengths:
                chain = TagChain(*(weights[1] * x for x in model.ngrams.chain))
                total = total - crf_log_likelihood(logits, labels, chain, *lengths).sum()
            else:
                total = total + F.cross_entropy(logits, labels, reduction="sum")
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    model.mix.copy_(mix.detach().clamp(min=0))


def spellings(tokenizer: Tokenizer) -> list[str]:
    """The characters of each token, with the space before a word; special tokens have none.

    >>> spellings(rg.data.ByteTokenizer())[100:103]
    ['`', 'a', 'b']
    """
    numbers = range(tokenizer.vocab)
    names = ["" if n in tokenizer.special_tokens else tokenizer.id_to_token(n) for n in numbers]
    if any(name.startswith("##") for name in names):  # WordPiece marks what continues a word
        names = [x.removeprefix("##") if x[:2] == "##" else f" {x}" if x else "" for x in names]
    return names


def _fit_texts(layer: NgramLogits, *splits: list[Encoded]) -> None:
    """Logistic regression on tf-idf features, its penalty chosen by the second split."""
    texts = [[layer.read(row["tokens"][None])[0] for row in rows] for rows in splits]
    counts = layer.features(texts[0])[0].bincount(minlength=len(layer.scale))
    layer.scale.copy_((((1 + len(texts[0])) / (1 + counts)).log() + 1).where(counts > 0, 0))
    data = [
        (SparseRows(*layer.features(x), len(layer.scale)), torch.stack([y["label"] for y in rows]))
        for x, rows in zip(texts, splits, strict=True)
    ]
    model = fit_best_linear(data[0], data[1], len(layer.bias))
    layer.weight.copy_(model.weight)
    layer.bias.copy_(model.bias)


def _fit_words(layer: NgramLogits, rows: list[Encoded]) -> None:
    """A linear-chain CRF."""
    tags = [(row["tags"][row["tags"] > 0] - 1).tolist() for row in rows]
    # a word with spaces within is several here; its sentence is left out
    words = [layer.read(row["tokens"][None])[0] for row in rows]
    pairs = [x for x in zip(words, tags, strict=True) if len(x[0]) == len(x[1])]
    buckets, classes = layer.weight.shape
    with torch.enable_grad():
        tagger = fit_crf_tagger([x for x, _ in pairs], [y for _, y in pairs], classes, buckets)
    for present, x in zip(
        (layer.weight, *layer.chain), (tagger.weight, *tagger.chain), strict=True
    ):
        present.copy_(x)
