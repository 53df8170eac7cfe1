"""Transformer blocks: layer norm, RMS norm, feed-forward, encoder and decoder."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.errors import WorkError, suggestion
from regard.work.families.attention import AttentionSetup, add_linear
from regard.work.families.multi_head import add_multi_head, extend_suffix
from regard.work.families.names import BLOCK_NAMES, CROSS_NAMES, FEED_FORWARD_NAMES
from regard.work.families.registry import ExerciseTemplate, check_given, family, weight_shapes
from regard.work.rules import M
from regard.work.solution import Solution, SolutionBuilder

DEFAULT_EPS = "1/100000"
ACTIVATIONS = ("relu", "gelu", "silu")
GREEK_LETTERS = {"gamma": "γ", "beta": "β"}  # ASCII spelling in TOML
# rows whose variance is a square, so that its root is rational
_EVEN_2 = ([1, 3], [0, 4], [5, -1], [2, 0], [-3, 1])
_EVEN_4 = ([1, 1, 3, 3], [0, 4, 0, 4], [7, -1, 1, 1], [-3, 5, 3, 3], [2, 0, 0, 2], [4, 4, -2, -2])
_QUESTIONS = ("A*", "O", "P_*", "m_*", "v_*", "LN_*", "FF")


class BlockSetup(NamedTuple):
    """Options of a block: heads, norm placement and kind, activation, mask, scale.

    >>> BlockSetup().pre_norm
    False
    """

    heads: int | None = None
    pre_norm: bool = False
    activation: str = "relu"
    mask: Any = None
    scale: Any = None
    norm_kind: str = "layer"  # layer or rms

    def attention_setup(self, suffix: str = "", mask: Any = None) -> AttentionSetup:
        """Setup of one attention, whose scale and mask have their own names."""
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
    """Layer norm over the features of each token.

    LN(x) = γ ∘ (x - mean(x)) / √(var(x) + ε) + β

    Given: X; gamma and beta are optional.

    >>> solve_layer_norm({"X": [[1, 3]]}, eps=0)["LN"]
    Matrix([[-1, 1]])
    """
    check_given("layer-norm", given)
    builder = start_block("layer-norm", given)
    add_eps(builder, eps)
    add_norm(builder, "X")
    _add_norm_remarks(builder)
    return builder.build()


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
    """Position-wise feed-forward network, optionally gated.

    FF = f(X W_1 + b_1) W_2 + b_2,   f = relu: max(0, x);   gated: (f(X W_G) ∘ X W_1) W_2

    >>> solve_feed_forward({"X": [[1, -1]], "W_1": [[1, 0], [0, 1]], "W_2": [[2], [3]]})["FF"]
    Matrix([[2]])
    """
    check_given("feed-forward", given)
    builder = start_block("feed-forward", given, "W_1", "W_2")
    add_feed_forward(builder, "X", activation)
    return builder.build()


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
    """Transformer encoder block with every intermediate result.

    post:  LN_1 = LN(X + MHA(X)),   LN_2 = LN(LN_1 + FFN(LN_1))
    pre:   P_1 = X + MHA(LN(X)),    P_2 = P_1 + FFN(LN(P_1))

    Given: X, W_Q, W_K, W_V, W_O (or W_Q_1 … per head), W_1, W_2; optional biases b_Q … b_1, b_2,
    norm parameters gamma_1, beta_1, gamma_2, beta_2, and a gate W_G. A causal mask makes it a block
    of a decoder-only model.

    Args:
        given: matrices by name.
        heads: number of heads; from the weights if None.
        norm: "post" or "pre".
        mask: as for attention.
        scale: β of the attention; 1/√d if None.
        activation: "relu", "gelu" or "silu".
        eps: ε of the norm.
        norm_kind: "layer" or "rms".

    >>> zero = [[0, 0], [0, 0]]
    >>> given = {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero}
    >>> solve_encoder(given, norm="pre")["P_2"]  # zero weights: pre-LN is the identity
    Matrix([[1, 3]])
    """
    check_given("encoder", given)
    builder = start_block("encoder", given, "W_1", "W_2")
    add_eps(builder, eps)
    setup = BlockSetup(heads, is_pre_norm(norm), activation, mask, scale, norm_kind)
    out = add_encoder_block(builder, "X", setup)
    builder.add_remark(f"The output of the block is {out}.")
    return builder.build()


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
    """Transformer decoder block: masked self-attention, cross-attention, feed-forward.

    post:  LN_1 = LN(X + MHA(X)),   LN_2 = LN(LN_1 + MHA(LN_1, Y)),   LN_3 = LN(LN_2 + FFN(LN_2))

    Given: as for an encoder, the memory Y, and U_Q, U_K, U_V, U_O of the cross-attention. Steps of
    the self-attention have the suffix s, those of the cross-attention c. Options as for an encoder.

    >>> zero = [[0, 0], [0, 0]]
    >>> given = {"X": [[1, 3]], "Y": [[1, 1]], "W_V": zero, "U_V": zero, "W_1": zero, "W_2": zero}
    >>> solve_decoder(given, norm="pre")["P_3"]
    Matrix([[1, 3]])
    """
    check_given("decoder", given)
    builder = start_block("decoder", given, "Y", "W_1", "W_2")
    add_eps(builder, eps)
    setup = BlockSetup(heads, is_pre_norm(norm), activation, mask, scale, norm_kind)

    def self_attention(x: str) -> str:
        return add_multi_head(builder, setup.attention_setup("_s", mask), heads, "_s", (x, x))

    def cross_attention(x: str) -> str:
        return add_multi_head(builder, setup.attention_setup("_c"), heads, "_c", (x, "Y"), "U_{}")

    x = _add_sublayer(builder, "X", self_attention, setup, "_1")
    x = _add_sublayer(builder, x, cross_attention, setup, "_2")
    out = _add_sublayer(builder, x, lambda x: add_feed_forward(builder, x, activation), setup, "_3")
    builder.add_remark(f"The output of the block is {out}.")
    return builder.build()


def start_block(family: str, given: Mapping[str, Any], *required: str) -> SolutionBuilder:
    """A builder with gamma and beta renamed to γ and β; X and the required names must be given.

    >>> list(start_block("example", {"X": 1, "gamma_1": 2}).given)
    ['X', 'γ_1']
    """
    missing = [name for name in ("X", *required) if given.get(name) is None]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for the family {family}, got none")
    renamed = {}
    for name, value in given.items():
        head, separator, rest = name.partition("_")
        if value is not None:
            renamed[f"{GREEK_LETTERS.get(head, head)}{separator}{rest}"] = value
    return SolutionBuilder(family, renamed)


def add_eps(builder: SolutionBuilder, eps: Any) -> None:
    """Add ε of the norms to the given matrices; DEFAULT_EPS if None."""
    epsilon = builder.values[builder.add_given("ε", DEFAULT_EPS if eps is None else eps)]
    if epsilon.shape != (1, 1) or not epsilon[0, 0].is_number or not 0 <= epsilon[0, 0] <= 1:
        raise WorkError(f"eps: needs a number from 0 to 1, got {eps}")


def is_pre_norm(norm: str) -> bool:
    """Whether norms come before each sublayer (pre-LN) or after the residual sum (post-LN).

    >>> is_pre_norm("pre")
    True
    """
    if norm not in ("pre", "post"):
        raise WorkError(f"norm: needs pre or post, got {norm!r}")
    return norm == "pre"


def add_encoder_block(
    builder: SolutionBuilder, x: str, setup: BlockSetup, suffix: str = "", weight_suffix: str = ""
) -> str:
    """Add an encoder block on x; step names end in `suffix`, weight names in `weight_suffix`.

    >>> zero = [[0, 0], [0, 0]]
    >>> builder = start_block("example", {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero})
    >>> add_eps(builder, 0)
    >>> add_encoder_block(builder, "X", BlockSetup())
    'LN_2'
    """
    weight_pattern = f"W_{{}}{weight_suffix}"

    def self_attention(x: str) -> str:
        return add_multi_head(
            builder,
            setup.attention_setup(mask=setup.mask),
            setup.heads,
            suffix,
            (x, x),
            weight_pattern,
        )

    x = _add_sublayer(builder, x, self_attention, setup, extend_suffix(suffix, 1), weight_suffix)
    return _add_sublayer(
        builder,
        x,
        lambda x: add_feed_forward(builder, x, setup.activation, suffix, weight_suffix),
        setup,
        extend_suffix(suffix, 2),
        weight_suffix,
    )


def _add_sublayer(
    builder: SolutionBuilder,
    x: str,
    sublayer: Any,
    setup: BlockSetup,
    suffix: str,
    weight_suffix: str = "",
) -> str:
    """Add a sublayer with its residual and norm."""
    output = sublayer(
        add_norm(builder, x, suffix, weight_suffix, setup.norm_kind) if setup.pre_norm else x
    )
    title = "the residual: plus the input"
    total = builder.add_step(f"P{suffix}", "add", x, output, title=title)
    builder.add_mistake(total, "the residual was left out", builder.values[output])
    return (
        total
        if setup.pre_norm
        else add_norm(builder, total, suffix, weight_suffix, setup.norm_kind)
    )


def add_norm(
    builder: SolutionBuilder, x: str, suffix: str = "", weight_suffix: str = "", kind: str = "layer"
) -> str:
    """Add a layer norm, or an RMS norm (no mean subtracted); return the name of the result.

    >>> builder = start_block("example", {"X": [[0, 4]], "gamma": [[1, 2]]})
    >>> add_eps(builder, 0)
    >>> builder.values[add_norm(builder, "X")]
    Matrix([[-1, 2]])
    """
    if kind not in ("layer", "rms"):
        raise WorkError(f"norm_kind: needs layer or rms, got {kind!r}")
    if kind == "rms":
        return _add_rms_norm(builder, x, suffix, weight_suffix)
    m = builder.add_step(f"m{suffix}", "mean of rows", x, title="the mean of each token's features")
    c = builder.add_step(f"c{suffix}", "centre rows", x, m, title="centred: minus the mean")
    v = builder.add_step(
        f"v{suffix}", "variance of rows", c, title="the variance of each token's features"
    )
    r = builder.add_step(
        f"r{suffix}", "inverse std", v, "ε", title="one over the standard deviation"
    )
    gain, shift = (_norm_parameter(letter, suffix, weight_suffix) for letter in "γβ")
    if gain not in builder.values and shift not in builder.values:
        return builder.add_step(f"LN{suffix}", "scale rows", c, r, title="mean 0 and variance 1")
    n = builder.add_step(f"n{suffix}", "scale rows", c, r, title="mean 0 and variance 1")
    for name, default in ((gain, M.ones), (shift, M.zeros)):
        if name not in builder.values:
            builder.add_given(name, default(1, builder.values[x].cols))
    title = "with a gain and a shift per feature"
    return builder.add_step(f"LN{suffix}", "gain and shift", n, gain, shift, title=title)


def _norm_parameter(letter: str, suffix: str, weight_suffix: str) -> str:
    index = suffix.rpartition(".")[2].lstrip("_")  # γ_1 is shared by the first norm of every layer
    return f"{letter}_{index}{weight_suffix}" if index else letter


def _add_rms_norm(builder: SolutionBuilder, x: str, suffix: str, weight_suffix: str) -> str:
    v = builder.add_step(
        f"v{suffix}", "variance of rows", x, title="the mean square of each token's features"
    )
    r = builder.add_step(f"r{suffix}", "inverse std", v, "ε", title="one over its square root")
    gain = _norm_parameter("γ", suffix, weight_suffix)
    if gain not in builder.values:
        return builder.add_step(f"LN{suffix}", "scale rows", x, r, title="a mean square of 1")
    n = builder.add_step(f"n{suffix}", "scale rows", x, r, title="a mean square of 1")
    return builder.add_step(f"LN{suffix}", "gain", n, gain, title="with a gain per feature")


def add_feed_forward(
    builder: SolutionBuilder,
    x: str,
    activation: str = "relu",
    suffix: str = "",
    weight_suffix: str = "",
) -> str:
    """Add the feed-forward network; return the name of the result.

    >>> builder = start_block("example", {"X": [[-1]], "W_1": [[1]], "W_2": [[1]], "b_2": [[5]]})
    >>> builder.values[add_feed_forward(builder, "X")]
    Matrix([[5]])
    """
    if activation not in ACTIVATIONS:
        hint = suggestion(str(activation), ACTIVATIONS)
        names = ", ".join(ACTIVATIONS)
        raise WorkError(f"activation: needs one of {names}, got {activation!r}{hint}")
    f = add_linear(
        builder,
        f"F{suffix}",
        x,
        f"W_1{weight_suffix}",
        title="the hidden layer of the feed-forward",
    )
    title = f"the activation {activation}"
    if f"W_G{weight_suffix}" in builder.values:
        d = add_linear(builder, f"D{suffix}", x, f"W_G{weight_suffix}", title="the gate")
        d = builder.add_step(f"G{suffix}", activation, d, title=title)
        g = builder.add_step(f"U{suffix}", "elementwise product", d, f, title="gated")
    else:
        g = builder.add_step(f"G{suffix}", activation, f, title=title)
    return add_linear(
        builder,
        f"FF{suffix}",
        g,
        f"W_2{weight_suffix}",
        title="projected back to the model width",
    )


def _add_norm_remarks(builder: SolutionBuilder) -> None:
    """Remark mean and variance of the first token before and after γ and β."""
    for name, when in (
        ("n", "Before γ and β"),
        ("LN", "After them" if "n" in builder.values else ""),
    ):
        if name not in builder.values or builder.values[name].free_symbols:
            continue
        row = [float(x.evalf(20)) for x in builder.values[name].row(0)]
        mean = sum(row) / len(row)
        variance = sum((x - mean) ** 2 for x in row) / len(row)
        subject = f"{when} token 1" if when else "Token 1"
        mean, variance = (f"{round(x, 9) + 0.0:.6g}" for x in (mean, variance))
        builder.add_remark(f"{subject} has mean {mean} and variance {variance}.")
    if 0 in builder.values["v"]:
        builder.add_remark("A token with equal features becomes zeros; without ε it would be 0/0.")
