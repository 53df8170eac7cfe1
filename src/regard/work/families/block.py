"""Blocks of a Transformer by hand: layer norm, feed-forward, encoder and decoder."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.errors import WorkError, nearest
from regard.work.families.attention import AttentionSetup, add_linear
from regard.work.families.multi_head import add_multi_head, extend_suffix
from regard.work.families.names import BLOCK_NAMES, CROSS_NAMES, FEED_FORWARD_NAMES
from regard.work.families.registry import ExerciseTemplate, check_given, family, weight_shapes
from regard.work.rules import M
from regard.work.solution import Solution, SolutionBuilder

DEFAULT_EPS = "1/100000"
ACTIVATIONS = ("relu", "gelu", "silu")
GREEK_LETTERS = {"gamma": "γ", "beta": "β"}  # as a TOML file can write them
# rows whose variance is a square, so that its root is rational
_EVEN_2 = ([1, 3], [0, 4], [5, -1], [2, 0], [-3, 1])
_EVEN_4 = ([1, 1, 3, 3], [0, 4, 0, 4], [7, -1, 1, 1], [-3, 5, 3, 3], [2, 0, 0, 2], [4, 4, -2, -2])
_QUESTIONS = ("A*", "O", "P_*", "m_*", "v_*", "LN_*", "FF")


class BlockSetup(NamedTuple):
    """What is chosen about a block: its heads, where the norm stands, the activation, the mask.

    >>> BlockSetup().pre_norm
    False
    """

    heads: int | None = None
    pre_norm: bool = False  # the norm before each part: pre-LN
    activation: str = "relu"
    mask: Any = None
    scale: Any = None
    norm_kind: str = "layer"  # of the norm: layer or rms

    def attention_setup(self, suffix: str = "", mask: Any = None) -> AttentionSetup:
        """How its attention is done; the scale and the mask get names of their own."""
        return AttentionSetup(
            scale=self.scale, mask=mask, scale_name=f"scale{suffix}", mask_name=f"mask{suffix}"
        )


@family(
    "layer-norm",
    given="X gamma beta γ β",
    exercises=(
        ExerciseTemplate(value_choices={"X": _EVEN_2}, option_choices={"eps": (0,)}),
        ExerciseTemplate(
            value_choices={"X": _EVEN_4, "gamma": ([1, 1, 2, 1],)}, option_choices={"eps": (0,)}
        ),
        ExerciseTemplate({"X": (2, 4)}, {"gamma": ([1, 2, 1, 1],), "beta": ([0, 1, 0, -1],)}),
    ),
)
def solve_layer_norm(given: Mapping[str, Any], *, eps: Any = DEFAULT_EPS) -> Solution:
    """Layer norm: each token brought to mean 0 and variance 1, then to a gain and shift of its own.

    LN(x) = γ ∘ (x - mean(x)) / √(var(x) + ε) + β,   over the features of one token

    Given is X, and gamma and beta where wanted.

    >>> solve_layer_norm({"X": [[1, 3]]}, eps=0)["LN"]
    Matrix([[-1, 1]])
    """
    check_given("layer-norm", given)
    work = start_block("layer-norm", given, DEFAULT_EPS if eps is None else eps)
    add_norm(work, "X")
    _say_norm(work)
    return work.build()


@family(
    "feed-forward",
    given=f"X {FEED_FORWARD_NAMES}",
    exercises=(
        ExerciseTemplate({"X": (1, 2), "W_1": (2, 2), "W_2": (2, 2)}),
        ExerciseTemplate({"X": (2, 2), "W_1": (2, 3), "b_1": (1, 3), "W_2": (3, 2)}),
        ExerciseTemplate({"X": (2, 3), "W_1": (3, 4), "b_1": (1, 4), "W_2": (4, 3), "b_2": (1, 3)}),
    ),
)
def solve_feed_forward(given: Mapping[str, Any], *, activation: str = "relu") -> Solution:
    """The feed-forward of a block: the same small network for each token alone.

    FF = f(X W_1 + b_1) W_2 + b_2,   f = relu: max(0, x);   gated: (f(X W_G) ∘ X W_1) W_2

    >>> solve_feed_forward({"X": [[1, -1]], "W_1": [[1, 0], [0, 1]], "W_2": [[2], [3]]})["FF"]
    Matrix([[2]])
    """
    check_given("feed-forward", given)
    work = start_block("feed-forward", given, None, "W_1", "W_2")
    add_feed_forward(work, "X", activation)
    return work.build()


@family(
    "encoder",
    given=f"X {BLOCK_NAMES}",
    exercises=(
        ExerciseTemplate(
            {"X": (2, 2)} | weight_shapes("QKVO12", (2, 2)),
            option_choices={"scale": (1,)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"X": (2, 4)} | weight_shapes("QKVO", (4, 4)) | {"W_1": (4, 3), "W_2": (3, 4)},
            option_choices={"heads": (2,)},
            questions=_QUESTIONS,
        ),
        ExerciseTemplate(
            {"X": (3, 4)} | weight_shapes("QKVO", (4, 4)) | {"W_1": (4, 3), "W_2": (3, 4)},
            option_choices={"heads": (2,), "norm": ("pre", "post")},
            questions=_QUESTIONS,
        ),
    ),
)
def solve_encoder(
    given: Mapping[str, Any],
    *,
    heads: int | None = None,
    norm: str = "post",
    mask: Any = None,
    scale: Any = None,
    activation: str = "relu",
    eps: Any = DEFAULT_EPS,
    norm_kind: str = "layer",
) -> Solution:
    """A whole encoder block, every tensor of it.

    post:  LN_1 = LN(X + MHA(X)),   LN_2 = LN(LN_1 + FFN(LN_1))
    pre:   P_1 = X + MHA(LN(X)),    P_2 = P_1 + FFN(LN(P_1))

    Given are X, W_Q, W_K, W_V, W_O (or W_Q_1 … a head), W_1, W_2, and where wanted biases b_Q …
    b_1, b_2, and gamma_1, beta_1, gamma_2, beta_2. A mask makes it a block of a decoder-only model;
    with `kind` rms, `norm` pre, `activation` silu and a gate W_G it is one of today's.

    >>> zero = [[0, 0], [0, 0]]
    >>> told = {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero}
    >>> solve_encoder(told, norm="pre")["P_2"]  # with nothing to add, pre-LN is the identity
    Matrix([[1, 3]])
    """
    check_given("encoder", given)
    work = start_block("encoder", given, DEFAULT_EPS if eps is None else eps, "W_1", "W_2")
    block = BlockSetup(heads, is_pre_norm(norm), activation, mask, scale, norm_kind)
    out = add_encoder_block(work, "X", block)
    work.add_remark(f"What leaves the block is {out}.")
    return work.build()


@family("decoder", given=f"X Y {BLOCK_NAMES} {CROSS_NAMES} gamma_3 beta_3 γ_3 β_3")
def solve_decoder(
    given: Mapping[str, Any],
    *,
    heads: int | None = None,
    norm: str = "post",
    mask: Any = "causal",
    scale: Any = None,
    activation: str = "relu",
    eps: Any = DEFAULT_EPS,
    norm_kind: str = "layer",
) -> Solution:
    """A whole decoder block: what was written so far, then what was read, then each token alone.

    post:  LN_1 = LN(X + MHA(X)),   LN_2 = LN(LN_1 + MHA(LN_1, Y)),   LN_3 = LN(LN_2 + FFN(LN_2))

    Given are X, the memory Y, W_Q, W_K, W_V, W_O for the masked self-attention (steps with index
    s), U_Q, U_K, U_V, U_O for the cross-attention (index c), W_1, W_2, and what an encoder takes.

    >>> zero = [[0, 0], [0, 0]]
    >>> told = {"X": [[1, 3]], "Y": [[1, 1]], "W_V": zero, "U_V": zero, "W_1": zero, "W_2": zero}
    >>> solve_decoder(told, norm="pre")["P_3"]
    Matrix([[1, 3]])
    """
    check_given("decoder", given)
    work = start_block("decoder", given, DEFAULT_EPS if eps is None else eps, "Y", "W_1", "W_2")
    block = BlockSetup(heads, is_pre_norm(norm), activation, mask, scale, norm_kind)

    def look_back(x: str) -> str:
        return add_multi_head(work, block.attention_setup("_s", mask), heads, "_s", (x, x))

    def look_across(x: str) -> str:
        return add_multi_head(work, block.attention_setup("_c"), heads, "_c", (x, "Y"), "U_{}")

    x = _around(work, "X", look_back, block, "_1")
    x = _around(work, x, look_across, block, "_2")
    out = _around(work, x, lambda x: add_feed_forward(work, x, activation), block, "_3")
    work.add_remark(f"What leaves the block is {out}.")
    return work.build()


def start_block(family: str, given: Mapping[str, Any], eps: Any, *required: str) -> SolutionBuilder:
    """A working with γ and β under their letters, and ε where a norm comes.

    >>> list(start_block("none", {"X": 1, "gamma_1": 2}, 0).given)
    ['X', 'γ_1', 'ε']
    """
    missing = [name for name in ("X", *required) if given.get(name) is None]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for the family {family}, got none")
    named = {}
    for name, value in given.items():
        first, under, rest = name.partition("_")
        if value is not None:
            named[f"{GREEK_LETTERS.get(first, first)}{under}{rest}"] = value
    work = SolutionBuilder(family, named)
    if eps is None:
        return work
    small = work.values[work.add_given("ε", eps)]
    if small.shape != (1, 1) or not small[0, 0].is_number or not 0 <= small[0, 0] <= 1:
        raise WorkError(f"eps: needs a number from 0 to 1, got {eps}")
    return work


def is_pre_norm(norm: str) -> bool:
    """Whether the norm stands before each part (pre-LN), not after the sum (post-LN).

    >>> is_pre_norm("pre")
    True
    """
    if norm not in ("pre", "post"):
        raise WorkError(f"norm: needs pre or post, got {norm!r}")
    return norm == "pre"


def add_encoder_block(
    builder: SolutionBuilder, x: str, setup: BlockSetup, suffix: str = "", weight_suffix: str = ""
) -> str:
    """One encoder block from the tokens called x; its steps end in `at`, its weights in `own`.

    >>> zero = [[0, 0], [0, 0]]
    >>> work = start_block("none", {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero}, 0)
    >>> add_encoder_block(work, "X", BlockSetup())
    'LN_2'
    """
    by = f"W_{{}}{weight_suffix}"

    def look(x: str) -> str:
        return add_multi_head(
            builder, setup.attention_setup(mask=setup.mask), setup.heads, suffix, (x, x), by
        )

    x = _around(builder, x, look, setup, extend_suffix(suffix, 1), weight_suffix)
    return _around(
        builder,
        x,
        lambda x: add_feed_forward(builder, x, setup.activation, suffix, weight_suffix),
        setup,
        extend_suffix(suffix, 2),
        weight_suffix,
    )


def _around(
    work: SolutionBuilder, x: str, part: Any, block: BlockSetup, at: str, own: str = ""
) -> str:
    """A part of a block with its residual, and the norm after the sum or before the part."""
    found = part(add_norm(work, x, at, own, block.norm_kind) if block.pre_norm else x)
    says = "the residual: what came in is added"
    total = work.add_step(f"P{at}", "add", x, found, title=says)
    work.add_mistake(total, "the residual was left out", work.values[found])
    return total if block.pre_norm else add_norm(work, total, at, own, block.norm_kind)


def add_norm(
    builder: SolutionBuilder, x: str, suffix: str = "", weight_suffix: str = "", kind: str = "layer"
) -> str:
    """The steps of layer norm, or of RMS norm, which takes no mean off; the name of what comes out.

    >>> work = start_block("none", {"X": [[0, 4]], "gamma": [[1, 2]]}, 0)
    >>> work.values[add_norm(work, "X")]
    Matrix([[-1, 2]])
    """
    if kind not in ("layer", "rms"):
        raise WorkError(f"norm_kind: needs layer or rms, got {kind!r}")
    if kind == "rms":
        return _rms(builder, x, suffix, weight_suffix)
    m = builder.add_step(f"m{suffix}", "mean of rows", x, title="the mean of each token's features")
    c = builder.add_step(f"c{suffix}", "centre rows", x, m, title="less the mean: centred")
    v = builder.add_step(
        f"v{suffix}", "variance of rows", c, title="the variance of each token's features"
    )
    r = builder.add_step(f"r{suffix}", "inverse std", v, "ε", title="one over the deviation")
    gain, shift = (_its(one, suffix, weight_suffix) for one in "γβ")
    if gain not in builder.values and shift not in builder.values:
        return builder.add_step(f"LN{suffix}", "scale rows", c, r, title="mean 0 and variance 1")
    n = builder.add_step(f"n{suffix}", "scale rows", c, r, title="mean 0 and variance 1")
    for name, usual in ((gain, M.ones), (shift, M.zeros)):
        if name not in builder.values:
            builder.add_given(name, usual(1, builder.values[x].cols))
    says = "with a gain and a shift for each feature"
    return builder.add_step(f"LN{suffix}", "gain and shift", n, gain, shift, title=says)


def _its(letter: str, at: str, own: str) -> str:
    places = at.rpartition(".")[2].lstrip("_")  # γ_1 stands in every layer, for its first norm
    return f"{letter}_{places}{own}" if places else letter


def _rms(work: SolutionBuilder, x: str, at: str, own: str) -> str:
    v = work.add_step(
        f"v{at}", "variance of rows", x, title="the mean square of each token's features"
    )
    r = work.add_step(f"r{at}", "inverse std", v, "ε", title="one over its root")
    gain = _its("γ", at, own)
    if gain not in work.values:
        return work.add_step(f"LN{at}", "scale rows", x, r, title="a mean square of 1")
    n = work.add_step(f"n{at}", "scale rows", x, r, title="a mean square of 1")
    return work.add_step(f"LN{at}", "gain", n, gain, title="with a gain for each feature")


def add_feed_forward(
    builder: SolutionBuilder,
    x: str,
    activation: str = "relu",
    suffix: str = "",
    weight_suffix: str = "",
) -> str:
    """The steps of the feed-forward; the name of what comes out.

    >>> work = start_block("none", {"X": [[-1]], "W_1": [[1]], "W_2": [[1]], "b_2": [[5]]}, None)
    >>> work.values[add_feed_forward(work, "X")]
    Matrix([[5]])
    """
    if activation not in ACTIVATIONS:
        hint = nearest(str(activation), ACTIVATIONS)
        some = ", ".join(ACTIVATIONS)
        raise WorkError(f"activation: needs one of {some}, got {activation!r}{hint}")
    f = add_linear(
        builder,
        f"F{suffix}",
        x,
        f"W_1{weight_suffix}",
        title="the feed-forward: each token by itself",
    )
    says = f"bent: what is negative {'goes' if activation == 'relu' else 'fades'}"
    if f"W_G{weight_suffix}" in builder.values:
        d = add_linear(
            builder, f"D{suffix}", x, f"W_G{weight_suffix}", title="the gate, from the same token"
        )
        d = builder.add_step(f"G{suffix}", activation, d, title=says)
        g = builder.add_step(
            f"U{suffix}", "elementwise product", d, f, title="what the gate lets through"
        )
    else:
        g = builder.add_step(f"G{suffix}", activation, f, title=says)
    return add_linear(
        builder,
        f"FF{suffix}",
        g,
        f"W_2{weight_suffix}",
        title="and back to the width of the tokens",
    )


def _say_norm(work: SolutionBuilder) -> None:
    """Mean and variance before and after the gain and the shift, of the first token."""
    for name, where in (
        ("n", "Before γ and β"),
        ("LN", "After them" if "n" in work.values else ""),
    ):
        if name not in work.values or work.values[name].free_symbols:
            continue
        row = [float(x.evalf(20)) for x in work.values[name].row(0)]
        mean = sum(row) / len(row)
        variance = sum((x - mean) ** 2 for x in row) / len(row)
        who = f"{where} token 1" if where else "Token 1"
        mean, variance = (f"{round(x, 9) + 0.0:.6g}" for x in (mean, variance))
        work.add_remark(f"{who} has mean {mean} and variance {variance}.")
    if 0 in work.values["v"]:
        work.add_remark(
            "A token whose features are all equal becomes zeros; without ε it would be 0/0."
        )
