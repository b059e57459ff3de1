"""CUDA backend that sums over all pairs with Triton kernels.

It takes an `InnerProductLogKernel` in single precision, without a link or with a `PolynomialTailLink` or
`CostPowerLink` (doubled or not). A geometry that does not fit, see `unsupported_reason`, gets the backend for
its size.

Precision. Exponents and sums are always in single precision. So are products of embeddings, unless
``torch.backends.cuda.matmul`` allows TF32 or `precision` rounds the embeddings to bfloat16 or float16.

Repeatability. No kernel adds to the output of another program (no atomics), and block shapes follow from the problem
by a rule, not from timings (no autotuning): a repeated computation gives the same bits on the same device.

Cost, in matrix products of 2 N M d operations: one for each log-sum-exp or weighted sum over one axis. The gradient
costs four if a program can hold whole embeddings, see `choose_launch_config`: W is computed again for either side and
never leaves the program. Otherwise it costs three: W goes through a bounded workspace, and cuBLAS multiplies. Where
rows and columns are the same embeddings, only the gradient of W + W^T in the rows is computed, for half of that or two
thirds.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from contraport.engine.backends.tiled import MAX_SHARED_EXPONENT_GAP
from contraport.engine.kernel_link_functions import CostPowerLink, Link, LinkTimesTwo, PolynomialTailLink
from contraport.engine.log_kernels import InnerProductLogKernel
from contraport.engine.masked_geometry import Geometry, LabelExclusion
from contraport.engine.pair_passes import OptionalSums, PairPasses, WeightTerm
from contraport.errors import check

HAS_TRITON: bool = importlib.util.find_spec("triton") is not None
"""True if Triton is installed. It is imported on first use of this backend: the import takes longer than a batch."""

MAX_WORKSPACE_BYTES = 64 << 20
"""Largest size of the workspace that holds some rows of the pair weights W in the gradient."""

VECTOR_BLOCK_ENTRIES = 1024
"""Number of entries that a Triton program processes at a time in kernels over vectors."""


class CudaPairPasses(PairPasses):
    """Backend that computes sums over all pairs by Triton kernels, in O((N + M) d) memory.

    The gradient adds a workspace of at most `MAX_WORKSPACE_BYTES`. With several processes each computes a range of the
    rows, and a range of the columns for sums over rows.

    Raises:
        UsageError: the embeddings are not on a CUDA device, and Triton's interpreter is off.
    """

    description: ClassVar[str] = "Triton kernels, pairs recomputed in each pass: O((N + M) d) memory"

    def prepare_passes(self) -> None:
        log_kernel = self.geometry.log_kernel
        assert isinstance(log_kernel, InnerProductLogKernel)
        check(
            log_kernel.x.is_cuda or _import_triton_kernels().IS_INTERPRETED,
            f"backend: 'cuda' requires embeddings on a CUDA device, got {log_kernel.x.device}. On a CPU its kernels "
            "only run in Triton's interpreter, very slowly: set TRITON_INTERPRET=1 before Python starts.",
            "device",
        )
        x, y, row_bias, column_bias = (v.detach().contiguous() for v in log_kernel.inputs)
        self.biases = row_bias, column_bias
        zeros = torch.zeros_like(row_bias), torch.zeros_like(column_bias)
        # Without a link the biases are added to the potentials here, which saves the kernels two loads per tile.
        inner, self.outer = (zeros, self.biases) if log_kernel.link is None else (self.biases, zeros)
        masks = [mask for mask in self.geometry.masks if isinstance(mask, LabelExclusion)]
        label_pairs = [pair for mask in masks for pair in (mask.labels, mask.exception_labels or mask.labels)]
        row_labels, column_labels = (
            torch.cat([v.new_empty((0, len(v)), dtype=torch.int64), *(pair[side][None].long() for pair in label_pairs)])
            for side, v in enumerate(zeros)
        )
        exception_bits = sum(1 << k for k, mask in enumerate(masks) if mask.exception_labels is not None)
        link_arguments = _find_link_kernel_arguments(log_kernel.link)
        assert link_arguments is not None
        link_name, factor, power = link_arguments
        x, y = x.to(self.operand_dtype), y.to(self.operand_dtype)
        self.inputs = _KernelInputs(x, y, *inner, row_labels, column_labels, exception_bits, link_name, factor, power)

    def row_column_log_sums(self, column_potential: Tensor | None, row_potential: Tensor | None) -> OptionalSums:
        row_bias, column_bias = self.outer
        sums = self._split_and_gather_row_sums
        by_row = by_column = None
        if column_potential is not None:
            by_row = sums(self.inputs, column_potential + column_bias) + row_bias
        if row_potential is not None:
            by_column = sums(self.inputs.T, row_potential + row_bias) + column_bias
        return by_row, by_column

    def weighted_kernel_sums(self, terms: Sequence[WeightTerm]) -> list[Tensor]:
        sums = []
        for term in terms:
            inputs, a, b = self.inputs, term.row_exponents + self.outer[0], term.column_exponents + self.outer[1]
            if term.factor_axis == "rows":
                inputs, a, b = inputs.T, b, a
            sums.append(self._split_and_gather_row_sums(inputs, b, a, term.factor))
        return sums

    def input_grads(
        self, terms: Sequence[WeightTerm], needs_grad: Sequence[bool], *, without_link: bool = False
    ) -> list[Tensor | None]:
        ones = tuple(torch.ones_like(v) for v in self.outer)
        a = torch.stack([t.row_exponents for t in terms]) + self.outer[0]
        b = torch.stack([t.column_exponents for t in terms]) + self.outer[1]
        u = torch.stack([t.factor if t.factor_axis == "rows" else ones[0] for t in terms])
        v = torch.stack([t.factor if t.factor_axis == "columns" else ones[1] for t in terms])
        if self.is_symmetric:  # the mirror image of W as further terms, so that the rows receive the whole gradient
            a, b, u, v = torch.cat([a, b]), torch.cat([b, a]), torch.cat([u, v]), torch.cat([v, u])
            needs_grad = [needs_grad[0], False, needs_grad[2], False]
        n, own = len(self.outer[0]), self._own_row_slice(len(self.outer[0]))
        inputs, weights = self.inputs.take_rows(own), _StackedWeightTerms(a, b, u, v).take_rows(own)
        x, y, row_mass, column_mass = _embedding_and_bias_gradients(inputs, weights, needs_grad, without_link)
        gradients = _place_in_zeros(x, own, n), y, _place_in_zeros(row_mass, own, n), column_mass
        return self._reduce_or_scale_gradients(
            [value if needed else None for value, needed in zip(gradients, needs_grad, strict=True)]
        )

    def plan_link_input_row_sums(self, row_potential: Tensor, column_potential: Tensor) -> Tensor:
        # T is <x, y> plus biases, so its sums under P follow from P y (the gradient in x), the row sums of P, and a
        # weighted sum of the column biases: no kernel of its own.
        own, (row_bias, column_bias) = self._own_row_slice(len(row_potential)), self.biases
        a, b = row_potential + self.outer[0], column_potential + self.outer[1]
        weights = _StackedWeightTerms(a[None], b[None], torch.ones_like(a[None]), torch.ones_like(b[None]))
        inputs, weights = self.inputs.take_rows(own), weights.take_rows(own)
        py, _, mass, _ = _embedding_and_bias_gradients(inputs, weights, [True, False, True, False], True)
        bias_sums = _row_log_sums_or_weighted_sums(inputs, b, a[own], column_bias)
        sums = (py * inputs.x).sum(1) + mass * row_bias[own] + bias_sums
        return self._gather_rows(sums, own, len(row_potential))

    def _split_and_gather_row_sums(
        self,
        inputs: _KernelInputs,
        column_exponents: Tensor,
        row_exponents: Tensor | None = None,
        column_weights: Tensor | None = None,
    ) -> Tensor:
        """Split the rows over processes, and gather each row's log-sum-exp or weighted sum, (N,)."""
        own = self._own_row_slice(len(inputs.x))
        own_exponents = None if row_exponents is None else row_exponents[own]
        part = _row_log_sums_or_weighted_sums(inputs.take_rows(own), column_exponents, own_exponents, column_weights)
        return self._gather_rows(part, own, len(inputs.x))

    def _own_row_slice(self, num_rows: int) -> slice:
        """Return the slice of rows that this process computes."""
        rank, processes = self.processes
        return slice(num_rows * rank // processes, num_rows * (rank + 1) // processes)

    def _gather_rows(self, own_part: Tensor, own_rows: slice, total_rows: int) -> Tensor:
        """Gather the rows of all processes, by an all-reduce of zero-padded parts."""
        whole = _place_in_zeros(own_part, own_rows, total_rows)
        self.processes.all_reduce_(whole)
        return whole


def _place_in_zeros(own_part: Tensor, own_rows: slice, total_rows: int) -> Tensor:
    """Place this process's rows in a tensor of all rows, zero elsewhere."""
    if len(own_part) == total_rows:
        return own_part
    whole = own_part.new_zeros(total_rows, *own_part.shape[1:])
    whole[own_rows] = own_part
    return whole


def unsupported_reason(geometry: Geometry) -> str | None:
    """Return why Triton kernels do not support the log-kernel and masks, or None."""
    log_kernel = geometry.log_kernel
    if not isinstance(log_kernel, InnerProductLogKernel):
        return "its kernels support inner products only"
    if not all(isinstance(mask, LabelExclusion) for mask in geometry.masks):
        return "its kernels support label masks only"
    if _find_link_kernel_arguments(log_kernel.link) is None:
        return f"its kernels have no link {type(log_kernel.link).__name__}"
    if log_kernel.x.dtype != torch.float32:
        return f"its kernels sum in single precision, and the embeddings are {str(log_kernel.x.dtype).split('.')[-1]}"
    return None


class _KernelInputs(NamedTuple):
    """Arguments common to all Triton kernels.

    Attributes:
        exception_bits: Bit field; bit k is set if mask k has exception labels.
        link_name: Name of the link function in the Triton kernels.
    """

    x: Tensor
    y: Tensor
    row_bias: Tensor
    column_bias: Tensor
    row_labels: Tensor
    column_labels: Tensor
    exception_bits: int
    link_name: str
    factor: float
    power: float

    @property
    def T(self) -> _KernelInputs:
        """Kernel inputs with rows and columns exchanged."""
        return self._replace(
            x=self.y, y=self.x, row_bias=self.column_bias, column_bias=self.row_bias,
            row_labels=self.column_labels, column_labels=self.row_labels
        )  # fmt: skip

    def take_rows(self, rows: slice) -> _KernelInputs:
        # Contiguous, as the kernels take pointers without strides.
        return self._replace(
            x=self.x[rows], row_bias=self.row_bias[rows], row_labels=self.row_labels[:, rows].contiguous()
        )


class _StackedWeightTerms(NamedTuple):
    """Summands of the pair weights; each field holds one tensor, stacked over the summands.

    Written out, W_ij = exp(S_ij) times the sum over terms of exp(A_i + B_j) u_i v_j, with S the log-kernel log K.

    Attributes:
        row_exponents: Exponents A of the rows, (terms, N).
        column_exponents: Exponents B of the columns, (terms, M).
        row_factors: Factors u of the rows, (terms, N).
        column_factors: Factors v of the columns, (terms, M).
    """

    row_exponents: Tensor
    column_exponents: Tensor
    row_factors: Tensor
    column_factors: Tensor

    @property
    def T(self) -> _StackedWeightTerms:
        return _StackedWeightTerms(self.column_exponents, self.row_exponents, self.column_factors, self.row_factors)

    def take_rows(self, rows: slice) -> _StackedWeightTerms:
        return self._replace(
            row_exponents=self.row_exponents[:, rows].contiguous(), row_factors=self.row_factors[:, rows].contiguous()
        )


class _WeightVariants(NamedTuple):
    """Weights of pairs for a CUDA kernel, in a general form and in a faster special form.

    Which form is used is decided on the device: reading the flags would make the host wait.

    Attributes:
        with_own_exponentials: Weights with one exponential per term; always exact.
        with_shared_exponential: Weights in which all terms share the exponential of the first term.
        can_share_exponential_by_term: 1 for each term that can use the exponential of the first, else 0, (terms,).
    """

    with_own_exponentials: _StackedWeightTerms
    with_shared_exponential: _StackedWeightTerms
    can_share_exponential_by_term: Tensor

    @property
    def T(self) -> _WeightVariants:
        own, shared = self.with_own_exponentials.T, self.with_shared_exponential.T
        return _WeightVariants(own, shared, self.can_share_exponential_by_term)

    def take_rows(self, rows: slice) -> _WeightVariants:
        own, shared = self.with_own_exponentials.take_rows(rows), self.with_shared_exponential.take_rows(rows)
        return _WeightVariants(own, shared, self.can_share_exponential_by_term)

    def iter_tensors_and_constants_per_launch(self) -> Iterator[tuple[tuple[Tensor, ...], dict[str, int]]]:
        """Yield the weight tensors and compile-time constants of each kernel launch.

        With several terms there are two launches, of which the kernel skips one: see `triton_kernels`.
        """
        terms = len(self.can_share_exponential_by_term)
        yield (*self.with_own_exponentials, self.can_share_exponential_by_term), {"GROUPS": terms, "RANK": 1}
        if terms > 1:
            yield (*self.with_shared_exponential, self.can_share_exponential_by_term), {"GROUPS": 1, "RANK": terms}


def _row_log_sums_or_weighted_sums(
    inputs: _KernelInputs,
    column_exponents: Tensor,
    row_exponents: Tensor | None = None,
    column_weights: Tensor | None = None,
) -> Tensor:
    """Return each row's log-sum-exp, (N,), or its weighted sum of exponentials.

    The log-sum-exp is log sum_j exp(S_ij + B_j), for the log-kernel S. The weighted sum is sum_j exp(S_ij + A_i + B_j)
    v_j, for exponents A of the rows and B of the columns.
    """
    n, logarithm = len(inputs.x), column_weights is None
    blocks = _choose_device_launch_config("row_sums_by_column_split_kernel", inputs.x)
    splits = _count_column_splits(inputs, blocks)
    out = column_exponents.new_empty(splits, n)
    tensors = row_exponents, column_exponents, column_weights, out
    _launch_kernel("row_sums_by_column_split_kernel", splits, inputs, tensors, blocks, LOGARITHM=logarithm)
    if splits == 1 or n == 0:
        return out[0]
    joined = out.new_empty(n)
    with _device_context(out):
        grid = (_ceil_div(n, VECTOR_BLOCK_ENTRIES),)
        _import_triton_kernels().sum_splits_kernel[grid](
            out, joined, n, splits, LOGARITHM=logarithm, BLOCK=VECTOR_BLOCK_ENTRIES
        )
    return joined


def _embedding_and_bias_gradients(
    inputs: _KernelInputs, weights: _StackedWeightTerms, needs_grad: Sequence[bool], without_link: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of a weighted sum of logits, with respect to embeddings and biases.

    They are W y, W^T x, and the row and column sums of the pair weights W. Gradients that are not needed are
    uninitialized.
    """
    x, y = inputs.x, inputs.y
    if len(x) == 0:  # more processes than rows
        (dx, row_mass), (dy, column_mass) = ([v.zero_() for v in _empty_gradient_and_sums(z)] for z in (x, y))
        return dx, dy, row_mass, column_mass
    (terms, n), m = weights.row_factors.shape, len(y)
    factors = torch.empty_like(weights.row_factors), torch.empty_like(weights.column_factors)
    can_share_exponential = weights.row_factors.new_empty(terms, dtype=torch.int32)
    if terms > 1:  # any term serves as the first: its exp(S + A + B) is the weight of a softmax, at most 1
        with _device_context(can_share_exponential):
            kernel = _import_triton_kernels().rescale_terms_to_first_exponents_kernel[terms,]
            kernel(*weights, *factors, can_share_exponential, n, m, MAX_SHARED_EXPONENT_GAP, BLOCK=VECTOR_BLOCK_ENTRIES)
    shared = _StackedWeightTerms(weights.row_exponents, weights.column_exponents, *factors)
    forms = _WeightVariants(weights, shared, can_share_exponential)
    if x.shape[1] > _choose_device_launch_config("weighted_products_by_column_split_kernel", x).BLOCK_D:
        return _embedding_and_bias_gradients_in_row_blocks(inputs, forms, needs_grad, without_link)
    sides = []
    for slot, side, form in ((0, inputs, forms), (1, inputs.T, forms.T)):
        needed = needs_grad[slot] or needs_grad[slot + 2]
        fused = _row_gradients_and_sums_fused
        sides.append(fused(side, form, without_link) if needed else _empty_gradient_and_sums(side.x))
    (dx, row_mass), (dy, column_mass) = sides
    return dx, dy, row_mass, column_mass


def _row_gradients_and_sums_fused(
    inputs: _KernelInputs, weights: _WeightVariants, without_link: bool
) -> tuple[Tensor, Tensor]:
    """Return the product of pair weights and embeddings y, and the weights' row sums."""
    kernel = "weighted_products_by_column_split_kernel"
    blocks = _choose_device_launch_config(kernel, inputs.x)
    splits = _count_column_splits(inputs, blocks)
    (n, d), like = inputs.x.shape, weights.with_own_exponentials.row_factors
    out, mass = like.new_empty(splits, n, d), like.new_empty(splits, n)
    for tensors, form in weights.iter_tensors_and_constants_per_launch():
        _launch_kernel(kernel, splits, inputs, (*tensors, out, mass), blocks, **form, WITHOUT_LINK=without_link)
    return (out[0], mass[0]) if splits == 1 else (out.sum(0), mass.sum(0))


def _embedding_and_bias_gradients_in_row_blocks(
    inputs: _KernelInputs, weights: _WeightVariants, needs_grad: Sequence[bool], without_link: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of embeddings and biases, storing one row block of weights at a time."""
    x, y = inputs.x, inputs.y
    n, m = x.shape[0], y.shape[0]
    # W in bfloat16 beside half-precision embeddings: weights need the range of single precision, not its digits.
    dtype = torch.float32 if x.dtype == torch.float32 else torch.bfloat16
    blocks = _choose_device_launch_config("pair_weights_kernel", x)
    # Whole row blocks, so that no program of a full launch has rows outside the workspace.
    height = max(MAX_WORKSPACE_BYTES // (m * dtype.itemsize) // blocks.BLOCK_M, 1) * blocks.BLOCK_M
    workspace = x.new_empty(min(height, n), m, dtype=dtype)
    left, right = x.to(dtype), y.to(dtype)
    dx, row_mass = (v.zero_() for v in _empty_gradient_and_sums(x))
    dy, column_mass = (v.zero_() for v in _empty_gradient_and_sums(y))
    for top in range(0, n, height):
        rows = slice(top, min(top + height, n))
        w, tiles = workspace[: rows.stop - rows.start], _ceil_div(m, blocks.BLOCK_N)
        part = inputs.take_rows(rows)
        for tensors, form in weights.take_rows(rows).iter_tensors_and_constants_per_launch():
            _launch_kernel("pair_weights_kernel", tiles, part, (*tensors, w), blocks, **form, WITHOUT_LINK=without_link)
        if needs_grad[0]:
            dx[rows] = _matmul_to_float32(w, right)
        if needs_grad[1]:
            dy += _matmul_to_float32(w.T, left[rows])
        if needs_grad[2]:
            row_mass[rows] = w.sum(1, dtype=torch.float32)
        if needs_grad[3]:
            column_mass += w.sum(0, dtype=torch.float32)
    return dx, dy, row_mass, column_mass


def _matmul_to_float32(left: Tensor, right: Tensor) -> Tensor:
    """Multiply two matrices of any precision, with sums and result in float32."""
    if left.dtype == torch.float32 or not left.is_cuda:
        return left.float() @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)


def _launch_kernel(
    name: str,
    column_programs: int,
    inputs: _KernelInputs,
    tensors: Sequence[Tensor | None],
    blocks: _LaunchConfig,
    **constants: Any,
) -> None:
    """Launch a Triton kernel with `column_programs` programs for each block of rows."""
    (n, d), m = inputs.x.shape, len(inputs.y)
    with _device_context(inputs.x):
        getattr(_import_triton_kernels(), name)[_ceil_div(n, blocks.BLOCK_M), column_programs](
            *inputs[:6], inputs.factor, inputs.power, n, m, *tensors,
            D=d, LINK=inputs.link_name, NUM_MASKS=len(inputs.row_labels) // 2, EXCEPTION_BITS=inputs.exception_bits,
            PRECISION=_triton_input_precision(inputs.x), **constants, **blocks._asdict()
        )  # fmt: skip


def _device_context(x: Tensor) -> AbstractContextManager[None]:
    """Return a context in which kernels are launched on the device of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


class _LaunchConfig(NamedTuple):
    """Block sizes, warps and pipeline stages of a Triton kernel.

    The fields have the names of the kernel's constants.

    Attributes:
        BLOCK_D: Number of coordinates of an embedding that are held at a time; 0 in the table of configurations.
    """

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int
    BLOCK_D: int = 0


_CONFIGS_BY_KERNEL_AND_ROW_BYTES: dict[str, dict[int, list[_LaunchConfig]]] = {
    "row_sums_by_column_split_kernel": {
        256: [_LaunchConfig(128, 128, 8, 2)],
        512: [_LaunchConfig(128, 64, 8, 3), _LaunchConfig(128, 64, 8, 2)],
        0: [_LaunchConfig(128, 256, 8, 3), _LaunchConfig(128, 64, 8, 3)],
    },
    "weighted_products_by_column_split_kernel": {
        256: [_LaunchConfig(64, 128, 4, 2)],
        512: [_LaunchConfig(128, 64, 8, 3), _LaunchConfig(128, 64, 8, 2)],
        0: [_LaunchConfig(128, 64, 8, 3)],
    },
    "pair_weights_kernel": {0: [_LaunchConfig(128, 64, 8, 3)]},
}
"""Launch shapes by kernel and by the most bytes of an embedding that is held whole; 0 means in pieces.

Each list has the fastest shape first, as measured on an H100 among blocks of 64 to 256 with 4 or 8 warps and 2 to 4
stages, and then one for devices with less shared memory. A table and not autotuning: timings would choose other shapes,
and other bits, from run to run.
"""


def choose_launch_config(
    kernel: str, dimensions: int, itemsize: int, precision: str, shared_memory: int
) -> _LaunchConfig:
    """Return the block sizes, warps and stages of a Triton kernel.

    The precision is ``"ieee"`` where tensor cores cannot be used. A program may use `shared_memory` bytes.
    """
    if precision == "ieee":
        warps, depth = (4, 16) if kernel == "row_sums_by_column_split_kernel" else (8, 32)
        return _LaunchConfig(128, 128, warps, 2, depth)
    whole = max(16, 1 << (dimensions - 1).bit_length())  # `tl.dot` takes powers of two from 16 on
    for largest, shapes in _CONFIGS_BY_KERNEL_AND_ROW_BYTES[kernel].items():
        depth = whole if largest else 128 // itemsize
        for blocks in shapes:
            # Whole rows are loaded once; pieces of rows are pipelined in as many stages as those of columns.
            rows = blocks.BLOCK_M if largest else blocks.BLOCK_M * blocks.num_stages
            needed = depth * itemsize * (rows + blocks.BLOCK_N * blocks.num_stages)
            # Reductions take 8 KiB of shared memory.
            if (not largest or depth * itemsize <= largest) and needed <= shared_memory - (8 << 10):
                return blocks._replace(BLOCK_D=depth)
    raise AssertionError(f"{kernel} has no blocks for {shared_memory} bytes of shared memory")


def _choose_device_launch_config(kernel: str, x: Tensor) -> _LaunchConfig:
    """Choose the launch configuration of a kernel for the device of `x`."""
    if not x.is_cuda:
        return _LaunchConfig(16, 16, num_warps=4, num_stages=1, BLOCK_D=16)
    shared_memory: int = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin  # type: ignore[attr-defined, unused-ignore]
    return choose_launch_config(kernel, x.shape[1], x.itemsize, _triton_input_precision(x), shared_memory)


def _triton_input_precision(x: Tensor) -> str:
    """Return the `input_precision` argument of `tl.dot`, "ieee" or "tf32"."""
    single = x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "ieee" if single else "tf32"


def _count_column_splits(inputs: _KernelInputs, blocks: _LaunchConfig) -> int:
    """Return the number of column ranges, each summed by its own Triton program."""
    if not inputs.x.is_cuda:
        return 2  # in the interpreter, so that tests reach the joining of partial results
    processors = torch.cuda.get_device_properties(inputs.x.device).multi_processor_count
    row_blocks, column_blocks = _ceil_div(len(inputs.x), blocks.BLOCK_M), _ceil_div(len(inputs.y), blocks.BLOCK_N)
    return choose_column_splits(row_blocks, column_blocks, processors)


@functools.cache
def choose_column_splits(row_blocks: int, column_blocks: int, processors: int) -> int:
    """Return how many column ranges to process in parallel, by estimated time.

    The programs run in ceil(row_blocks * splits / processors) waves of 1 / splits of the work each. One more split
    costs 2% of the time, as partial results are written and then added up.

    >>> choose_column_splits(32, 64, 132), choose_column_splits(256, 512, 132)
    (4, 1)
    """

    def duration(splits: int) -> float:
        return _ceil_div(row_blocks * splits, processors) / splits * (1 + 0.02 * splits)

    return min(range(1, min(column_blocks, 2 * processors) + 1), key=duration, default=1)


def _empty_gradient_and_sums(z: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the gradient with respect to z, (n, d), and row sums, (n,)."""
    return torch.empty_like(z, dtype=torch.float32), z.new_empty(z.shape[0], dtype=torch.float32)


def _find_link_kernel_arguments(link: Link | None) -> tuple[str, float, float] | None:
    """Return the Triton kernels' arguments for a link function, None if unsupported."""
    match link:
        case None:
            return "identity", 1.0, 1.0
        case PolynomialTailLink(power):
            return "log-decay", power, 1.0
        case CostPowerLink(power):
            return "power-decay", 1.0, power
        case LinkTimesTwo(inner):
            arguments = _find_link_kernel_arguments(inner)
            return None if arguments is None else (arguments[0], 2 * arguments[1], arguments[2])
    return None


def _ceil_div(length: int, block: int) -> int:
    """Return length / block, rounded up."""
    return -(-length // block)


def _import_triton_kernels() -> ModuleType:
    """Import the module of Triton kernels, or raise `UsageError` if Triton is missing."""
    check(HAS_TRITON, "backend: 'cuda' requires the package 'triton', which PyTorch for CUDA includes.", "missing")
    from contraport.engine.backends import triton_kernels

    return triton_kernels
