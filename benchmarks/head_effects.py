"""How much single heads matter for a prediction: what it loses without each of them, in nats.

python benchmarks/head_effects.py [MODEL…]     # by default the included models that read text
"""

from random import Random

import typer

from regard.data.content.stories import KINDS
from regard.errors import RegardError
from regard.web.explorer import Explorer
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.views.models import EXAMPLES

DRAWN = 50  # sentences per kind


def main(names: list[str] | None = None) -> None:
    names = names or ["phrases", "stdlib", "stories"]
    explorer = Explorer(Catalog(names, device="cpu"))
    for name in names:
        print(f"{name}\n  {'text':<64} {'writes':>8} {'p':>6}  largest effect")
        for text in EXAMPLES.get(name, {}):
            print_text(explorer, name, text)
    if "stories" in names:
        print(f"\nstories, {DRAWN} drawn sentences per kind, each without its last word")
        for kind in KINDS[1:]:
            print_kind(explorer, kind.__name__[1:], [cut(kind(Random(n))) for n in range(DRAWN)])


def cut(text: str) -> str:
    """A sentence before its last word; of those on a state, before the verb."""
    words = text.removesuffix(".").split(" ")
    verbs = [n for n, x in enumerate(words) if x in ("is", "are", "was", "were")]
    is_state = verbs and verbs[-1] == len(words) - 2 and " has " not in text
    return " ".join(words[: verbs[-1]] if is_state and " lost " not in text else words[:-1])


def effects(explorer: Explorer, model: str, text: str) -> dict:
    body = {"model": model, "text": text} | ({"to": "de"} if model.startswith("phrases") else {})
    found = explorer.answer("text", body)["effects"]
    if found is None:
        raise RegardError(f"{model}: no effects of heads")
    return found


def print_text(explorer: Explorer, model: str, text: str) -> None:
    found = effects(explorer, model, text)
    best = max(found["heads"], key=lambda x: x["effect"])
    at = f"{best['site']}, head {best['head']}"
    print(
        f"  {text!r:<64} {found['token']:>8} {found['probability']:6.3f}"
        f"  {best['effect']:5.2f} nats by {at}: {best['probability']:.3f}, {best['writes']!r}"
    )


def print_kind(explorer: Explorer, kind: str, texts: list[str]) -> None:
    found = [effects(explorer, "stories", text) for text in texts]
    best = [max(x["heads"], key=lambda x: x["effect"]) for x in found]
    mean = sum(x["effect"] for x in best) / len(best)
    changed = sum(any(h["writes"] != x["token"] for h in x["heads"]) for x in found) / len(found)
    print(f"  {kind:<10} largest effect {mean:5.2f} nats; another word in {changed:4.0%} of texts")


if __name__ == "__main__":
    typer.run(main)
