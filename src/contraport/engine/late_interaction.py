"""Late-interaction kernel, which compares items by matching their sets of vectors.

An item is a set of unit vectors: the tokens of a text, the patches of an image. The similarity of a row x = {x_t} and a
column y = {y_s} is the value of entropic transport between the two sets, with C_ts = 1 - <x_t, y_s>, uniform a and b::

    1 - min_P  <P, C> + tau KL(P | a b^T) + rho_x KL(P 1 | a) + rho_y KL(P^T 1 | b)

With rho_x infinite and rho_y = 0 only the masses of the row's vectors are fixed: each vector of x distributes its mass
freely over y. The value is then a mean of log-sum-exps, and at tau = 0 a mean of maxima, ColBERT's MaxSim. With
both infinite the plan is balanced. One solver, half-steps on either side, gives all of them.

Pairs of vectors are computed tile by tile, forward and backward, so that the (n, m, t, s) tensor never exists. For the
maximum, the forward pass saves which vector attained it, and the gradient is a sum over these alone. Each gradient row
sums its own entries in a fixed order: no atomic additions, and the same bits in each run.

A vector of zeros is padding, as it has no direction. A set without vectors counts as one vector of zeros, whose cosine
with everything is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.distributed import Processes, current_processes
from contraport.engine.autograd_utilities import autocast_disabled, differentiable_gradients, is_in_torch_func
from contraport.engine.kernels import (
    CostUnitToLogKernel,
    Kernel,
    TemperatureLike,
    normalize,
    normalize_rows_by_max_then_norm,
)
from contraport.engine.log_kernels import LOG2E, LogKernel
from contraport.errors import check, check_integer, check_name, check_positive, is_number

MAX_TILE_ROW_VECTORS, MAX_TILE_COLUMN_VECTORS = 256, 2048
"""Maximum number of row and of column vectors in a tile: 2 MiB of cosines in single precision fit a CPU cache."""

MIN_TRANSPORT_TOKEN_TEMPERATURE = 0.05
"""Lowest temperature of half-steps on rows and columns: products of two e^(2 / 0.05) = e^40 fit single precision."""

SORTED_MAXIMA_PER_CHUNK = 1 << 16
"""Number of maxima whose positions are sorted at a time in the gradient of MaxSim: 512 KiB of integers."""


class LateInteraction(Kernel):
    """Kernel between sets of vectors by MaxSim (ColBERT) or entropic transport.

    Items are sets of vectors, such as the tokens of a text or the patches of an image: (N, t, d) and (M, s, d), or
    (N, d), sets of one. Vectors are normalized, and vectors of zeros are padding. The similarity of a row x and a
    column y is

    - ``"max"``: the mean over the vectors of x of the largest cosine with a vector of y (MaxSim);
    - ``"soft"``: the same with token_temperature times the log-mean-exp in place of the maximum;
    - ``"transport"``: 1 minus the entropic transport cost between the two sets, each with uniform masses, after some
      Sinkhorn iterations. Without a price on the masses of y this is ``"soft"``, at temperature 0 ``"max"``.

    log K is (similarity - 1) / temperature. The similarities are computed once in a call, tile by tile: an objective
    takes O(N M) memory, not O(N M t s). They are not symmetric: rows look for their match in columns, except in
    balanced transport at convergence.

    Args:
        matching: one of the three.
        temperature: in units of the similarity; as in `Kernel`.
        token_temperature: epsilon of the entropy between vectors, in units of the cosine; at least 0.05 for transport.
        relaxation: price at which the masses of the vectors may deviate, for transport: a number, or a pair for rows
            and columns; infinity fixes them. (infinity, 0) is ``"soft"``.
        iterations: number of Sinkhorn iterations, for transport; the last half-step is on the rows.
        reduction: ``"mean"`` or ``"sum"`` over the vectors of x; for a sum log K is similarity / temperature.
        learnable: whether the temperature is a parameter of the kernel, kept at 0.01 or above.

    Raises:
        UsageError: a name is unknown, a number is out of range, or the matching does not use an argument.

    Source: Khattab and Zaharia (2020), ColBERT: Efficient and effective passage search via contextualized late
    interaction over BERT, eq. 3; Chizat et al. (2018), Scaling algorithms for unbalanced optimal transport.

    >>> import torch
    >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # one set of two vectors
    >>> y = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    >>> LateInteraction("max", temperature=1.0)(x, y).dense()  # MaxSim - 1
    tensor([[ 0.0000, -0.5000, -0.5000]])
    """

    compares_sets = True

    def __init__(
        self,
        matching: str = "max",
        temperature: TemperatureLike = 0.05,
        *,
        token_temperature: float = 0.05,
        relaxation: float | tuple[float, float] = math.inf,
        iterations: int = 5,
        reduction: str = "mean",
        learnable: bool = False,
    ) -> None:
        check_name("matching", matching, ("max", "soft", "transport"))
        check_name("reduction", reduction, ("mean", "sum"))
        super().__init__("cosine" if reduction == "mean" else "negative-cosine", temperature, learnable=learnable)
        check_positive("token_temperature", token_temperature)
        check_integer("iterations", iterations)
        for name, is_set, used_by in (
            ("token_temperature", token_temperature != 0.05, ("soft", "transport")),
            ("relaxation", relaxation != math.inf, ("transport",)),
            ("iterations", iterations != 5, ("transport",)),
        ):
            good = not is_set or matching in used_by
            check(good, f"{name}: requires matching {' or '.join(used_by)}, got {matching!r}.", "matching")
        prices = relaxation if isinstance(relaxation, tuple) else (relaxation, relaxation)
        good = len(prices) == 2 and all(is_number(price) and price >= 0 for price in prices) and prices[0] > 0
        check(good, f"relaxation: must be positive, or a pair of which the second may be 0, got {relaxation!r}.")
        self.matching, self.token_temperature, self.iterations = matching, token_temperature, iterations
        self.relaxation, self.reduction = prices, reduction
        tau, steps = (0.0 if matching == "max" else float(token_temperature)), 0
        if matching != "transport":
            prices = (math.inf, 0.0)
        elif prices[1] > 0:
            steps, bound = iterations, MIN_TRANSPORT_TOKEN_TEMPERATURE
            check(tau >= bound, f"token_temperature: must be >= {bound} for transport, got {tau!r}.", "below_minimum")
        row, column = (1.0 if price == math.inf else price and price / (price + tau) for price in prices)
        self._matching = SetMatching(tau, row, column, steps, reduction == "mean")

    def log_kernel(self, negative_cost_in_unit: CostUnitToLogKernel, temperature: float | Tensor) -> LogKernel:
        return negative_cost_in_unit(temperature)

    def similarities(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the similarities, (N, M), of the sets in x and y."""
        processes, n = current_processes(), len(x)
        if processes.size == 1:
            return compute_set_similarities(x, y, self._matching)
        # Each process computes the similarities of its share of the rows.
        edges = [n * rank // processes.size for rank in range(processes.size + 1)]
        own = compute_set_similarities(x[edges[processes.rank] : edges[processes.rank + 1]], y, self._matching)
        return processes.gather(own, tuple(b - a for a, b in pairwise(edges)))

    def _build_log_kernel_before_link(
        self, x: Tensor, y: Tensor, cost_unit: float | Tensor, temperature: float | Tensor, processes: Processes
    ) -> LogKernel:
        sets = (z[:, None] if z.ndim == 2 else z for z in (x, y))
        return self._build_matrix_log_kernel(self.similarities(*sets), cost_unit, temperature)

    def __repr__(self) -> str:
        token = "" if self.matching == "max" else f", token_temperature={self.token_temperature!r}"
        if self.matching == "transport":
            token += f", relaxation={self.relaxation!r}, iterations={self.iterations!r}"
        reduction = "" if self.reduction == "mean" else f", reduction={self.reduction!r}"
        return self._repr_with_temperature("LateInteraction", self.matching, f"{token}{reduction}")


class SetMatching(NamedTuple):
    """Settings of the matching between the vectors of two sets.

    Attributes:
        temperature: Temperature tau of the matching, in units of the cosine; 0 takes the maximum (MaxSim).
        row_damping: Damping factor of the half-steps on the row's vectors, rho_x / (rho_x + tau); 1 enforces their
            masses.
        column_damping: Damping factor of the half-steps on the column's vectors; 0 leaves their masses free.
        iterations: Number of half-steps on the column's vectors, each followed by one on the row's vectors.
        is_mean: Whether the value is a mean over the row's vectors, rather than a sum.
    """

    temperature: float
    row_damping: float = 1.0
    column_damping: float = 0.0
    iterations: int = 0
    is_mean: bool = True

    @property
    def temperature_to_marginal_penalty_ratios(self) -> tuple[float, float]:
        """Temperature divided by the marginal penalty, for rows and for columns."""
        row, column = (1 / d - 1 if d > 0 else math.inf for d in (self.row_damping, self.column_damping))
        return row, column

    def row_dual_terms(self, f: Tensor) -> Tensor:
        """Return the contribution of each row vector to the dual, given its potential f."""
        ratio, _ = self.temperature_to_marginal_penalty_ratios
        return f if ratio == 0 else (1 / ratio + 1) * -torch.expm1(-ratio * f)

    def column_dual_terms(self, g: Tensor) -> Tensor:
        """Return the contribution of each column vector to the dual, given its potential g.

        It holds after a last half-step on the rows.
        """
        _, ratio = self.temperature_to_marginal_penalty_ratios
        return g if ratio == 0 else -torch.expm1(-ratio * g) / ratio


def compute_set_similarities(x: Tensor, y: Tensor, matching: SetMatching) -> Tensor:
    """Return similarities, (n, m), of vector sets, (n, t, d) and (m, s, d).

    Vectors are normalized; vectors of zeros are padding. Second derivatives, and `torch.func`, hold (n, m, t, s).
    """
    # Sets without vectors count as one vector of zeros, also where no set has a vector.
    x, y = (z if z.shape[1] else F.pad(z, (0, 0, 0, 1)) for z in (x, y))
    if is_in_torch_func():
        return _dense_set_similarities(x, y, matching)
    scores: Tensor = _set_similarities_and_argmax_op(x, y, *matching)[0]
    return scores


@torch.library.custom_op("contraport::match_sets", mutates_args=())
def _set_similarities_and_argmax_op(
    x: Tensor, y: Tensor, temperature: float, row_damping: float, column_damping: float, iterations: int, is_mean: bool
) -> list[Tensor]:
    """Return the similarity of each pair of sets, and where MaxSim is attained."""
    matching = SetMatching(temperature, row_damping, column_damping, iterations, is_mean)
    scores, argmax_positions = _allocate_scores_and_positions(x, y, temperature)
    with autocast_disabled(x):
        row_blocks = list(_iter_size_sorted_blocks(x, MAX_TILE_ROW_VECTORS))
        for columns in _iter_size_sorted_blocks(y, MAX_TILE_COLUMN_VECTORS):
            for rows in row_blocks:
                tile = _CosineTile(rows, columns, matching)
                if temperature > 0:
                    value = tile.run_half_steps().similarities_after_half_steps()
                else:
                    maxima, places = tile.cosines.max(3)
                    value = (maxima * tile.a).sum(1) * tile.scale
                    argmax = columns.vector_positions.expand(*places.shape[:2], *tile.b.shape)
                    argmax = argmax.gather(3, places[..., None])[..., 0]  # in the sets as given, with their padding
                    entries = rows.set_indices[:, None, None], rows.vector_positions[:, :, None], columns.set_indices
                    argmax_positions[entries] = argmax.to(argmax_positions.dtype)
                scores[rows.set_indices[:, None], columns.set_indices] = value
    return [scores, argmax_positions]


@_set_similarities_and_argmax_op.register_fake
def _allocate_scores_and_positions(x: Tensor, y: Tensor, temperature: float, *others: Any) -> list[Tensor]:
    """Allocate the outputs of `_set_similarities_and_argmax_op`.

    It is also the fake implementation of `_set_similarities_and_argmax_op`, by which `torch.compile` traces it.
    """
    (n, t, _), (m, s, _) = x.shape, y.shape
    integers = torch.int16 if s < 1 << 15 else torch.int32  # positions outlive the forward pass: keep them small
    # Zeros: padding of a row has no maximum, and its position is read with weight 0.
    return [x.new_empty(n, m), torch.zeros((n, t, m) if temperature == 0 else (0,), dtype=integers, device=x.device)]


@torch.library.custom_op("contraport::match_sets_gradient", mutates_args=())
def _set_similarities_gradient_op(
    x: Tensor,
    y: Tensor,
    argmax_positions: Tensor,
    grad_output: Tensor,
    temperature: float,
    row_damping: float,
    column_damping: float,
    iterations: int,
    is_mean: bool,
) -> list[Tensor]:
    """Backpropagate the gradient of set similarities to the vectors of both inputs."""
    matching = SetMatching(temperature, row_damping, column_damping, iterations, is_mean)
    d_x, d_y = torch.zeros_like(x), torch.zeros_like(y)
    with autocast_disabled(x):
        if temperature == 0:
            _write_max_sim_gradient(x, y, argmax_positions, grad_output, is_mean, d_x, d_y)
            return [d_x, d_y]
        row_blocks = list(_iter_size_sorted_blocks(x, MAX_TILE_ROW_VECTORS))
        row_gradients = [torch.zeros_like(rows.units) for rows in row_blocks]
        for columns in _iter_size_sorted_blocks(y, MAX_TILE_COLUMN_VECTORS):
            column_gradient = torch.zeros_like(columns.units)
            for rows, row_gradient in zip(row_blocks, row_gradients, strict=True):
                block_grad_output = grad_output[rows.set_indices[:, None], columns.set_indices]
                tile = _CosineTile(rows, columns, matching).run_half_steps()
                weights = tile.cosine_gradient(block_grad_output).flatten(2).flatten(0, 1)
                row_gradient.flatten(0, 1).addmm_(weights, columns.units.flatten(0, 1))
                column_gradient.flatten(0, 1).addmm_(weights.T, rows.units.flatten(0, 1))
            columns.write_gradient_before_normalization(column_gradient, d_y)
        for rows, row_gradient in zip(row_blocks, row_gradients, strict=True):
            rows.write_gradient_before_normalization(row_gradient, d_x)
    return [d_x, d_y]


@_set_similarities_gradient_op.register_fake
def _set_similarities_gradient_op_fake(x: Tensor, y: Tensor, *others: Any) -> list[Tensor]:
    """Allocate the outputs of `_set_similarities_gradient_op` for tracing."""
    return [torch.empty_like(x), torch.empty_like(y)]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Save the inputs and argmax positions of `_set_similarities_and_argmax_op`."""
    x, y, *matching = inputs
    ctx.save_for_backward(x, y, output[1])
    ctx.matching = SetMatching(*matching)
    ctx.set_materialize_grads(False)


def _set_similarities_backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return the gradient of each input of `_set_similarities_and_argmax_op`."""
    (x, y, argmax_positions), grad_output, rest = ctx.saved_tensors, grads[0], (None,) * len(ctx.matching)
    if grad_output is None:
        return None, None, *rest
    if torch.is_grad_enabled():
        with autocast_disabled(x):

            def scores(x: Tensor, y: Tensor) -> list[Tensor]:
                return [_dense_set_similarities(x, y, ctx.matching)]

            return *differentiable_gradients(scores, [x, y], [grad_output], ctx.needs_input_grad[:2]), *rest
    gradients = _set_similarities_gradient_op(x, y, argmax_positions, grad_output, *ctx.matching)
    return *gradients, *rest


_set_similarities_and_argmax_op.register_autograd(_set_similarities_backward, setup_context=_save_for_backward)


class _PaddedSetBlock(NamedTuple):
    """Block of sets that are padded to the size of its largest set.

    Attributes:
        set_indices: Index of each set of the block in the batch, (b,).
        vector_positions: Position of each vector in its original, padded set, (b, t).
        units: Normalized vectors, (b, t, d), 0 for padding.
        divisors: Two factors, (b, t, 1) each, whose product is the norm that a vector is divided by; see `normalize`.
        masses: Uniform masses of the vectors of each set, (b, t), 0 for padding.
        sizes: Number of vectors of each set, (b,).
    """

    set_indices: Tensor
    vector_positions: Tensor
    units: Tensor
    divisors: Sequence[Tensor]
    masses: Tensor
    sizes: Tensor

    def write_gradient_before_normalization(self, unit_gradient: Tensor, padded_out: Tensor) -> None:
        """Write the gradient of the block's unnormalized vectors into `padded_out`, (n, t, d)."""
        gradient = _backward_normalization_(unit_gradient, self.units, self.divisors)
        padded_out[self.set_indices[:, None], self.vector_positions] = gradient


def _backward_normalization_(gradient: Tensor, units: Tensor, divisors: Sequence[Tensor]) -> Tensor:
    """Backpropagate a gradient through the normalization of vectors, in place."""
    gradient.addcmul_(units, (units * gradient).sum(-1, keepdim=True), value=-1)
    return gradient.div_(divisors[1]).div_(divisors[0])


def _nonpadding_mask(z: Tensor) -> Tensor:
    """Return a mask of the vectors that are not padding, (n, t).

    An empty set keeps its first vector of zeros.
    """
    mask = z.any(2)
    first = torch.arange(z.shape[1], device=z.device) == 0
    return mask | (first & ~mask.any(1, keepdim=True))


def _iter_size_sorted_blocks(z: Tensor, max_vectors: int) -> Iterator[_PaddedSetBlock]:
    """Yield blocks (n, t, d) of similarly sized vector sets, each of at most `max_vectors`.

    A set of more vectors is a block of its own. Sets are taken in the order of their size, so that a block needs little
    padding.
    """
    mask = _nonpadding_mask(z)
    sizes, order = mask.sum(1).sort(descending=True, stable=True)
    widths, start = sizes.tolist(), 0
    while start < len(widths):
        width = widths[start]
        block = slice(start, start + max(1, max_vectors // width))
        sets, count = order[block], sizes[block]
        # A stable sort moves padding behind the vectors, which keep their order.
        positions = mask[sets].to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
        rows = z[sets[:, None], positions]
        flat_units, flat_divisors = normalize_rows_by_max_then_norm(rows.flatten(0, 1), 1.0)
        units, *divisors = (part.view(*rows.shape[:2], -1) for part in (flat_units, *flat_divisors))
        present = torch.arange(width, device=z.device) < count[:, None]
        masses = present / count[:, None].to(z.dtype)
        yield _PaddedSetBlock(sets, positions, units, divisors, masses, count)
        start += len(sets)


class _CosineTile:
    """Cosines between vectors of b sets and vectors of c sets, (b, t, c, s)."""

    def __init__(self, rows: _PaddedSetBlock, columns: _PaddedSetBlock, matching: SetMatching) -> None:
        products = rows.units.flatten(0, 1) @ columns.units.flatten(0, 1).T
        self.cosines = products.view(*rows.masses.shape, *columns.masses.shape)
        self.matching = matching
        self.a, self.b = rows.masses[:, :, None], columns.masses  # (b, t, 1), (c, s)
        self.scale = 1.0 if matching.is_mean else rows.sizes[:, None].to(products.dtype)
        # Sets are ordered by size. With steps on columns their masses of 0 are enough, and the sums stay positive.
        if matching.iterations == 0 and int(columns.sizes[-1]) < products.shape[1] // len(columns.set_indices):
            self.cosines.masked_fill_(self.b == 0, -torch.inf)

    def run_half_steps(self) -> Self:
        """Run Sinkhorn half-steps on each pair of sets, storing kernel sums and potentials.

        The kernel is e^((cosine - shift) / temperature). Without steps on columns the shift is the maximum of each row,
        so that nothing vanishes at any temperature. With such steps it is 1, and the temperature is bounded from below.
        """
        matching, tau = self.matching, self.matching.temperature
        shift: Tensor | float = self.cosines.amax(3, keepdim=True) if matching.iterations == 0 else 1.0
        self.kernel = (self.cosines - shift).mul_(LOG2E / tau).exp2_()
        offset = (shift[..., 0] - 1) / tau if isinstance(shift, Tensor) else 0.0
        self.scalings = [torch.ones_like(self.kernel[:, 0])]
        self.row_sums: list[Tensor] = []
        self.column_sums: list[Tensor] = []
        self.row_potentials: list[Tensor] = []
        for k in range(matching.iterations + 1):
            if k > 0:
                potential = self.row_potentials[-1]
                self.column_sums.append((self.kernel * (self.a * potential.exp())[..., None]).sum(1))
                self.scalings.append(self.column_sums[-1] ** -matching.column_damping)
            self.row_sums.append((self.kernel * (self.b * self.scalings[-1])[:, None]).sum(3))
            self.row_potentials.append(-matching.row_damping * (self.row_sums[-1].log() + offset))
        return self

    def similarities_after_half_steps(self) -> Tensor:
        """Return similarities of all pairs of vector sets, (b, c), from Sinkhorn potentials."""
        total = (self.matching.row_dual_terms(self.row_potentials[-1]) * self.a).sum(1)
        if self.column_sums:
            total = total + (self.matching.column_dual_terms(self.scalings[-1].log()) * self.b).sum(2)
        value: Tensor = (1 - self.matching.temperature * total) * self.scale
        return value

    def cosine_gradient(self, grad_output: Tensor) -> Tensor:
        """Return the gradient of the loss with respect to the cosines of all vector pairs.

        `grad_output` is the gradient of the similarities, (b, c). The half-steps are run through in reverse, with
        vectors only. Each contributes a factor per row vector times a factor per column vector to the gradient of the
        kernel.
        """
        matching, (row_ratio, column_ratio) = self.matching, self.matching.temperature_to_marginal_penalty_ratios
        # Minus tau from the value, and 1 / tau from the kernel, cancel.
        scaled = (grad_output * self.scale)[:, None]
        d_f = scaled * self.a * torch.exp(-row_ratio * self.row_potentials[-1]) / matching.row_damping
        d_g = None
        if self.column_sums:
            d_g = scaled[:, 0, :, None] * self.b * self.scalings[-1] ** -column_ratio
        weights = torch.zeros_like(self.kernel)
        for k in reversed(range(matching.iterations + 1)):
            d_sum = d_f * matching.row_damping / self.row_sums[k]
            column_factor = self.b * self.scalings[k]
            weights.addcmul_(d_sum[..., None], column_factor[:, None])
            if k == 0:
                break
            through = column_factor * (self.kernel * d_sum[..., None]).sum(1)
            d_g = -through if d_g is None or k < matching.iterations else d_g - through
            d_sum = d_g * matching.column_damping / self.column_sums[k - 1]
            row_factor = self.a * self.row_potentials[k - 1].exp()
            weights.addcmul_(row_factor[..., None], d_sum[:, None])
            d_f = -row_factor * (self.kernel * d_sum[:, None]).sum(3)
        return weights.mul_(self.kernel)


def _write_max_sim_gradient(
    x: Tensor, y: Tensor, argmax_positions: Tensor, grad_output: Tensor, is_mean: bool, d_x: Tensor, d_y: Tensor
) -> None:
    """Write the gradients of MaxSim with respect to both inputs into d_x and d_y.

    Each maximum is one vector of x times one of y. A vector of x sums over the columns; a vector of y over the entries
    that are sorted by it.
    """
    (n, t, d), (m, s, _) = x.shape, y.shape
    units, divisors = normalize_rows_by_max_then_norm(x.reshape(-1, d), 1.0)
    masses = _nonpadding_mask(x).to(grad_output.dtype)
    masses = masses / masses.sum(1, keepdim=True) if is_mean else masses
    row_gradient = torch.zeros_like(units)
    rows = torch.arange(n * t, device=x.device)[:, None]
    width = max(1, SORTED_MAXIMA_PER_CHUNK // (n * t))
    for left in range(0, m, width):
        block = slice(left, min(left + width, m))
        c = block.stop - left
        column_units, column_divisors = normalize_rows_by_max_then_norm(y[block].reshape(-1, d), 1.0)
        entries = argmax_positions[:, :, block].reshape(-1, c).long() + s * torch.arange(c, device=x.device)
        weights = (grad_output[:, None, block] * masses[..., None]).reshape(-1, c)
        row_gradient += F.embedding_bag(entries, column_units, mode="sum", per_sample_weights=weights)
        ordered, order = entries.flatten().sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(c * s, device=x.device))
        sources = rows.expand(-1, c).flatten()[order]
        column_gradient = F.embedding_bag(
            sources, units, starts, mode="sum", per_sample_weights=weights.flatten()[order]
        )
        d_y[block] = _backward_normalization_(column_gradient, column_units, column_divisors).view(c, s, d)
    d_x.copy_(_backward_normalization_(row_gradient, units, divisors).view_as(x))


def _dense_set_similarities(x: Tensor, y: Tensor, matching: SetMatching) -> Tensor:
    """Compute similarities of vector sets in plain PyTorch, storing all cosines.

    It serves `torch.func` and second derivatives, and is the reference in tests.
    """
    tau = matching.temperature
    masks = [_nonpadding_mask(z.detach()) for z in (x, y)]
    x, y = (normalize(z.flatten(0, 1)).view_as(z) for z in (x, y))
    cosines = torch.einsum("ntd,msd->nmts", x, y)
    sizes = [mask.sum(1, keepdim=True).to(x.dtype) for mask in masks]
    a, b = (mask / size for mask, size in zip(masks, sizes, strict=True))
    if tau == 0:
        score = (cosines.masked_fill(~masks[1][None, :, None], -torch.inf).amax(3) * a[:, None]).sum(2)
    else:
        s = (cosines - 1) / tau
        log_a, log_b = (torch.where(v > 0, v.clamp_min(torch.finfo(v.dtype).tiny).log(), -torch.inf) for v in (a, b))
        log_a, log_b = log_a[:, None, :, None], log_b[None, :, None, :]
        g = torch.zeros_like(s[:, :, :1])
        f = -matching.row_damping * torch.logsumexp(s + log_b, 3, keepdim=True)
        for _ in range(matching.iterations):
            g = -matching.column_damping * torch.logsumexp(s + f + log_a, 2, keepdim=True)
            f = -matching.row_damping * torch.logsumexp(s + g + log_b, 3, keepdim=True)
        total = (matching.row_dual_terms(f)[..., 0] * a[:, None]).sum(2)
        if matching.iterations > 0:
            total = total + (matching.column_dual_terms(g)[:, :, 0] * b).sum(2)
        score = 1 - tau * total
    return score if matching.is_mean else score * sizes[0]
