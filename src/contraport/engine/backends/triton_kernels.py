"""Triton kernels that sum over all pairs, launched by `contraport.engine.backends.cuda`.

A program owns BLOCK_M rows, loops over a part of the columns and writes only what it owns, so that a result repeats bit
for bit. A sum over rows is the same kernel with the two sides exchanged: no kernel transposes a tile that it has
computed. Products are accumulated in single precision, and everything but a product is in single precision.

``x`` (n, D) and ``y`` (m, D) are the embeddings of the owned rows and of the columns; T, the link and the masks are
those of `contraport.engine.log_kernels` and `contraport.engine.masked_geometry`. Without a link the biases do not enter
the kernels: the caller adds them to the exponents.

W is launched in two forms, one exponential for all terms (GROUPS = 1) and one for each (RANK = 1). The form that the
data does not allow returns at once, so that the host need not wait for the device to learn which it is.
"""

# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-def"
# Triton is optional and reads annotations as its own; the arguments of a kernel are pointers and numbers of the device.

import triton
import triton.language as tl
from triton import knobs

IS_INTERPRETED: bool = knobs.runtime.interpret
"""True if Triton runs the kernels in Python, on tensors of the CPU: TRITON_INTERPRET=1 in the environment."""

LOG2E = tl.constexpr(1.4426950408889634)  # log2(e): exp(x) = exp2(LOG2E * x)
LN2 = tl.constexpr(0.6931471805599453)  # log(2)
TINY = tl.constexpr(1.1754943508222875e-38)  # smallest normal number of single precision
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def row_sums_by_column_split_kernel(
    x, y, row_bias, column_bias, row_labels, column_labels, factor, power, n, m,
    row_exponents, column_exponents, weight, out,
    D: tl.constexpr, LINK: tl.constexpr, NUM_MASKS: tl.constexpr, EXCEPTION_BITS: tl.constexpr, PRECISION: tl.constexpr,
    LOGARITHM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Triton kernel that sums each row within each column range, giving (splits, n).

    They are log-sum-exps if LOGARITHM, else weighted sums. The logarithm uses a running maximum, as nothing bounds its
    exponents; it is minus infinity where all terms are. The weighted sum needs none: its exponents are those of a plan
    or a softmax, S + A + B <= 0 up to rounding.
    """
    rows, coordinates = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    x_block = _load_block(x, rows, coordinates, n, D)
    total = tl.zeros([BLOCK_M], tl.float32)
    if LOGARITHM:
        top = tl.full([BLOCK_M], -INFINITY, tl.float32)
    else:
        a = tl.load(row_exponents + rows, mask=rows < n, other=-INFINITY) * LOG2E  # no weight beyond the last row
    first, last = _program_column_bounds(m, BLOCK_N)
    for start in range(first, last, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        y_block = _load_block(y, columns, coordinates, m, D)
        t = _link_input_tile(
            x, y, x_block, y_block, row_bias, column_bias, rows, columns, n, m, D, LINK, PRECISION, BLOCK_D
        )  # fmt: skip
        s = _apply_link(t, factor, power, LINK)
        s = _apply_masks_to_tile(s, row_labels, column_labels, rows, columns, n, m, NUM_MASKS, EXCEPTION_BITS)
        exponent = s * LOG2E + (tl.load(column_exponents + columns, mask=columns < m, other=0.0) * LOG2E)[None, :]
        if LOGARITHM:
            # Powers of two: exp2 is the instruction of the hardware, and exp is exp2 of a product.
            new_top = tl.maximum(top, tl.max(exponent, 1))
            shift = tl.where(new_top == -INFINITY, 0.0, new_top)
            total = total * tl.exp2(top - shift) + tl.sum(tl.exp2(exponent - shift[:, None]), 1)
            top = new_top
        else:
            v = tl.load(weight + columns, mask=columns < m, other=0.0)
            total += tl.sum(tl.exp2(exponent + a[:, None]) * v[None, :], 1)
    if LOGARITHM:
        total = top * LN2 + tl.log(total)
    tl.store(out + tl.program_id(1) * n + rows, total, mask=rows < n)


@triton.jit
def weighted_products_by_column_split_kernel(
    x, y, row_bias, column_bias, row_labels, column_labels, factor, power, n, m,
    row_exponents, column_exponents, row_factors, column_factors, can_share_exponential, out, weight_sums,
    D: tl.constexpr, LINK: tl.constexpr, NUM_MASKS: tl.constexpr, EXCEPTION_BITS: tl.constexpr, PRECISION: tl.constexpr,
    GROUPS: tl.constexpr, RANK: tl.constexpr, WITHOUT_LINK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Triton kernel that multiplies the pair weights W by the column embeddings y.

    The outputs are W y, (splits, n, D), and the row sums of W, (splits, n). D must be at most BLOCK_D.
    """
    if GROUPS * RANK > 1:  # noqa: SIM102  (resolved by the compiler; the inner test on the device)
        if _can_all_share_exponential(can_share_exponential, GROUPS * RANK) != (1 if GROUPS == 1 else 0):
            return
    rows, coordinates = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    x_block = _load_block(x, rows, coordinates, n, D)
    product = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    first, last = _program_column_bounds(m, BLOCK_N)
    for start in range(first, last, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        y_block = _load_block(y, columns, coordinates, m, D)
        w = _weight_times_slope_tile(
            x, y, x_block, y_block, row_bias, column_bias, row_labels, column_labels, factor, power, rows, columns,
            n, m, row_exponents, column_exponents, row_factors, column_factors,
            D, LINK, NUM_MASKS, EXCEPTION_BITS, PRECISION, GROUPS, RANK, WITHOUT_LINK, BLOCK_D,
        )  # fmt: skip
        total += tl.sum(w, 1)
        if y_block.dtype == tl.float16:  # its range is short: the weights of each row are divided by their largest
            peak = tl.max(tl.abs(w), 1)
            w = w / tl.where(peak == 0, 1.0, peak)[:, None]
            product += peak[:, None] * tl.dot(w.to(tl.float16), y_block)
        else:
            product = tl.dot(w.to(y_block.dtype), y_block, product, input_precision=PRECISION)
    offsets = tl.program_id(1).to(tl.int64) * n + rows  # 64 bits: splits * n * D may exceed 2^31
    tl.store(weight_sums + offsets, total, mask=rows < n)
    inside = (rows[:, None] < n) & (coordinates[None, :] < D)
    tl.store(out + offsets[:, None] * D + coordinates[None, :], product, mask=inside)


@triton.jit
def pair_weights_kernel(
    x, y, row_bias, column_bias, row_labels, column_labels, factor, power, n, m,
    row_exponents, column_exponents, row_factors, column_factors, can_share_exponential, out,
    D: tl.constexpr, LINK: tl.constexpr, NUM_MASKS: tl.constexpr, EXCEPTION_BITS: tl.constexpr, PRECISION: tl.constexpr,
    GROUPS: tl.constexpr, RANK: tl.constexpr, WITHOUT_LINK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Triton kernel of all pair weights W, (n, m), one tile per program."""
    if GROUPS * RANK > 1:  # noqa: SIM102  (resolved by the compiler; the inner test on the device)
        if _can_all_share_exponential(can_share_exponential, GROUPS * RANK) != (1 if GROUPS == 1 else 0):
            return
    rows, coordinates = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    x_block = _load_block(x, rows, coordinates, n, D)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    y_block = _load_block(y, columns, coordinates, m, D)
    w = _weight_times_slope_tile(
        x, y, x_block, y_block, row_bias, column_bias, row_labels, column_labels, factor, power, rows, columns,
        n, m, row_exponents, column_exponents, row_factors, column_factors,
        D, LINK, NUM_MASKS, EXCEPTION_BITS, PRECISION, GROUPS, RANK, WITHOUT_LINK, BLOCK_D,
    )  # fmt: skip
    offsets = rows[:, None].to(tl.int64) * m + columns[None, :]  # 64 bits: n * m may exceed 2^31
    tl.store(out + offsets, w.to(out.dtype.element_ty), mask=(rows[:, None] < n) & (columns[None, :] < m))


@triton.jit
def sum_splits_kernel(parts, out, n, splits, LOGARITHM: tl.constexpr, BLOCK: tl.constexpr):
    """Triton kernel that combines partial sums (splits, n) into (n,), in fixed order."""
    positions = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -INFINITY, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        part = tl.load(parts + split * n + positions, mask=positions < n, other=0.0)
        if LOGARITHM:
            new_top = tl.maximum(top, part)
            shift = tl.where(new_top == -INFINITY, 0.0, new_top)  # -inf - -inf would be NaN
            total = total * tl.exp(top - shift) + tl.exp(part - shift)
            top = new_top
        else:
            total += part
    if LOGARITHM:
        total = top + tl.log(total)
    tl.store(out + positions, total, mask=positions < n)


@triton.jit
def rescale_terms_to_first_exponents_kernel(
    row_exponents, column_exponents, row_weights, column_weights, row_factors_out, column_factors_out,
    can_share_exponents_out, n, m, max_gap, BLOCK: tl.constexpr,
):  # fmt: skip
    """Triton kernel that rescales all terms of the pair weights to the first's exponents.

    One can share these if its own differ by at most `max_gap`, so that the factors cannot overflow; its flag is 1.
    exp(A_i + B_j) u_i v_j of the program's term is exp(A0_i + B0_j) times the factors. A constant may be moved
    from rows to columns; the one chosen centers the exponents of the rows at 0, so that the largest is least.
    """
    term = tl.program_id(0)
    low = tl.full([BLOCK], INFINITY, tl.float32)
    high = tl.full([BLOCK], -INFINITY, tl.float32)
    for start in range(0, n, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        excess = _exponents_minus_first_term(row_exponents, term, positions, n)
        low = tl.minimum(low, tl.where(positions < n, excess, INFINITY))
        high = tl.maximum(high, tl.where(positions < n, excess, -INFINITY))
    low_end, high_end = tl.min(low, 0), tl.max(high, 0)
    shift = (low_end + high_end) / 2
    farthest = tl.full([BLOCK], (high_end - low_end) / 2, tl.float32)
    for start in range(0, n, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        u = tl.load(row_weights + term * n + positions, mask=positions < n, other=0.0)
        factor = u * tl.exp(_exponents_minus_first_term(row_exponents, term, positions, n) - shift)
        tl.store(row_factors_out + term * n + positions, factor, mask=positions < n)
    for start in range(0, m, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        excess = tl.where(positions < m, _exponents_minus_first_term(column_exponents, term, positions, m) + shift, 0.0)
        farthest = tl.maximum(farthest, tl.abs(excess))
        v = tl.load(column_weights + term * m + positions, mask=positions < m, other=0.0)
        tl.store(column_factors_out + term * m + positions, v * tl.exp(excess), mask=positions < m)
    tl.store(can_share_exponents_out + term, (tl.max(farthest, 0) <= max_gap).to(tl.int32))


@triton.jit
def _exponents_minus_first_term(exponents_by_term, term_index, positions, num_positions):
    """Return the exponents of one term of the pair weights, minus those of the first."""
    own = tl.load(exponents_by_term + term_index * num_positions + positions, mask=positions < num_positions, other=0.0)
    excess = own - tl.load(exponents_by_term + positions, mask=positions < num_positions, other=0.0)
    return tl.where(excess == excess, excess, INFINITY)


@triton.jit
def _can_all_share_exponential(share_flags_ptr, TERMS: tl.constexpr):
    """Return 1 if all flags in `share_flags_ptr` are 1, else 0."""
    gathered = tl.load(share_flags_ptr)
    for k in tl.static_range(1, TERMS):
        gathered = gathered & tl.load(share_flags_ptr + k)
    return gathered


@triton.jit
def _program_column_bounds(m, BLOCK_N: tl.constexpr):
    """Return the start and end of this program's columns."""
    tiles = tl.cdiv(m, BLOCK_N)
    each = tl.cdiv(tiles, tl.num_programs(1)) * BLOCK_N
    first = tl.program_id(1) * each
    return first, tl.minimum(first + each, m)


@triton.jit
def _load_block(matrix, rows, coordinates, n, D: tl.constexpr):
    """Load a block of an (n, D) matrix, with zeros outside the matrix."""
    inside = (rows[:, None] < n) & (coordinates[None, :] < D)
    return tl.load(matrix + rows[:, None].to(tl.int64) * D + coordinates[None, :], mask=inside, other=0.0)


@triton.jit
def _link_input_tile(
    x, y, x_block, y_block, row_bias, column_bias, rows, columns, n, m,
    D: tl.constexpr, LINK: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return a tile of values to which the link function is applied.

    These are inner products, plus biases if the link is nonlinear.
    """
    t = tl.dot(x_block, tl.trans(y_block), input_precision=PRECISION)
    for start in range(BLOCK_D, D, BLOCK_D):
        coordinates = start + tl.arange(0, BLOCK_D)
        left, right = _load_block(x, rows, coordinates, n, D), _load_block(y, columns, coordinates, m, D)
        t = tl.dot(left, tl.trans(right), t, input_precision=PRECISION)
    if LINK != "identity":
        t += tl.load(row_bias + rows, mask=rows < n, other=0.0)[:, None]
        t += tl.load(column_bias + columns, mask=columns < m, other=0.0)[None, :]
    return t


@triton.jit
def _apply_link(t, factor, power, LINK: tl.constexpr):
    """Convert a tile of T = -cost to the log-kernel."""
    if LINK == "log-decay":
        s = -factor * tl.log(1 + tl.maximum(-t, 0.0))  # T <= 0 up to rounding
    elif LINK == "power-decay":
        s = -factor * tl.exp2(power * tl.log2(tl.maximum(-t, TINY)))  # the logarithm of 0 would be -inf
    else:
        s = t
    return s


@triton.jit
def _link_slope(t, factor, power, LINK: tl.constexpr):
    """Return the derivative of the log-kernel with respect to T = -cost."""
    if LINK == "log-decay":
        slope = factor / (1 + tl.maximum(-t, 0.0))
    else:
        # As in the value, costs below the smallest normal number are constant.
        slope = tl.where(-t < TINY, 0.0, factor * power * tl.exp2((power - 1) * tl.log2(tl.maximum(-t, TINY))))
    return slope


@triton.jit
def _apply_masks_to_tile(
    log_kernel, row_labels, column_labels, rows, columns, n, m, NUM_MASKS: tl.constexpr, EXCEPTION_BITS: tl.constexpr
):
    """Return the log-kernel on a tile, minus infinity at masked pairs.

    Beyond the last column it is minus infinity too. Rows 2k of the two label matrices are the labels of mask k; if bit
    k of EXCEPTION_BITS is set, rows 2k + 1 are the labels of its exceptions.
    """
    for k in tl.static_range(NUM_MASKS):
        left = tl.load(row_labels + 2 * k * n + rows, mask=rows < n, other=0)
        right = tl.load(column_labels + 2 * k * m + columns, mask=columns < m, other=0)
        excluded = left[:, None] == right[None, :]
        if (EXCEPTION_BITS >> k) & 1:
            left = tl.load(row_labels + (2 * k + 1) * n + rows, mask=rows < n, other=0)
            right = tl.load(column_labels + (2 * k + 1) * m + columns, mask=columns < m, other=0)
            excluded = excluded & (left[:, None] != right[None, :])
        log_kernel = tl.where(excluded, -INFINITY, log_kernel)
    return tl.where(columns[None, :] < m, log_kernel, -INFINITY)


@triton.jit
def _weight_times_slope_tile(
    x, y, x_block, y_block, row_bias, column_bias, row_labels, column_labels, factor, power, rows, columns,
    n, m, row_exponents, column_exponents, row_factors, column_factors,
    D: tl.constexpr, LINK: tl.constexpr, NUM_MASKS: tl.constexpr, EXCEPTION_BITS: tl.constexpr, PRECISION: tl.constexpr,
    GROUPS: tl.constexpr, RANK: tl.constexpr, WITHOUT_LINK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Return a tile of pair weights, with or without the link function's derivative."""
    t = _link_input_tile(
        x, y, x_block, y_block, row_bias, column_bias, rows, columns, n, m, D, LINK, PRECISION, BLOCK_D
    )
    s = _apply_link(t, factor, power, LINK)
    s = _apply_masks_to_tile(s, row_labels, column_labels, rows, columns, n, m, NUM_MASKS, EXCEPTION_BITS)
    w = tl.zeros_like(s)
    # Both loops are unrolled, as their lengths are constants: the outer products stay in registers.
    for group in tl.static_range(GROUPS):
        a = tl.load(row_exponents + group * n + rows, mask=rows < n, other=-INFINITY) * LOG2E
        b = tl.load(column_exponents + group * m + columns, mask=columns < m, other=0.0) * LOG2E
        outer = tl.zeros_like(s)
        for k in tl.static_range(group * RANK, (group + 1) * RANK):
            u = tl.load(row_factors + k * n + rows, mask=rows < n, other=0.0)
            v = tl.load(column_factors + k * m + columns, mask=columns < m, other=0.0)
            outer += u[:, None] * v[None, :]
        w += tl.exp2(s * LOG2E + a[:, None] + b[None, :]) * outer
    if LINK != "identity" and not WITHOUT_LINK:
        w *= _link_slope(t, factor, power, LINK)
    return w
