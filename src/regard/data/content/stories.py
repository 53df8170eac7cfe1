"""Short sentences that a small model can only continue by looking back: endless and drawn."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from regard.data.text.documents import Document, TextFiles


def _words(text: str) -> list[str]:
    return text.split()


WOMEN = _words("Mary Anna Emma Lucy Alice Clara Nora Ruth Sarah Julia Helen Rosa")
MEN = _words("John Tom Peter Paul David Mark Simon Jack Henry Adam Oscar Felix")
PLACES = _words("store park school market river station garden library beach museum")
THINGS = _words("drink book ball letter apple ring lamp kite coat map key cup")
COLOURS = _words("red blue green black white yellow brown pink")
SINGULAR = _words("key dog child lamp tree bird boat car girl boy teacher house")
PLURAL = _words("keys dogs children lamps trees birds boats cars girls boys teachers houses")
NEAR = ["near", "behind", "beside", "in front of", "next to", "under"]
STATES = _words("old new small big tired happy quiet clean lost cold")
WORDS = [*COLOURS, *_words("sun hill cat rain snow leaf star wind moon fish")]
PAIRS = {"(": ")", "[": "]", "{": "}"}


def _names(r: Random) -> str:
    """Who is given something: the name of the two that is not yet repeated."""
    first, second = r.sample([*WOMEN, *MEN], 2)
    giver, other = r.sample([first, second], 2)
    begin = r.choice(["When", "After", "While", "Then"])
    went = r.choice(["went to", "met at", "walked to", "were at"])
    verb = r.choice(["gave", "handed", "showed", "brought"])
    join = "." if begin == "Then" else ","
    place, thing = r.choice(PLACES), r.choice(THINGS)
    text = f"{begin} {first} and {second} {went} the {place}{join} {giver} {verb}"
    return f"{text} {r.choice(['a', 'the'])} {thing} to {other}."


def _agreement(r: Random) -> str:
    """The verb agrees with the first noun, not with the nearest."""
    nouns = (SINGULAR, PLURAL)
    number = r.randrange(2)
    text = f"The {r.choice(nouns[number])}"
    for _ in range(r.randrange(3)):
        text += f" {r.choice(NEAR)} the {r.choice(r.choice(nouns))}"
    return f"{text} {r.choice((('is', 'was'), ('are', 'were'))[number])} {r.choice(STATES)}."


def _brackets(r: Random) -> str:
    """Each bracket closes the one that is still open."""
    text, opened = ["List:"], list[str]()
    for _ in range(r.randint(5, 14)):
        if len(opened) < 3 and r.random() < 0.4:
            opened.append(r.choice([*PAIRS]))
            text.append(opened[-1])
        elif opened and r.random() < 0.5:
            text.append(PAIRS[opened.pop()])
        else:
            text.append(r.choice(WORDS))
    return " ".join([*text, *(PAIRS[x] for x in reversed(opened))]) + "."


def _copy(r: Random) -> str:
    """The second list repeats the first."""
    words = r.choices(WORDS, k=r.randint(3, 9))
    return f"Say {' '.join(words)}. Again {' '.join(words)}."


def _owners(r: Random) -> str:
    """Everyone's thing has the colour that was said of them."""
    people, colours = r.sample([*WOMEN, *MEN], 3), r.sample(COLOURS, 3)
    thing, count = r.choice(THINGS), r.choice([2, 2, 3])
    owned = [f"{p} has a {c} {thing}" for p, c in zip(people, colours, strict=True)][:count]
    at = r.randrange(count)
    return f"Today {' and '.join(owned)}. The {thing} of {people[at]} is {colours[at]}."


def _pronouns(r: Random) -> str:
    """Her or his, she or he, by the name before."""
    woman = r.random() < 0.5
    name, (whose, who) = r.choice((MEN, WOMEN)[woman]), (("his", "he"), ("her", "she"))[woman]
    text = f"Today {name} lost {whose} {r.choice(COLOURS)} {r.choice(THINGS)}"
    return f"{text} at the {r.choice(PLACES)}, and {who} was {r.choice(STATES)}."


KINDS: tuple[Callable[[Random], str], ...] = (
    *(_names, _names, _agreement, _brackets, _copy, _owners, _pronouns),
)


class Stories(TextFiles):
    """Sentences drawn from a fixed seed; the hash of each assigns it to a split.

    >>> next(Stories(1).all_documents()).text
    'Today Nora lost her red apple at the beach, and she was clean.'
    """

    def __init__(self, count: int):
        super().__init__([Path(__file__)])  # a cache of the tokens is of this version of it
        self.count = count

    def _read(self, path: Path) -> Iterator[Document]:
        r = Random(0)
        for number in range(self.count):
            yield Document(r.choice(KINDS)(r), f"story {number}")
