"""Text of tokens that are generated one by one: whole characters, stop sequences and scores."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from regard.data import Tokenizer
from regard.decode import GeneratedRow, TokenScore
from regard.ops.maybe_none import MaybeNone

CONTEXT = 8  # tokens that new ones are decoded with


class ScoredToken(NamedTuple):
    """A token as the text that it adds, its log probability and those of the most likely ones."""

    text: str  # its name where it adds none, such as one byte of a character
    offset: int  # of its text in the whole
    logprob: float | MaybeNone  # None for a first token, which nothing precedes
    top: dict[str, float]


class TextPiece(NamedTuple):
    """What a step adds to a text."""

    text: str
    tokens: tuple[ScoredToken, ...] = ()  # where they are scored
    generated: int = 0  # tokens so far
    finish_reason: Literal["stop", "length"] | None = None  # of the last piece


class TextStream:
    """A text that a `TextGenerator` is generating; `text` is what it has so far.

    Text that may be the begin of a stop sequence is held back; the one that is complete first ends
    the text, which does not contain it.

    >>> stream = TextStream(rg.decode.GeneratedRow([3], max_new_tokens=9), stop=["cd"])
    >>> [stream.release(text) for text in ("ab", "c", "x", "cde")]
    ['ab', '', 'cx', '']
    >>> stream.text, stream.ended
    ('abcx', True)
    """

    def __init__(self, row: GeneratedRow, stop: Sequence[str] = ()):
        self.row, self.stop, self.text, self.ended = row, tuple(stop), "", False
        self._is_cut = False  # by a stop sequence
        self._held = ""  # text that may be the begin of a stop sequence
        # decoded after tokens before them: a token may begin with a space that the first one loses
        self._context = list(row.prompt[-CONTEXT:])
        self.pending = list[int]()  # tokens of an incomplete character
        self._scored = list[ScoredToken]()  # whose text is not released yet

    def push(self, token: int, ended: bool, tokenizer: Tokenizer) -> TextPiece:
        """Add a token; returns what it completes."""
        tokens, offset = [*self.pending, token], len(self.text) + len(self._held)
        text = token_text(tokenizer, self._context, tokens)
        # a character may be spread over several byte tokens
        is_complete = ended or not text.endswith("�")
        if self.row.scores and token != tokenizer.eos_id:
            new = text if is_complete else ""
            self._scored.append(
                scored_token(tokenizer, self._context, tokens, new, offset, self.row.scores[-1])
            )
        self.pending = [] if is_complete else tokens
        if is_complete:
            self._context = (self._context + tokens)[-CONTEXT:]
        piece = self.release(text if is_complete else "", ended)
        done = [x for x in self._scored if x.offset < len(self.text)]
        self._scored = [x for x in self._scored if x.offset >= len(self.text)]
        count = len(self.row.tokens)
        if not self.ended:
            return TextPiece(piece, tuple(done), count)
        is_stopped = self._is_cut or token == tokenizer.eos_id
        return TextPiece(piece, tuple(done), count, "stop" if is_stopped else "length")

    def release(self, text: str, ended: bool = False) -> str:
        """The part of new text that can be part of no stop sequence."""
        text = self._held + text
        ends = [(at + len(x), at) for x in self.stop if (at := text.find(x)) >= 0]
        size = min(ends)[1] if ends else len(text)
        self._is_cut = bool(ends)
        self.ended = ended or self._is_cut
        if not self.ended:
            begun = (n for x in self.stop for n in range(1, len(x)) if text.endswith(x[:n]))
            size -= max(begun, default=0)
        self._held = "" if self.ended else text[size:]
        self.text += text[:size]
        return text[:size]


def token_text(tokenizer: Tokenizer, context: Sequence[int], tokens: Sequence[int]) -> str:
    """The text that tokens add after others; a first space is part of it only there.

    >>> token_text(rg.data.ByteTokenizer(), [], rg.data.ByteTokenizer().encode("ab"))
    'ab'
    """
    before = tokenizer.decode(context)
    return tokenizer.decode([*context, *tokens])[len(before) :]


def scored_token(
    tokenizer: Tokenizer,
    context: Sequence[int],
    tokens: Sequence[int],
    text: str,
    offset: int,
    score: TokenScore | None,
) -> ScoredToken:
    """The last of some tokens, and those that might have been in its place, by their texts."""
    *first, token = tokens

    def name(other: int) -> str:
        added = token_text(tokenizer, context, [*first, other])
        return added if added and not added.endswith("�") else tokenizer.id_to_token(other)

    text = text or tokenizer.id_to_token(token)
    if score is None:
        return ScoredToken(text, offset, None, {})
    return ScoredToken(text, offset, score.logprob, {name(k): x for k, x in score.top.items()})
