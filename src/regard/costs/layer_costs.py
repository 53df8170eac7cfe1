"""Cost of each kind of layer: parameters, multiply-adds, bytes moved, activations and cache."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from regard import nn as ours
from regard.costs.formulas import Formula

Side = Literal["source", "target"]


@dataclass(frozen=True, kw_only=True)
class CostPart:
    """Cost of one part of a model, in the dtype of its parameters.

    `bytes_moved`: weights, inputs and outputs of every matrix product, read or written once, a
    recurrent U once per step; attention maps are never written. `activation_bytes`: saved for the
    backward pass, without dropout. `cache_bytes`: what a decoder stores from token to token.

    >>> [part] = rg.cost(rg.nn.FeedForward(2, 8), source=3).parts
    >>> part.formula, part.multiply_adds, part.parameters
    ('BL(8nd²)', 96, 42)
    """

    name: str
    side: Side
    formula: str
    parameters: int = 0
    multiply_adds: int = 0
    bytes_moved: int = 0
    activation_bytes: int = 0
    cache_bytes: int = 0
    idle_parameters: int = 0  # of the experts that a token does not use
    sizes: tuple[tuple[str, int], ...] = ()  # values of the letters in the formula


class CostCounter:
    """Builds cost parts for one batch size; shared parameters are counted once.

    `side` is the one that runs now; subsampling and pooling change its length in `lengths`.
    """

    def __init__(self, batch: int, element_size: int, source: int, target: int, letter: str):
        self.batch, self.element_size = batch, element_size
        self.side: Side = "source"
        self.lengths: dict[Side, int] = {"source": source, "target": target}
        self.letters: dict[Side, str] = {"source": letter, "target": "N"}
        self.token_embeddings: Tensor | None = None  # the last ones, for a tied readout
        self._counted: set[int] = set()

    @property
    def tokens(self) -> tuple[int, str]:
        """Length and letter of the side that runs now."""
        return self.lengths[self.side], self.letters[self.side]

    def part(
        self,
        name: str,
        modules: Iterable[nn.Module | nn.Parameter | None],
        formula: str = "",
        sizes: dict[str, int] | None = None,
        *,
        moved: int = 0,
        activations: int = 0,
        cache: int = 0,
        weight_reads: int = 0,
    ) -> CostPart:
        """A part; `moved`, `activations` and `cache` are numbers per sequence.

        `weight_reads` are weights that are read again, or below 0 not read.
        """
        parameters, used = self._parameters(modules)
        n, letter = self.tokens
        known = {"B": self.batch, "L": 1, letter: n, "M": self.lengths["source"]}
        sizes = known | (sizes or {})
        return CostPart(
            name=name,
            side=self.side,
            formula=formula,
            parameters=parameters,
            multiply_adds=Formula(formula).value(**sizes) if formula else 0,
            bytes_moved=self.element_size * (used + weight_reads + self.batch * moved),
            activation_bytes=self.element_size * self.batch * activations,
            cache_bytes=self.element_size * self.batch * cache,
            sizes=tuple((name, size) for name, size in sizes.items() if name in formula),
        )

    def attention(
        self,
        name: str,
        layers: Sequence[ours.MultiHeadAttention | ours.LinearAttention],
        *,
        cross: bool = False,
        relative: nn.Module | None = None,
        cached: bool = True,
    ) -> CostPart:
        """Attention layers of one size; `cross` takes the keys from the source."""
        first, (n, letter) = layers[0], self.tokens
        if isinstance(first, ours.LinearAttention):
            return self._linear_attention(name, layers, first, cached)
        keys = self.lengths["source"] if cross else n
        e, g = first.to_q.out_features, first.to_k.out_features
        d, s = first.to_q.in_features, first.to_k.in_features
        other, square = ("M", "NM") if cross else (letter, f"{letter}²")
        if e == g == d == s:
            terms = "2Nd² + 2Md²" if cross else f"4{letter}d²"
            terms += f" + 2{square}d"
        else:
            terms = f"2{letter}de + 2{other}sg + 2{square}e"
        distances = 0
        if isinstance(relative, ours.RelativeKeyBias):  # q times the key of each distance
            distances, terms = len(relative.table), f"{terms} + {letter}er"
        # x, q, k, v, lse, and the output twice: per head, and with heads concatenated
        saved = n * d + 3 * n * e + 2 * keys * g + n * first.heads
        normed = 0 if first.q_norm is None else 2 * (n * e + keys * g)  # q and k, before and after
        return self.part(
            name,
            [*layers, relative],
            f"BL({terms})",
            {"L": len(layers), "d": d, "s": s, "e": e, "g": g, "r": distances},
            moved=len(layers) * (2 * n * d + 4 * n * e + 2 * keys * s + 4 * keys * g + normed),
            activations=len(layers) * (saved + normed),
            cache=len(layers) * 2 * keys * g if cached else 0,
        )

    def _linear_attention(
        self, name: str, layers: Sequence[nn.Module], first: ours.LinearAttention, cached: bool
    ) -> CostPart:
        """Layers of one size by their recurrence: each token writes to a matrix and reads it."""
        (n, letter), count, f = self.tokens, len(layers), first.head_dim
        d, e, h = first.to_q.in_features, first.to_q.out_features, first.heads
        delta = first.to_beta is not None  # also reads what it replaces, and has two gates
        terms = f"4{letter}de + {3 if delta else 2}{letter}ef" + delta * f" + 2{letter}dh"
        # measured: the chunked form keeps matrices of 64 tokens per head, some in float64
        saved = 19 * e + 845 * h if delta else 10 * e + 125 * h
        return self.part(
            name, layers, f"BL({terms})", {"L": count, "d": d, "e": e, "f": f, "h": h},
            moved=count * n * (2 * d + 7 * e + 2 * h * delta), activations=count * n * saved,
            cache=count * n * 2 * (e + 2 * h) if cached else 0,
        )  # fmt: skip

    def feed_forward(self, name: str, layers: Sequence[ours.FeedForward]) -> CostPart:
        """Feed-forward layers of one size; three products if gated."""
        first, (n, letter) = layers[0], self.tokens
        d, h = first.to_hidden.in_features, first.to_hidden.out_features
        gated = first.to_gate is not None
        terms = f"8{letter}d²" if h == 4 * d and not gated else f"{3 if gated else 2}{letter}dh"
        # relu saves its output, which the next product saves anyway; others save their input too
        inner = (3 if gated else 1) + (first.activation != "relu")
        return self.part(
            name, layers, f"BL({terms})", {"L": len(layers), "d": d, "h": h},
            moved=len(layers) * n * ((2 + gated) * (d + h) + h),
            activations=len(layers) * n * (d + inner * h),
        )  # fmt: skip

    def norms(self, name: str, layers: list[ours.Norm]) -> CostPart:
        """Norms: no products, but parameters and saved inputs."""
        n, _ = self.tokens
        widths = [(norm.kind, norm.gain.numel()) for norm in layers if norm.gain is not None]
        # a layer norm also saves mean and variance; our RMS norm its normalised input
        saved = sum(d + 2 if kind == "layer" else 2 * d + 1 for kind, d in widths)
        moved = sum(2 * n * d for _, d in widths)
        return self.part(name, layers, moved=moved, activations=n * saved)

    def embedding(self, name: str, layer: ours.TokenEmbedding) -> CostPart:
        """An embedding lookup, which reads at most one row per token."""
        (n, _), table = self.tokens, layer.token_embeddings
        d, self.token_embeddings = table.shape[1], table
        return self.part(
            name, [layer], moved=2 * n * d, activations=n * (d + 2) if layer.norm else 0,
            weight_reads=min(0, n * d * self.batch - table.numel()),
        )  # fmt: skip

    def readout(self, layer: ours.Readout | nn.Linear) -> CostPart:
        """Projection to the vocabulary; a tied weight is read here, counted at the embedding."""
        n, letter = self.tokens
        weight = self.token_embeddings if layer.weight is None else layer.weight
        assert weight is not None
        vocab, d = weight.shape
        return self.part(
            "readout", [layer], f"B({letter}dV)", {"d": d, "V": vocab}, moved=n * (d + vocab),
            activations=n * d, weight_reads=d * vocab if layer.weight is None else 0,
        )  # fmt: skip

    def linear(self, name: str, layers: Iterable[nn.Linear | None]) -> CostPart:
        """Linear layers in sequence, without those that are None."""
        n, letter = self.tokens
        present = [layer for layer in layers if layer is not None]
        shapes = [(layer.in_features, layer.out_features) for layer in present]
        terms, sizes = " + ".join(f"{n * a * b}" for a, b in shapes), {}
        if len(shapes) == 1:
            terms = f"{letter}io" if n > 1 else "io"
            sizes = {"i": shapes[0][0], "o": shapes[0][1]}
        return self.part(
            name, present, f"B({terms})", sizes, moved=sum(n * (a + b) for a, b in shapes),
            activations=sum(n * a for a, _ in shapes),
        )  # fmt: skip

    def recurrent(self, name: str, layer: ours.Recurrent | ours.AttentiveRecurrent) -> CostPart:
        """Recurrent layers: W x and U h per gate at every step."""
        n, letter = self.tokens
        directions = 2 if getattr(layer, "bidirectional", False) else 1
        gates = {"rnn": 1, "gru": 3, "lstm": 4}[layer.kind]
        d, s, above = layer.dim, layer.hidden, layer.layers - 1
        first = directions * gates
        upper = first * (directions + 1) * above  # upper layers read both directions
        if d == s:
            terms = f"{2 * first + upper}{letter}d²"
        else:
            terms = f"{first}{letter}ds + {first + upper}{letter}s²"
        states = 2 if layer.kind == "lstm" else 1
        cells = directions * layer.layers
        cache = cells * states * s
        if isinstance(layer, ours.AttentiveRecurrent):
            # each state attends to all earlier ones: n(n - 1)/2 pairs, two products each
            width, times = "d" if d == s else "s", layer.layers
            terms += f" + {times}{letter}²{width} - {times}{letter}{width}"
            attention = layer.attentions[0]
            assert isinstance(attention, ours.StateAttention)
            if projected := (attention.to_key is not None) + (attention.to_query is not None):
                terms += f" + {times * projected}{letter}{width}²"
            cache += times * n * s
        inputs = directions * d + directions * above * directions * s
        return self.part(
            name,
            [layer],
            f"B({terms})",
            {"d": d, "s": s},
            moved=n * (inputs + cells * (gates + 2) * s),
            activations=n * (inputs + cells * (gates + states) * s),
            weight_reads=(n - 1) * cells * gates * s * s,  # U at every step
            cache=cache,
        )

    def state_attention(self, layer: ours.StateAttention, d: int) -> CostPart:
        """Attention of the decoder states to the encoder states, both of width d."""
        m, n = self.lengths["source"], self.lengths["target"]
        terms = "NMs + NMd"
        terms += " + Mds" if layer.to_key is not None else ""
        terms += " + Nd²" if layer.to_query is not None else ""
        return self.part(
            "cross-attention", [layer], f"B({terms})", {"d": d, "s": d},
            moved=3 * n * d + 2 * m * d, activations=2 * n * d + 2 * m * d, cache=2 * m * d,
        )  # fmt: skip

    def subsample(self, layer: ours.ConvSubsampling) -> CostPart:
        """Subsampling convolutions; fewer frames remain."""
        terms, moved, frames = [], 0, self.lengths["source"]
        for module, stride in zip(layer.convolutions, layer.strides, strict=True):
            assert isinstance(module, nn.Conv1d | ours.TimeFrequencyConv)
            after = (frames + stride - 1) // stride
            inner = module if isinstance(module, nn.Conv1d) else module.filters
            terms.append(f"{after * module.out_channels * inner.weight[0].numel()}")
            moved += frames * module.in_channels + after * module.out_channels
            frames = after
        for module in layer.out:
            if isinstance(module, nn.Linear):
                terms.append(f"{frames * module.weight.numel()}")
                moved += frames * module.out_features
        self.lengths["source"] = frames
        formula = f"B({' + '.join(terms)})"
        return self.part("convolutions", [layer], formula=formula, moved=moved, activations=moved)

    def _parameters(self, modules: Iterable[nn.Module | nn.Parameter | None]) -> tuple[int, int]:
        new = used = 0
        for module in modules:
            is_parameter = isinstance(module, nn.Parameter)
            for parameter in [module] if is_parameter else module.parameters() if module else ():
                used += parameter.numel()
                if id(parameter) not in self._counted:
                    self._counted.add(id(parameter))
                    new += parameter.numel()
        return new, used
