"""The linear model of n-grams that a classifier of texts or words is mixed with."""

from collections.abc import Sequence
from zlib import crc32

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.ops import TagChain

LONGEST = 24  # characters of a token that are read
TokenIds = Int[Tensor, "batch time"]
Lengths = Int[Tensor, " batch"] | None


class NgramLogits(nn.Module):
    """Logits that are linear in hashed features of the characters of the tokens.

    logits = Σ_f value_f · weight[hash(f)] + bias

    Of a text the features are its n-grams of words and of characters, each kind with norm 1 after
    `scale` (tf-idf). With `words` they are those of each word and its neighbours, of value 1; its
    logits are at its first token, and `chain` scores tags in a row. A word begins at a token that
    begins with a space. Nothing here is trained by gradients: `tasks.ngram_fit` fits it.

    >>> layer = NgramLogits(vocab=9, buckets=64, classes=2)
    >>> layer(torch.tensor([[4, 5]]))
    tensor([[0., 0.]])
    """

    characters: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, vocab: int, buckets: int, classes: int, *, words: bool = False):
        super().__init__()
        self.words = words
        self.register_buffer("characters", torch.zeros(vocab, LONGEST, dtype=torch.int32))
        sizes = {"scale": (buckets,), "weight": (buckets, classes), "bias": (classes,)}
        if words:
            sizes |= {"transitions": (classes, classes), "start": (classes,), "end": (classes,)}
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size), requires_grad=False))

    @property
    def chain(self) -> TagChain:
        """Scores of two tags in a row, of the first tag and of the last."""
        return TagChain(*(getattr(self, name) for name in TagChain._fields))

    def forward(
        self, tokens: TokenIds, lengths: Lengths = None
    ) -> Float[Tensor, "batch classes"] | Float[Tensor, "batch time classes"]:
        columns, starts, values = self.features(self.read(tokens, lengths))
        x = F.embedding_bag(columns, self.weight, starts, per_sample_weights=values, mode="sum")
        if not self.words:
            return x + self.bias
        logits = x.new_zeros(*tokens.shape, len(self.bias))
        logits[self._word_starts(tokens, lengths)] = x
        return logits

    def read(self, tokens: TokenIds, lengths: Lengths = None) -> list[list[str]]:
        """The words of each row of tokens; a text is one."""
        starts = self._word_starts(tokens, lengths).tolist()
        sizes = [tokens.shape[1]] * len(tokens) if lengths is None else lengths.tolist()
        rows = list[list[str]]()
        for row, begins, size in zip(self.characters[tokens].tolist(), starts, sizes, strict=True):
            words = [] if self.words else [""]
            for token, is_first in zip(row[:size], begins, strict=False):
                name = "".join(map(chr, filter(None, token)))
                if self.words and is_first:
                    words.append(name.removeprefix(" "))
                else:
                    words[-1] += name
            rows.append(words)
        return rows

    def features(self, rows: Sequence[list[str]]) -> tuple[Tensor, Tensor, Tensor]:
        """The buckets of all texts or words in a row, where each begins, and the values."""
        from regard.data.text.words import hash_ngrams, word_features  # looking loads no data

        buckets, device = len(self.scale), self.weight.device
        if self.words:
            names = [x for row in rows for x in word_features(row)]
            parts = [[crc32(f.encode(errors="surrogatepass")) % buckets for f in x] for x in names]
        else:
            hashed = [hash_ngrams(row[0], buckets // 2) for row in rows]
            parts = [x for a, b in hashed for x in (a, [buckets // 2 + n for n in b])]
        sizes = torch.tensor([len(x) for x in parts], dtype=torch.long, device=device)
        columns = torch.tensor([n for part in parts for n in part], dtype=torch.long, device=device)
        starts, values = sizes.cumsum(0) - sizes, torch.ones_like(columns, dtype=self.weight.dtype)
        if not self.words:  # two parts per text
            part, values = torch.arange(len(sizes), device=device), self.scale[columns]
            part = part.repeat_interleave(sizes)
            norms = values.new_zeros(len(sizes)).index_add(0, part, values.square()).sqrt()
            starts, values = starts[::2], values / norms.clamp(min=1)[part]
        return columns, starts, values

    def _word_starts(self, tokens: TokenIds, lengths: Lengths) -> Bool[Tensor, "batch time"]:
        starts = self.characters[tokens, 0] == ord(" ")
        starts[:, :1] = True
        if lengths is None:
            return starts
        return starts & (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None])
