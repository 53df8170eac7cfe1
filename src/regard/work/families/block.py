"""Transformer blocks: layer norm, RMS norm, feed-forward, encoder and decoder."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from regard.errors import WorkError
from regard.work.families.attention import AttentionSetup, add_linear
from regard.work.families.multi_head import add_multi_head, extend_suffix
from regard.work.families.registry import check_choice, check_required, family
from regard.work.rules import M
from regard.work.solution import Solution, SolutionBuilder

DEFAULT_EPS = "1/100000"
ACTIVATIONS = ("relu", "gelu", "silu")
GREEK_LETTERS = {"gamma": "γ", "beta": "β"}  # ASCII spelling in TOML


class BlockSetup(NamedTuple):
    """Options of a block: heads, norm placement and kind, activation, mask, scale."""

    heads: int | None = None
    pre_norm: bool = False
    activation: str = "relu"
    mask: Any = None
    scale: Any = None
    norm_kind: str = "layer"  # layer or rms

    def attention_setup(self, suffix: str = "", mask: Any = None) -> AttentionSetup:
        """Setup of one attention, whose scale and mask are named after it."""
        return AttentionSetup(
            scale=self.scale, mask=mask, scale_name=f"scale{suffix}", mask_name=f"mask{suffix}"
        )


@family("layer-norm")
def solve_layer_norm(given: Mapping[str, Any], *, eps: Any = DEFAULT_EPS) -> Solution:
    """Layer norm over the features of each token.

    LN(x) = γ ∘ (x - mean(x)) / √(var(x) + ε) + β

    Given: X; gamma and beta are optional.

    >>> solve_layer_norm({"X": [[1, 3]]}, eps=0)["LN"]
    Matrix([[-1, 1]])
    """
    builder = start_block("layer-norm", given, eps=eps)
    add_norm(builder, "X")
    _add_norm_remarks(builder)
    return builder.build()


@family("feed-forward")
def solve_feed_forward(given: Mapping[str, Any], *, activation: str = "relu") -> Solution:
    """Position-wise feed-forward network, optionally gated.

    FF = f(X W_1 + b_1) W_2 + b_2,   f = relu: max(0, x);   gated: (f(X W_G) ∘ X W_1) W_2

    >>> solve_feed_forward({"X": [[1, -1]], "W_1": [[1, 0], [0, 1]], "W_2": [[2], [3]]})["FF"]
    Matrix([[2]])
    """
    check_required("the family feed-forward", given, "X", "W_1", "W_2")
    builder = SolutionBuilder("feed-forward", dict(given))
    add_feed_forward(builder, "X", activation)
    return builder.build()


@family("encoder")
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
    builder = start_block("encoder", given, "W_1", "W_2", eps=eps)
    check_choice("norm", norm, ("pre", "post"))
    setup = BlockSetup(heads, norm == "pre", activation, mask, scale, norm_kind)
    out = add_encoder_block(builder, "X", setup)
    builder.add_remark(f"The output of the block is {out}.")
    return builder.build()


@family("decoder")
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
    builder = start_block("decoder", given, "Y", "W_1", "W_2", eps=eps)
    check_choice("norm", norm, ("pre", "post"))
    setup = BlockSetup(heads, norm == "pre", activation, mask, scale, norm_kind)

    attend, cross = setup.attention_setup("_s", mask), setup.attention_setup("_c")
    sublayers = (
        lambda x: add_multi_head(builder, attend, heads, "_s", (x, x)),
        lambda x: add_multi_head(builder, cross, heads, "_c", (x, "Y"), "U_{}"),
        lambda x: add_feed_forward(builder, x, activation),
    )
    out = _add_sublayers(builder, "X", sublayers, setup)
    builder.add_remark(f"The output of the block is {out}.")
    return builder.build()


def start_block(
    family: str, given: Mapping[str, Any], *required: str, eps: Any = None
) -> SolutionBuilder:
    """A builder with gamma and beta renamed to γ and β, and ε; X and `required` must be given.

    >>> list(start_block("example", {"X": 1, "gamma_1": 2}, eps=0).given)
    ['X', 'γ_1', 'ε']
    """
    check_required(f"the family {family}", given, "X", *required)
    renamed = {}
    for name, value in given.items():
        head, separator, rest = name.partition("_")
        renamed[f"{GREEK_LETTERS.get(head, head)}{separator}{rest}"] = value
    builder = SolutionBuilder(family, renamed)
    epsilon = builder.values[builder.add_given("ε", DEFAULT_EPS if eps is None else eps)]
    if epsilon.shape != (1, 1) or not epsilon[0, 0].is_number or not 0 <= epsilon[0, 0] <= 1:
        raise WorkError(f"eps: needs a number from 0 to 1, got {eps}")
    return builder


def add_encoder_block(
    builder: SolutionBuilder, x: str, setup: BlockSetup, suffix: str = "", weight_suffix: str = ""
) -> str:
    """Add an encoder block on x; step names end in `suffix`, weight names in `weight_suffix`.

    >>> zero = [[0, 0], [0, 0]]
    >>> given = {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero}
    >>> add_encoder_block(start_block("example", given, eps=0), "X", BlockSetup())
    'LN_2'
    """
    attend, pattern = setup.attention_setup(mask=setup.mask), f"W_{{}}{weight_suffix}"
    sublayers = (
        lambda x: add_multi_head(builder, attend, setup.heads, suffix, (x, x), pattern),
        lambda x: add_feed_forward(builder, x, setup.activation, suffix, weight_suffix),
    )
    return _add_sublayers(builder, x, sublayers, setup, suffix, weight_suffix)


def _add_sublayers(
    builder: SolutionBuilder,
    x: str,
    sublayers: Iterable[Callable[[str], str]],
    setup: BlockSetup,
    suffix: str = "",
    weight_suffix: str = "",
) -> str:
    """Add sublayers, each with its residual and norm."""
    for n, add_sublayer in enumerate(sublayers, 1):
        index = extend_suffix(suffix, n)
        parameters = (index, weight_suffix, setup.norm_kind)
        output = add_sublayer(add_norm(builder, x, *parameters) if setup.pre_norm else x)
        x = builder.add_step(f"P{index}", "add", x, output, title="the residual: plus the input")
        builder.add_mistake(x, "the residual was left out", builder.values[output])
        x = x if setup.pre_norm else add_norm(builder, x, *parameters)
    return x


def add_norm(
    builder: SolutionBuilder, x: str, suffix: str = "", weight_suffix: str = "", kind: str = "layer"
) -> str:
    """Add a layer norm, or an RMS norm (no mean subtracted); return the name of the result.

    >>> builder = start_block("example", {"X": [[0, 4]], "gamma": [[1, 2]]}, eps=0)
    >>> builder.values[add_norm(builder, "X")]
    Matrix([[-1, 2]])
    """
    check_choice("norm_kind", kind, ("layer", "rms"))
    index = suffix.rpartition(".")[2].lstrip("_")  # γ_1 is shared by the first norm of every layer
    gain, shift = (f"{letter}_{index}{weight_suffix}" if index else letter for letter in "γβ")
    m, c, v, r, n, out = (f"{letter}{suffix}" for letter in ("m", "c", "v", "r", "n", "LN"))
    if kind == "rms":
        has_parameters, title = gain in builder.values, "a mean square of 1"
        builder.add_steps(
            (v, "variance of rows", x, "the mean square of each token's features"),
            (r, "inverse std", f"{v} ε", "one over its square root"),
            (n if has_parameters else out, "scale rows", f"{x} {r}", title),
        )
        if has_parameters:
            builder.add_step(out, "gain", n, gain, title="with a gain per feature")
        return out
    has_parameters, title = not {gain, shift}.isdisjoint(builder.values), "mean 0 and variance 1"
    builder.add_steps(
        (m, "mean of rows", x, "the mean of each token's features"),
        (c, "centre rows", f"{x} {m}", "centred: minus the mean"),
        (v, "variance of rows", c, "the variance of each token's features"),
        (r, "inverse std", f"{v} ε", "one over the standard deviation"),
        (n if has_parameters else out, "scale rows", f"{c} {r}", title),
    )
    if has_parameters:
        for name, default in ((gain, M.ones), (shift, M.zeros)):
            if name not in builder.values:
                builder.add_given(name, default(1, builder.values[x].cols))
        title = "with a gain and a shift per feature"
        builder.add_step(out, "gain and shift", n, gain, shift, title=title)
    return out


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
    check_choice("activation", activation, ACTIVATIONS)
    hidden, gate, out = (f"{name}{weight_suffix}" for name in ("W_1", "W_G", "W_2"))
    title = "the hidden layer of the feed-forward"
    f = add_linear(builder, f"F{suffix}", x, hidden, title=title)
    title = f"the activation {activation}"
    if gate in builder.values:
        d = add_linear(builder, f"D{suffix}", x, gate, title="the gate")
        d = builder.add_step(f"G{suffix}", activation, d, title=title)
        g = builder.add_step(f"U{suffix}", "elementwise product", d, f, title="gated")
    else:
        g = builder.add_step(f"G{suffix}", activation, f, title=title)
    return add_linear(builder, f"FF{suffix}", g, out, title="projected back to the model width")


def _add_norm_remarks(builder: SolutionBuilder) -> None:
    """Remark mean and variance of the first token before and after γ and β."""
    after = "After them" if "n" in builder.values else ""
    for name, when in (("n", "Before γ and β"), ("LN", after)):
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
