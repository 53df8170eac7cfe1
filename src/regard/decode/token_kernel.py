"""One token through all blocks as one Triton kernel whose programs meet between the products."""

from typing import no_type_check

import triton
import triton.language as tl

from regard.decode.step_kernels import ACTIVATIONS, activated, attend_head, normed

__all__ = ["ACTIVATIONS", "TABLE", "whole_token"]

# what the table of addresses holds for each block, in this order
TABLE = (
    "to_q", "to_k", "to_v", "to_out", "to_hidden", "to_gate", "to_narrow",
    "bias_q", "bias_k", "bias_v", "bias_out", "bias_hidden", "bias_gate", "bias_narrow",
    "gain_1", "shift_1", "gain_2", "shift_2", "keys", "values",
)  # fmt: skip
WIDE: tl.constexpr = tl.constexpr(len(TABLE))


@triton.jit
@no_type_check
def _arrive(count_ptr):
    """Say that what this program wrote is there."""
    tl.debug_barrier()
    tl.atomic_add(count_ptr, 1, sem="release", scope="gpu")


@triton.jit
@no_type_check
def _meet(count_ptr, goal, PATIENCE: tl.constexpr):
    """Wait until so many have arrived; not for ever, as a kernel that hangs takes the GPU along."""
    tries = 0
    come = _come(count_ptr)
    while (come < goal) & (tries < PATIENCE):
        tries += 1
        come = _come(count_ptr)
    tl.debug_barrier()


@triton.jit
@no_type_check
def _come(count_ptr):
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", [count_ptr], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
@no_type_check
def _address(table_ptr, layer, slot, like_ptr):
    found = tl.load(table_ptr + layer * WIDE + slot)
    return tl.multiple_of(found.to(like_ptr.dtype), 16)


@triton.jit
@no_type_check
def _rows_of(
    table_ptr, layer, slot, like_ptr, begin, outs, ins, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Some rows of a matrix: on their way when this returns, needed much later."""
    n = begin + tl.arange(0, ROWS)
    at = tl.arange(0, WIDTH)
    w_ptr = _address(table_ptr, layer, slot, like_ptr)
    both = (n < outs)[:, None] & (at < ins)[None, :]
    places = n[:, None] * ins + at[None, :]
    return tl.load(w_ptr + places, mask=both, other=0.0, eviction_policy="evict_first")


@triton.jit
@no_type_check
def _some_of(table_ptr, layer, slot, like_ptr, at, live):
    ptr = _address(table_ptr, layer, slot, like_ptr)
    return tl.load(ptr + at, mask=live, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _product(
    w, x, table_ptr, layer, slot, like_ptr, begin, outs, ROWS: tl.constexpr, BIASED: tl.constexpr
):  # fmt: skip
    y = tl.sum(w.to(tl.float32) * x[None, :], 1)
    if BIASED:
        n = begin + tl.arange(0, ROWS)
        y += _some_of(table_ptr, layer, slot, like_ptr, n, n < outs)
    return y


@triton.jit
@no_type_check
def _hidden(
    w, g, x, table_ptr, layer, like_ptr, hidden_ptr, begin, outs, ROWS: tl.constexpr,
    BIASED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """What the feed-forward holds between its products, written down."""
    u = _product(w, x, table_ptr, layer, 11, like_ptr, begin, outs, ROWS, BIASED)
    if GATED:
        gate = _product(g, x, table_ptr, layer, 12, like_ptr, begin, outs, ROWS, BIASED)
        u = u * activated(gate, ACTIVATION)
    else:
        u = activated(u, ACTIVATION)
    n = begin + tl.arange(0, ROWS)
    tl.store(hidden_ptr + n, u.to(hidden_ptr.dtype.element_ty), mask=n < outs)


@triton.jit
@no_type_check
def _added(
    w, y, table_ptr, layer, slot, like_ptr, x_ptr, begin, outs, ROWS: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Onto the residual: only the program that owns a row reads and writes it here."""
    n = begin + tl.arange(0, ROWS)
    old = tl.load(x_ptr + n, mask=n < outs, other=0.0, cache_modifier=".cg")
    found = _product(w, y, table_ptr, layer, slot, like_ptr, begin, outs, ROWS, BIASED)
    tl.store(x_ptr + n, old + found, mask=n < outs)


@triton.jit
@no_type_check
def _norm_of(
    x_ptr, table_ptr, layer, slot, like_ptr, dim, eps, WIDTH: tl.constexpr, NORM: tl.constexpr,
    SHIFTED: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + at, mask=at < dim, other=0.0, cache_modifier=".cg")
    gain_ptr = like_ptr
    shift_ptr = like_ptr
    if NORM != 0:
        gain_ptr = _address(table_ptr, layer, slot, like_ptr)
        if SHIFTED:
            shift_ptr = _address(table_ptr, layer, slot + 1, like_ptr)
    return normed(x, gain_ptr, shift_ptr, at, at < dim, dim, eps, NORM, SHIFTED)


@triton.jit
@no_type_check
def whole_token(
    table_ptr, like_ptr, x_ptr, qkv_ptr, y_ptr, hidden_ptr, count_ptr, time_ptr, skip_ptr, home_ptr,
    cos_ptr, sin_ptr, layers, first, heads, key_heads, room, scale, window,
    dim, mixed, keyed, hidden, eps,
    Q: tl.constexpr, K: tl.constexpr, OUT: tl.constexpr, UP: tl.constexpr,
    DIM: tl.constexpr, MIXED: tl.constexpr, HIDDEN: tl.constexpr,
    FEAT: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, ROTARY: tl.constexpr,
    HALVES: tl.constexpr, HOMES: tl.constexpr, NORM: tl.constexpr, SHIFTED: tl.constexpr,
    BIASED: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, PHASES: tl.constexpr,
    PATIENCE: tl.constexpr,
):  # fmt: skip
    """All blocks for one row. A program has its rows of every matrix: Q and K of them, or two tiles
    of OUT or of UP, as a tile's products must fit beside the weights that are already under way.

    Weights wait for nobody, so each matrix is fetched a phase or two before its turn and memory is
    never idle while the programs meet. PHASES is 0 for all; 1 to 5 runs one phase of layer `first`.
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    goal = 0
    n_q = pid * Q
    n_k = pid * K
    a_out = pid * 2 * OUT
    b_out = a_out + OUT
    a_up = pid * 2 * UP
    b_up = a_up + UP
    if (PHASES == 0) | (PHASES == 1):
        wq = _rows_of(table_ptr, first, 0, like_ptr, n_q, mixed, dim, Q, DIM)
        wk = _rows_of(table_ptr, first, 1, like_ptr, n_k, keyed, dim, K, DIM)
        wv = _rows_of(table_ptr, first, 2, like_ptr, n_k, keyed, dim, K, DIM)
    if (PHASES == 0) | (PHASES == 3):
        wo_a = _rows_of(table_ptr, first, 3, like_ptr, a_out, dim, mixed, OUT, MIXED)
        wo_b = _rows_of(table_ptr, first, 3, like_ptr, b_out, dim, mixed, OUT, MIXED)
    for layer in range(first, first + layers):
        if (PHASES == 0) | (PHASES == 1):
            x = _norm_of(x_ptr, table_ptr, layer, 14, like_ptr, dim, eps, DIM, NORM, SHIFTED)
            q = _product(wq, x, table_ptr, layer, 7, like_ptr, n_q, mixed, Q, BIASED)
            k = _product(wk, x, table_ptr, layer, 8, like_ptr, n_k, keyed, K, BIASED)
            v = _product(wv, x, table_ptr, layer, 9, like_ptr, n_k, keyed, K, BIASED)
            at_q = n_q + tl.arange(0, Q)
            at_k = n_k + tl.arange(0, K)
            tl.store(qkv_ptr + at_q, q, mask=at_q < mixed)
            tl.store(qkv_ptr + mixed + at_k, k, mask=at_k < keyed)
            tl.store(qkv_ptr + mixed + keyed + at_k, v, mask=at_k < keyed)
        if PHASES == 0:
            _arrive(count_ptr)
        if (PHASES == 0) | (PHASES == 4):
            wu_a = _rows_of(table_ptr, layer, 4, like_ptr, a_up, hidden, dim, UP, DIM)
            wu_b = _rows_of(table_ptr, layer, 4, like_ptr, b_up, hidden, dim, UP, DIM)
            wg_a = wu_a
            wg_b = wu_b
            if GATED:
                wg_a = _rows_of(table_ptr, layer, 5, like_ptr, a_up, hidden, dim, UP, DIM)
                wg_b = _rows_of(table_ptr, layer, 5, like_ptr, b_up, hidden, dim, UP, DIM)
        if PHASES == 0:
            goal += programs
            _meet(count_ptr, goal, PATIENCE)
        if (PHASES == 0) | (PHASES == 2):  # noqa: SIM102 (one is known when it is compiled)
            if pid < heads:
                k_ptr = _address(table_ptr, layer, 18, like_ptr)
                v_ptr = _address(table_ptr, layer, 19, like_ptr)
                attend_head(
                    qkv_ptr, k_ptr, v_ptr, y_ptr, time_ptr, skip_ptr, home_ptr, cos_ptr, sin_ptr,
                    0, pid, heads, key_heads, room, scale, window,
                    FEAT, WIDTH, KEYS, ROTARY, HALVES, HOMES,
                )  # fmt: skip
        if PHASES == 0:
            _arrive(count_ptr)
            goal += programs
            _meet(count_ptr, goal, PATIENCE)
        if (PHASES == 0) | (PHASES == 3):
            at = tl.arange(0, MIXED)
            y = tl.load(y_ptr + at, mask=at < mixed, other=0.0, cache_modifier=".cg")
            y = y.to(tl.float32)
            _added(wo_a, y, table_ptr, layer, 10, like_ptr, x_ptr, a_out, dim, OUT, BIASED)
            _added(wo_b, y, table_ptr, layer, 10, like_ptr, x_ptr, b_out, dim, OUT, BIASED)
        if PHASES == 0:
            _arrive(count_ptr)
        if (PHASES == 0) | (PHASES == 5):
            wd_a = _rows_of(table_ptr, layer, 6, like_ptr, a_out, dim, hidden, OUT, HIDDEN)
            wd_b = _rows_of(table_ptr, layer, 6, like_ptr, b_out, dim, hidden, OUT, HIDDEN)
        if PHASES == 0:
            goal += programs
            _meet(count_ptr, goal, PATIENCE)
        if (PHASES == 0) | (PHASES == 4):
            x = _norm_of(x_ptr, table_ptr, layer, 16, like_ptr, dim, eps, DIM, NORM, SHIFTED)
            _hidden(
                wu_a, wg_a, x, table_ptr, layer, like_ptr, hidden_ptr, a_up, hidden,
                UP, BIASED, GATED, ACTIVATION,
            )  # fmt: skip
            _hidden(
                wu_b, wg_b, x, table_ptr, layer, like_ptr, hidden_ptr, b_up, hidden,
                UP, BIASED, GATED, ACTIVATION,
            )  # fmt: skip
        if PHASES == 0:
            _arrive(count_ptr)
            after = tl.minimum(layer + 1, first + layers - 1)
            wq = _rows_of(table_ptr, after, 0, like_ptr, n_q, mixed, dim, Q, DIM)
            wk = _rows_of(table_ptr, after, 1, like_ptr, n_k, keyed, dim, K, DIM)
            wv = _rows_of(table_ptr, after, 2, like_ptr, n_k, keyed, dim, K, DIM)
            goal += programs
            _meet(count_ptr, goal, PATIENCE)
        if (PHASES == 0) | (PHASES == 5):
            at = tl.arange(0, HIDDEN)
            h = tl.load(hidden_ptr + at, mask=at < hidden, other=0.0, cache_modifier=".cg")
            h = h.to(tl.float32)
            _added(wd_a, h, table_ptr, layer, 13, like_ptr, x_ptr, a_out, dim, OUT, BIASED)
            _added(wd_b, h, table_ptr, layer, 13, like_ptr, x_ptr, b_out, dim, OUT, BIASED)
        if PHASES == 0:
            _arrive(count_ptr)
            wo_a = _rows_of(table_ptr, after, 3, like_ptr, a_out, dim, mixed, OUT, MIXED)
            wo_b = _rows_of(table_ptr, after, 3, like_ptr, b_out, dim, mixed, OUT, MIXED)
            goal += programs
            _meet(count_ptr, goal, PATIENCE)
