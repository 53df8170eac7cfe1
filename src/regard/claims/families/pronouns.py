"""Claims about what trained heads do: a model that resolves a pronoun."""

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.claims.charts import Bars, Lines, Maps
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.measurements import Batch, train_model
from regard.inspection import edit, look, what_if
from regard.models import Classifier, ClassifierConfig

HEAD_COUNTS = (1, 2, 4, 8)


@claim("E8", source="exam", verdict="conditional", trained=True, study="pronouns")
def heads_specialise(trial: Trial) -> Evidence:
    """Heads specialise: each takes over a linguistic relation such as coreference.

    Condition: The head belongs to a trained model, and its role was measured. Here some heads
        follow 'it' to its referent; others, and all heads before training, do not.
    Refutation: no trained head that prefers the referent by 0.2, or untrained heads that do
    """
    models = [m for m in pronoun_study(trial) if m.heads == 4]
    best, others = ([f(m.preference) for m in models] for f in (torch.max, torch.min))
    untrained = [m.untrained_preference.max() for m in models]
    maps = {f"seed {m.seed}": m.preference.view(2, 4) for m in models}
    return Evidence(
        holds=min(others) > 0.2,
        holds_if=min(best) > 0.2 and max(untrained) < 0.1 and max(others) < 0.1,
        measures={
            "weight on the referent less the rival, best head": best,
            "the same, last of the 8 heads": others,
            "the same, best head before training": untrained,
            "accuracy on new noun pairs": [m.accuracy for m in models],
        },
        chart=Maps(maps, "head", "layer"),
    )


@claim("E9", source="homework", verdict="conditional", trained=True, study="pronouns")
def more_heads(trial: Trial) -> Evidence:
    """More heads make a model robust through redundancy, and improve its gradient flow.

    Condition: 'Robust' means that losing one of the heads costs less. The gradient at the start
        does not grow with the number of heads.
    Refutation: a loss of one of 8 heads that costs as much as that of one of 2, or a gradient that
        doubles with the heads
    Remark: Settled at toy size: pronoun resolution, 2 layers, 3 seeds. A head of 8 is also a
        smaller part of the model than a head of 2.
    """
    models = {h: [m for m in pronoun_study(trial) if m.heads == h] for h in HEAD_COUNTS}
    drops = {h: torch.stack([m.drops.mean() for m in models[h]]) for h in HEAD_COUNTS}
    gradients = {h: torch.tensor([m.gradient for m in models[h]]) for h in HEAD_COUNTS}
    growth = gradients[8] / gradients[1]
    redundant = drops[8].max() < drops[2].min() and drops[8].mean() < 0.5 * drops[1].mean()
    curves = {"loss of accuracy with a head": drops, "gradient before training": gradients}
    means = {name: [x.mean() for x in by_heads.values()] for name, by_heads in curves.items()}
    return Evidence(
        holds=redundant and growth.min() > 1.5,
        holds_if=redundant and growth.min() > 0.5 and growth.max() < 1.5,
        measures={
            "loss of accuracy with a head": {f"{h} heads": x for h, x in drops.items()},
            "gradient before training, 8 heads to 1": growth,
        },
        chart=Lines(HEAD_COUNTS, means, "heads", "mean over seeds"),
    )


THE, CHASED, STOP, IT, WAS = range(5)
IT_AT = 6  # the NOUN chased the NOUN . it was ADJECTIVE
NOUNS = ADJECTIVES = 10  # of each of two kinds, animals and things


@dataclass(frozen=True)
class PronounModel:
    """A model trained to say what 'it' refers to, and what its heads do on new noun pairs.

    Per head, layer by layer: the mean weight from 'it' on the referent and on the other noun, and
    the accuracy that is lost without the head.
    """

    seed: int
    heads: int
    accuracy: float
    referent: Tensor
    rival: Tensor
    untrained_referent: Tensor
    untrained_rival: Tensor
    drops: Tensor
    gradient: float  # norm over all parameters before training

    @property
    def preference(self) -> Tensor:
        """Weight on the referent less that on the rival, per head."""
        return self.referent - self.rival

    @property
    def untrained_preference(self) -> Tensor:
        """The same before training."""
        return self.untrained_referent - self.untrained_rival


def pronoun_study(trial: Trial) -> list[PronounModel]:
    """Models of 1, 2, 4 and 8 heads per layer that resolve 'it', several seeds each.

    'the A chased the B . it was ADJECTIVE': one noun is an animal, the other a thing, and the
    adjective fits one of them. The model names the referent at 'it'; test pairs of nouns are new.
    """
    return [
        _train_pronouns(seed, heads, trial.size(250, 2000), trial.device)
        for heads in HEAD_COUNTS
        for seed in trial.seeds(3, 5)
    ]


@cache
def _train_pronouns(seed: int, heads: int, steps: int, device: str) -> PronounModel:
    vocab = 5 + 2 * NOUNS + 2 * ADJECTIVES
    sizes: dict[str, Any] = {"layers": 2, "dim": 32, "heads": heads, "pooling": "none"}
    config = ClassifierConfig(vocab=vocab, classes=vocab, positions="learned", **sizes)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["tokens"])[:, IT_AT], batch["referent"])

    test = draw_pronouns(torch.Generator().manual_seed(seed), 500, new_pairs=True)
    torch.manual_seed(seed)
    untrained = Classifier(config).eval()
    loss(untrained, test).backward()
    gradient = torch.stack([p.grad.norm() for p in untrained.parameters() if p.grad is not None])
    options = {"steps": steps, "lr": 5e-3, "seed": seed, "device": device}
    model = train_model(lambda: Classifier(config), draw_pronouns, loss, **options).cpu()
    accuracy, drops = _accuracy(model, test), []
    for site, head in product(("encoder.0.self", "encoder.1.self"), range(heads)):
        with what_if(model, edit.drop_head(site, head)):
            drops.append(accuracy - _accuracy(model, test))
    weights = (*_weights_from_it(model, test), *_weights_from_it(untrained, test))
    return PronounModel(
        seed, heads, accuracy, *weights, torch.tensor(drops), float(gradient.norm())
    )


def draw_pronouns(rng: torch.Generator, count: int = 32, *, new_pairs: bool = False) -> Batch:
    """Sentences, the referent of 'it' and its position; a fifth of the noun pairs is for tests."""
    animal, thing, adjective = torch.randint(NOUNS, (3, count), generator=rng)
    sums = (animal + thing) % 5
    thing = torch.where(sums == 0, thing, thing - sums) if new_pairs else thing + (sums == 0).int()
    animal, thing = 5 + animal % NOUNS, 5 + NOUNS + thing % NOUNS
    animal_first, about_thing = torch.randint(2, (2, count), generator=rng).bool()
    a, b = torch.where(animal_first, animal, thing), torch.where(animal_first, thing, animal)
    adjective = 5 + 2 * NOUNS + ADJECTIVES * about_thing + adjective
    referent = torch.where(about_thing, thing, animal)
    words = [torch.full((count,), word) for word in (THE, CHASED, THE, STOP, IT, WAS)]
    words[1:1], words[4:4], words[9:] = [a], [b], [adjective]
    tokens = torch.stack(words, 1)
    return {"tokens": tokens, "referent": referent, "place": torch.where(a == referent, 1, 4)}


def _accuracy(model: nn.Module, test: Batch) -> float:
    with torch.no_grad():
        named = model(test["tokens"])[:, IT_AT].argmax(-1)
    return (named == test["referent"]).double().mean().item()


def _weights_from_it(model, test: Batch) -> tuple[Tensor, Tensor]:
    """Mean weight from 'it' on the referent and on the rival, per head, layer by layer."""
    with torch.no_grad(), look(model) as sight:
        model(test["tokens"])
    weights = torch.cat([site.window(rows=IT_AT)[:, :, 0] for site in sight], 1)
    place = test["place"][:, None, None].expand(-1, weights.shape[1], 1)
    means = [weights.gather(-1, at)[..., 0].mean(0) for at in (place, 5 - place)]
    return means[0], means[1]


@claim("M1", source="exam", verdict="true", trained=True, study="pronouns")
def it_points_at_referent(trial: Trial) -> Evidence:
    """Trained attention from 'it' points at the noun that it refers to.

    Remark: In one or two heads of a toy model that solves the task; not in every head.
    Refutation: a best head that prefers the referent by less than 0.3, or as much untrained
    """
    models = [m for m in pronoun_study(trial) if m.heads == 4]
    largest = {
        "trained": [m.preference.max() for m in models],
        "untrained": [m.untrained_preference.max() for m in models],
    }
    best, before = (Measure.mean(name, x) for name, x in largest.items())
    accuracy = Measure.mean("accuracy on new noun pairs", [m.accuracy for m in models])
    bars = {f"seed {m.seed}": {k: x[n] for k, x in largest.items()} for n, m in enumerate(models)}
    return Evidence(
        holds=best.value > 0.3 and best.above(0.1) and before.below(0.1) and accuracy.above(0.9),
        measures={"best head": {m.name: m for m in (best, before)}, accuracy.name: accuracy},
        note="Preference: mean weight from 'it' on the referent less that on the other noun.",
        chart=Bars(bars, "weight on the referent − on the rival"),
    )
