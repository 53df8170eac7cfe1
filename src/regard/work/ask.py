"""Answers to the questions that courses ask, found by the words people ask with.

answer = rg.work.ask("why divide by sqrt(d)")
print(answer)                       # idea, equation, numbers, the usual mistakes, what shows it
rg.work.find_answers("positions")   # several, the best first
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

from regard.errors import WorkError
from regard.files import read_text

FOLDER = Path(__file__).parent / "answers"
MIN_SCORE = 0.25  # from 0 to 1; below it no answer is given as the one
MAX_CHARS = 1_000  # of a query
WORD = re.compile(r"[a-z]+|[σβ]|√")
ALIASES = {
    "√": "sqrt", "root": "sqrt", "σ": "sigmoid", "sigma": "sigmoid", "β": "beta", "nn": "network",
    "rnns": "rnn", "cnns": "cnn", "convnet": "cnn", "ffn": "feed", "feedforward": "feed",
    "positional": "position", "encodings": "encoding", "softargmax": "softmax", "keys": "key",
    "recurrent": "rnn", "convolutional": "convolution", "picture": "map", "heatmap": "map",
    "role": "purpose", "point": "purpose", "vs": "versus", "against": "versus",
    "compare": "versus", "compared": "versus", "epsilon": "noise", "shared": "common",
    "layernorm": "norm", "normalisation": "norm", "normalization": "norm", "skip": "residual",
    "formula": "equation", "derivation": "derive", "prove": "proof", "error": "gradient",
    "gpt": "decoder", "bert": "encoder", "dk": "d", "benefit": "purpose", "advantage": "purpose",
    "perturb": "noise", "perturbation": "noise", "perturbed": "noise", "perturbing": "noise",
    "jitter": "noise",
    "temperature": "beta", "complexity": "cost", "operations": "cost", "flops": "cost",
    "figure": "map", "zero": "near", "zeros": "near", "seq": "sequence",
    "transformers": "transformer",
}  # fmt: skip
ENDINGS = (
    *("ations", "ation", "ised", "ized", "ise", "ize", "ism"),
    *("ings", "ing", "ies", "es", "ed", "s", "e"),
)
COMMON = (
    "a an and are as at be by can do does for from give has have how i if in is it its me my not "
    "of on one or please show so tell that the there this to use used was we what when which why "
    "with"
)


class Answer(NamedTuple):
    """A question with its answer: prose, equation, numbers, and the usual mistakes.

    >>> answer = rg.work.ask("reset gate of a gru near zero, update gate near one")
    >>> answer.topic, answer.command, answer.claims
    ('Recurrent cells', 'regard work gates', ('I9', 'I10'))
    """

    title: str
    topic: str
    asked: tuple[str, ...]  # other wordings
    claims: tuple[str, ...]  # that test what it says
    command: str  # that shows it
    text: str

    def __str__(self) -> str:
        claims = f"Claims: regard claims {' '.join(self.claims)}\n" if self.claims else ""
        return f"{self.title}\n\n{self.text}\n\nSee it: {self.command}\n{claims}".rstrip()


def ask(question: str) -> Answer:
    """The answer to a question; raises a WorkError with the nearest ones if none fits.

    >>> ask("why do we divide by the square root of d").title
    'Derive scaled dot-product attention: why divide by √d?'
    """
    answers = find_answers(question)
    if not answers or answers[0][0] < MIN_SCORE:
        near = "; ".join(answer.title for _, answer in answers[:3])
        hint = f"; try one of: {near}" if near else "; try regard ask, the list of all"
        raise WorkError(f"question: needs words of a question on the list, got {question!r}{hint}")
    return answers[0][1]


def find_answers(
    question: str, count: int = 5, among: tuple[Answer, ...] = ()
) -> list[tuple[float, Answer]]:
    """The answers that share most with a question, each with its score from 0 to 1.

    Words count by how rare they are among the answers, in the title or another wording more than
    in the text; an unknown word stands for the most similar known one.

    Args:
        question: in any words.
        count: the most that are returned.
        among: what to search, such as `regard.claims.claim_answers()`; default: all answers.

    >>> [answer.topic for _, answer in find_answers("class token of a vit", count=1)]
    ['Vision']
    """
    if not question.strip() or len(question) > MAX_CHARS:
        raise WorkError(f"question: needs 1 to {MAX_CHARS} characters, got {len(question)}")
    known = among or answers()
    index, words = _index(known), _words(question)
    query = {word if word in index.rarity else _nearest(word, index) for word in words}
    scores = [
        (_score(query, wordings, text, index.rarity), answer)
        for answer, (wordings, text) in zip(known, index.words, strict=True)
    ]
    return [one for one in sorted(scores, key=lambda one: -one[0]) if one[0] > 0][:count]


def _score(
    query: set[str], wordings: list[set[str]], text: set[str], rarity: Mapping[str, float]
) -> float:
    """The cosine with the best wording, and the shares of the query that they and the text have."""

    unknown = max(rarity.values())

    def weight(words: set[str]) -> float:
        return sum(rarity.get(word, unknown) for word in words)

    if not query:
        return 0.0
    cosines = (weight(query & x) / math.sqrt(weight(query) * weight(x)) for x in wordings)
    covered = weight(query & set().union(*wordings)) / weight(query)
    share = weight(query & text) / weight(query)
    return 0.5 * max(cosines) + 0.35 * covered + 0.15 * share


@cache
def answers() -> tuple[Answer, ...]:
    """All answers, by topic.

    >>> len(answers())
    56
    """
    return tuple(one for file in sorted(FOLDER.glob("*.md")) for one in _parse(read_text(file)))


def _parse(text: str) -> Iterable[Answer]:
    heading, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    topic = heading.strip().removeprefix("# ")
    for part in parts:
        lines = part.strip().splitlines()
        facts = dict(line.split(": ", 1) for line in lines[1:4])
        yield Answer(
            title=lines[0],
            topic=topic,
            asked=tuple(facts["asked"].split(" / ")),
            claims=tuple(facts["claims"].split()),
            command=facts["try"],
            text="\n".join(lines[4:]).strip(),
        )


class _Index(NamedTuple):
    rarity: dict[str, float]
    words: list[tuple[list[set[str]], set[str]]]  # of each answer: its wordings, its text


@cache
def _index(known: tuple[Answer, ...]) -> _Index:
    words = [
        ([set(_words(x)) for x in (answer.title, *answer.asked)], set(_words(answer.text)))
        for answer in known
    ]
    counts = Counter(x for wordings, text in words for x in text.union(*wordings))
    return _Index({x: math.log(1 + len(words) / n) for x, n in counts.items()}, words)


def _words(text: str) -> list[str]:
    """The words of a text without their endings, common ones left out."""
    words = [str(ALIASES.get(word, word)) for word in WORD.findall(text.lower())]
    return [_stem(word) for word in words if word not in COMMON.split()]


def _stem(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _nearest(word: str, index: _Index) -> str:
    """The most similar known word of the same first letter, in place of a misspelt one."""
    known = [x for x in index.rarity if x[0] == word[0]]
    close = get_close_matches(word, known, 1, cutoff=0.8) if len(word) > 3 else []
    return close[0] if close else word
