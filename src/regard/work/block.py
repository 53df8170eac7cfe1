"""Blocks of a Transformer by hand: layer norm, feed-forward, encoder and decoder."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.errors import WorkError, suggestion
from regard.work.attention import Ways, linear
from regard.work.given import need_known
from regard.work.multi_head import attend_heads, index
from regard.work.rules import M
from regard.work.solution import Solution, Working

EPS = "1/100000"
ACTIVATIONS = ("relu", "gelu", "silu")
GREEK = {"gamma": "γ", "beta": "β"}  # as a TOML file can write them


class Block(NamedTuple):
    """What is chosen about a block: its heads, where the norm stands, the activation, the mask.

    >>> Block().first
    False
    """

    heads: int | None = None
    first: bool = False  # the norm before each part: pre-LN
    activation: str = "relu"
    mask: Any = None
    scale: Any = None
    kind: str = "layer"  # of the norm: layer or rms

    def ways(self, at: str = "", mask: Any = None) -> Ways:
        """How its attention is done; the scale and the mask get names of their own."""
        return Ways(scale=self.scale, mask=mask, beta=f"scale{at}", seen=f"mask{at}")


def layer_norm(given: Mapping[str, Any], *, eps: Any = EPS) -> Solution:
    """Layer norm: each token brought to mean 0 and variance 1, then to a gain and shift of its own.

    LN(x) = γ ∘ (x - mean(x)) / √(var(x) + ε) + β,   over the features of one token

    Given is X, and gamma and beta where wanted.

    >>> layer_norm({"X": [[1, 3]]}, eps=0)["LN"]
    Matrix([[-1, 1]])
    """
    need_known("layer-norm", given)
    work = start("layer-norm", given, EPS if eps is None else eps)
    norm(work, "X")
    _say_norm(work)
    return work.done()


def feed_forward(given: Mapping[str, Any], *, activation: str = "relu") -> Solution:
    """The feed-forward of a block: the same small network for each token alone.

    FF = f(X W_1 + b_1) W_2 + b_2,   f = relu: max(0, x);   gated: (f(X W_G) ∘ X W_1) W_2

    >>> feed_forward({"X": [[1, -1]], "W_1": [[1, 0], [0, 1]], "W_2": [[2], [3]]})["FF"]
    Matrix([[2]])
    """
    need_known("feed-forward", given)
    work = start("feed-forward", given, None, "W_1", "W_2")
    think(work, "X", activation)
    return work.done()


def encoder(
    given: Mapping[str, Any],
    *,
    heads: int | None = None,
    norm: str = "post",
    mask: Any = None,
    scale: Any = None,
    activation: str = "relu",
    eps: Any = EPS,
    kind: str = "layer",
) -> Solution:
    """A whole encoder block, every tensor of it.

    post:  LN_1 = LN(X + MHA(X)),   LN_2 = LN(LN_1 + FFN(LN_1))
    pre:   P_1 = X + MHA(LN(X)),    P_2 = P_1 + FFN(LN(P_1))

    Given are X, W_Q, W_K, W_V, W_O (or W_Q_1 … a head), W_1, W_2, and where wanted biases b_Q …
    b_1, b_2, and gamma_1, beta_1, gamma_2, beta_2. A mask makes it a block of a decoder-only model;
    with `kind` rms, `norm` pre, `activation` silu and a gate W_G it is one of today's.

    >>> zero = [[0, 0], [0, 0]]
    >>> told = {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero}
    >>> encoder(told, norm="pre")["P_2"]  # with nothing to add, pre-LN is the identity
    Matrix([[1, 3]])
    """
    need_known("encoder", given)
    work = start("encoder", given, EPS if eps is None else eps, "W_1", "W_2")
    block = Block(heads, is_first(norm), activation, mask, scale, kind)
    out = encode(work, "X", block)
    work.remark(f"What leaves the block is {out}.")
    return work.done()


def decoder(
    given: Mapping[str, Any],
    *,
    heads: int | None = None,
    norm: str = "post",
    mask: Any = "causal",
    scale: Any = None,
    activation: str = "relu",
    eps: Any = EPS,
    kind: str = "layer",
) -> Solution:
    """A whole decoder block: what was written so far, then what was read, then each token alone.

    post:  LN_1 = LN(X + MHA(X)),   LN_2 = LN(LN_1 + MHA(LN_1, Y)),   LN_3 = LN(LN_2 + FFN(LN_2))

    Given are X, the memory Y, W_Q, W_K, W_V, W_O for the masked self-attention (steps with index
    s), U_Q, U_K, U_V, U_O for the cross-attention (index c), W_1, W_2, and what an encoder takes.

    >>> zero = [[0, 0], [0, 0]]
    >>> told = {"X": [[1, 3]], "Y": [[1, 1]], "W_V": zero, "U_V": zero, "W_1": zero, "W_2": zero}
    >>> decoder(told, norm="pre")["P_3"]
    Matrix([[1, 3]])
    """
    need_known("decoder", given)
    work = start("decoder", given, EPS if eps is None else eps, "Y", "W_1", "W_2")
    block = Block(heads, is_first(norm), activation, mask, scale, kind)

    def look_back(x: str) -> str:
        return attend_heads(work, block.ways("_s", mask), heads, "_s", (x, x))

    def look_across(x: str) -> str:
        return attend_heads(work, block.ways("_c"), heads, "_c", (x, "Y"), "U_{}")

    x = _around(work, "X", look_back, block, "_1")
    x = _around(work, x, look_across, block, "_2")
    out = _around(work, x, lambda x: think(work, x, activation), block, "_3")
    work.remark(f"What leaves the block is {out}.")
    return work.done()


def start(family: str, given: Mapping[str, Any], eps: Any, *needs: str) -> Working:
    """A working with γ and β under their letters, and ε where a norm comes.

    >>> list(start("none", {"X": 1, "gamma_1": 2}, 0).given)
    ['X', 'γ_1', 'ε']
    """
    missing = [name for name in ("X", *needs) if given.get(name) is None]
    if missing:
        raise WorkError(f"given: needs {', '.join(missing)} for the family {family}, got none")
    named = {}
    for name, value in given.items():
        first, under, rest = name.partition("_")
        if value is not None:
            named[f"{GREEK.get(first, first)}{under}{rest}"] = value
    work = Working(family, named)
    if eps is None:
        return work
    small = work.values[work.give("ε", eps)]
    if small.shape != (1, 1) or not small[0, 0].is_number or not 0 <= small[0, 0] <= 1:
        raise WorkError(f"eps: needs a number from 0 to 1, got {eps}")
    return work


def is_first(norm: str) -> bool:
    """Whether the norm stands before each part (pre-LN), not after the sum (post-LN).

    >>> is_first("pre")
    True
    """
    if norm not in ("pre", "post"):
        raise WorkError(f"norm: needs pre or post, got {norm!r}")
    return norm == "pre"


def encode(work: Working, x: str, block: Block, at: str = "", own: str = "") -> str:
    """One encoder block from the tokens called x; its steps end in `at`, its weights in `own`.

    >>> zero = [[0, 0], [0, 0]]
    >>> work = start("none", {"X": [[1, 3]], "W_V": zero, "W_1": zero, "W_2": zero}, 0)
    >>> encode(work, "X", Block())
    'LN_2'
    """
    by = f"W_{{}}{own}"

    def look(x: str) -> str:
        return attend_heads(work, block.ways(mask=block.mask), block.heads, at, (x, x), by)

    x = _around(work, x, look, block, index(at, 1), own)
    return _around(
        work, x, lambda x: think(work, x, block.activation, at, own), block, index(at, 2), own
    )


def _around(work: Working, x: str, part: Any, block: Block, at: str, own: str = "") -> str:
    """A part of a block with its residual, and the norm after the sum or before the part."""
    found = part(norm(work, x, at, own, block.kind) if block.first else x)
    says = "the residual: what came in is added"
    total = work.step(f"P{at}", "add", x, found, says=says)
    work.slip(total, "the residual was left out", work.values[found])
    return total if block.first else norm(work, total, at, own, block.kind)


def norm(work: Working, x: str, at: str = "", own: str = "", kind: str = "layer") -> str:
    """The steps of layer norm, or of RMS norm, which takes no mean off; the name of what comes out.

    >>> work = start("none", {"X": [[0, 4]], "gamma": [[1, 2]]}, 0)
    >>> work.values[norm(work, "X")]
    Matrix([[-1, 2]])
    """
    if kind not in ("layer", "rms"):
        raise WorkError(f"kind: needs layer or rms, got {kind!r}")
    if kind == "rms":
        return _rms(work, x, at, own)
    m = work.step(f"m{at}", "mean of rows", x, says="the mean of each token's features")
    c = work.step(f"c{at}", "centre rows", x, m, says="less the mean: centred")
    v = work.step(f"v{at}", "variance of rows", c, says="the variance of each token's features")
    r = work.step(f"r{at}", "inverse deviation", v, "ε", says="one over the deviation")
    gain, shift = (_its(one, at, own) for one in "γβ")
    if gain not in work.values and shift not in work.values:
        return work.step(f"LN{at}", "times rows", c, r, says="mean 0 and variance 1")
    n = work.step(f"n{at}", "times rows", c, r, says="mean 0 and variance 1")
    for name, usual in ((gain, M.ones), (shift, M.zeros)):
        if name not in work.values:
            work.give(name, usual(1, work.values[x].cols))
    says = "with a gain and a shift for each feature"
    return work.step(f"LN{at}", "gain and shift", n, gain, shift, says=says)


def _its(letter: str, at: str, own: str) -> str:
    places = at.rpartition(".")[2].lstrip("_")  # γ_1 stands in every layer, for its first norm
    return f"{letter}_{places}{own}" if places else letter


def _rms(work: Working, x: str, at: str, own: str) -> str:
    v = work.step(f"v{at}", "variance of rows", x, says="the mean square of each token's features")
    r = work.step(f"r{at}", "inverse deviation", v, "ε", says="one over its root")
    gain = _its("γ", at, own)
    if gain not in work.values:
        return work.step(f"LN{at}", "times rows", x, r, says="a mean square of 1")
    n = work.step(f"n{at}", "times rows", x, r, says="a mean square of 1")
    return work.step(f"LN{at}", "gain", n, gain, says="with a gain for each feature")


def think(work: Working, x: str, activation: str = "relu", at: str = "", own: str = "") -> str:
    """The steps of the feed-forward; the name of what comes out.

    >>> work = start("none", {"X": [[-1]], "W_1": [[1]], "W_2": [[1]], "b_2": [[5]]}, None)
    >>> work.values[think(work, "X")]
    Matrix([[5]])
    """
    if activation not in ACTIVATIONS:
        hint = suggestion(str(activation), ACTIVATIONS)
        some = ", ".join(ACTIVATIONS)
        raise WorkError(f"activation: needs one of {some}, got {activation!r}{hint}")
    f = linear(work, f"F{at}", x, f"W_1{own}", says="the feed-forward: each token by itself")
    says = f"bent: what is negative {'goes' if activation == 'relu' else 'fades'}"
    if f"W_G{own}" in work.values:
        d = linear(work, f"D{at}", x, f"W_G{own}", says="the gate, from the same token")
        d = work.step(f"G{at}", activation, d, says=says)
        g = work.step(f"U{at}", "by entry", d, f, says="what the gate lets through")
    else:
        g = work.step(f"G{at}", activation, f, says=says)
    return linear(work, f"FF{at}", g, f"W_2{own}", says="and back to the width of the tokens")


def _say_norm(work: Working) -> None:
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
        work.remark(f"{who} has mean {mean} and variance {variance}.")
    if 0 in work.values["v"]:
        work.remark(
            "A token whose features are all equal becomes zeros; without ε it would be 0/0."
        )
