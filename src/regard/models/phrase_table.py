"""A phrase table: texts with their translations, kept beside the weights of a translator."""

import torch
from torch import Tensor, nn

NEVER = 2.0, -100.0  # limits by which the network always answers


class PhraseTable(nn.Module):
    """Words, then whole texts, each with its translation, as tokens; nothing here is trained.

    `limits`, of similarity and of the network's score, say when an answer of it is replaced, see
    `tasks.translation.phrase_table`.

    >>> table = PhraseTable(1, 1, 4)
    >>> table.fill([([5], [6]), ([7], [8])])
    >>> table.pairs()
    [([5], [6]), ([7], [8])]
    """

    tokens: Tensor
    lengths: Tensor

    def __init__(self, words: int, texts: int, tokens: int):
        super().__init__()
        self.words = words
        self.limits = nn.Parameter(torch.tensor(NEVER), requires_grad=False)
        for name, shape in (("tokens", (tokens,)), ("lengths", (words + texts, 2))):
            values = torch.zeros(shape, dtype=torch.int32)
            self.register_parameter(name, nn.Parameter(values, requires_grad=False))

    @property
    def summary(self) -> str:
        """How answers are chosen, for the card."""
        similarity, score = self.limits.tolist()
        parts = [f"the translation of a train text at least {similarity:.1f} similar, else"] * (
            similarity <= 1
        )
        if score <= -NEVER[1] / 2:
            parts.append(f"the network's with a score of at least {score:.2f}, else")
        return f"answers: {' '.join(parts)} word by word by a dictionary of {self.words:,} words"

    def fill(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        """Set the tokens of all sources and targets."""
        self.tokens.copy_(torch.tensor([x for pair in pairs for side in pair for x in side]))
        self.lengths.copy_(torch.tensor([[len(side) for side in pair] for pair in pairs]))

    def pairs(self) -> list[tuple[list[int], list[int]]]:
        """Sources and targets, as tokens."""
        parts = self.tokens.split(self.lengths.flatten().tolist())
        sides = [part.tolist() for part in parts]
        return list(zip(sides[::2], sides[1::2], strict=True))
