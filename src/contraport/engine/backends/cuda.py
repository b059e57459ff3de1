"""The passes over all pairs on a CUDA device: Triton kernels behind two torch operators.

They take an `AffineLogKernel` without a link or with a `LogDecay` or `PowerDecay` one (doubled or not), in single
precision, on a CUDA device; `obstacle` says what keeps a geometry from them, and another is then chosen, as on a CPU.

Precision. Whatever comes in, exponents and sums are in single precision. Products of embeddings are too, or TF32 where
``torch.backends.cuda.matmul`` allows it, or of embeddings rounded to bfloat16 or float16 where `precision` asks for it.

Repeatability. No kernel adds to what another program writes, and block shapes follow from the problem by a rule, not
from timings: a result is the same to the last bit whenever it is computed again on the same device.

Cost, in products of size 2 N M d: one for each log-sum-exp or weighted sum over one axis. The gradient costs four where
a program can hold embeddings as a whole, see `block_shape` (W is found anew for either side and never leaves the
program); else three (W goes through a bounded workspace, and the library multiplies). Where rows and columns are the
same embeddings it is the gradient of W + W^T on the rows, for half of that or two thirds.

The operators are opaque to ``torch.compile``, which keeps them whole.
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

from contraport.distributed import Processes
from contraport.engine.backends.tiled import REACH
from contraport.engine.geometry import Geometry, LabelMask
from contraport.engine.links import Link, LogDecay, PowerDecay, SquaredKernelLink
from contraport.engine.log_kernels import AffineLogKernel
from contraport.engine.passes import Passes, Term
from contraport.errors import check

TRITON: bool = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed; it is loaded where this backend is first used."""

WORKSPACE_BYTES = 64 << 20
"""The most that the workspace for W takes."""

ALONG = 1024
"""Entries of a vector that a program takes at a time."""

SPARE_BYTES = 8 << 10
"""Shared memory that is left for reductions, beside the blocks of embeddings."""

SHARE_COST = 0.02
"""What one more share of the columns costs, beside the work: results to be written and added up."""


class Cuda(Passes):
    """The passes over one geometry by Triton kernels: O((N + M) d) memory and a bounded workspace.

    Under `torch.distributed` each process owns a range of the rows, and of the columns where sums over rows are meant.

    Args:
        geometry: the pairs; one that has no `obstacle`.
        processes: who shares the work.
        saved: nothing.
        operands: what embeddings are rounded to in products.

    Raises:
        UsageError: the embeddings are not on a CUDA device, and Triton's interpreter is not on.
    """

    summary: ClassVar[str] = "Triton kernels, pairs recomputed in each pass: O((N + M) d) memory"

    def __init__(
        self,
        geometry: Geometry,
        processes: Processes,
        saved: Sequence[Tensor] = (),
        operands: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(geometry, processes, saved, operands)
        log_kernel = geometry.log_kernel
        assert isinstance(log_kernel, AffineLogKernel)
        check(
            log_kernel.x.is_cuda or _kernels().INTERPRETED,
            f"backend: 'cuda' needs embeddings on a CUDA device, got {log_kernel.x.device}; on a CPU its kernels run "
            "by Triton's interpreter alone, very slowly: set TRITON_INTERPRET=1 before Python starts.",
        )
        x, y, row_bias, column_bias = (v.detach().contiguous() for v in log_kernel.inputs)
        self.biases = row_bias, column_bias
        zeros = torch.zeros_like(row_bias), torch.zeros_like(column_bias)
        # Without a link the biases are exponents like any other, and the kernels need not know them.
        inner, self.outer = (zeros, self.biases) if log_kernel.link is None else (self.biases, zeros)
        masks = [mask for mask in geometry.masks if isinstance(mask, LabelMask)]
        row_labels, column_labels = (_labels(masks, side, v) for side, v in enumerate(zeros))
        kept = sum(1 << k for k, mask in enumerate(masks) if mask.kept is not None)
        described = _describe(log_kernel.link)
        assert described is not None
        link, factor, power = described
        self.sides = _Sides(
            x.to(operands), y.to(operands), *inner, row_labels, column_labels, kept, link, factor, power
        )  # fmt: skip

    def log_sum_exp(self, over_columns: Tensor | None, over_rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        row_bias, column_bias = self.outer
        by_row = by_column = None
        if over_columns is not None:
            own = self._own(row_bias)
            found = _sums(*self.sides.restrict(own), over_columns + column_bias)
            by_row = self._together(found, own, row_bias) + row_bias
        if over_rows is not None:
            own = self._own(column_bias)
            found = _sums(*self.sides.T.restrict(own), over_rows + row_bias)
            by_column = self._together(found, own, column_bias) + column_bias
        return by_row, by_column

    def weighted_sum(self, terms: Sequence[Term]) -> list[Tensor]:
        sums = []
        for term in terms:
            sides, a, b = self.sides, term.log_rows + self.outer[0], term.log_columns + self.outer[1]
            if term.axis == "rows":
                sides, a, b = sides.T, b, a
            own = self._own(a)
            sums.append(self._together(_sums(*sides.restrict(own), b, a[own], term.weight), own, a))
        return sums

    def gradient(self, terms: Sequence[Term], wanted: Sequence[bool], *, held: bool = False) -> list[Tensor | None]:
        return self._contributed(self._pull(terms, wanted, held=held))

    def sums_of_t(self, f: Tensor, g: Tensor) -> Tensor:
        # T is <x, y> and the biases: its sums are what the gradient in x, a row's mass and a weighted sum make of them.
        own, (row_bias, column_bias) = self._own(f), self.biases
        a, b = f + self.outer[0], g + self.outer[1]
        ones = torch.ones_like(a)[None], torch.ones_like(b)[None]
        weights = a[None, own].contiguous(), b[None], ones[0][:, own].contiguous(), ones[1]
        sides = self.sides.restrict(own)
        wy, _, mass, _ = _gradients(*sides, *weights, [True, False, True, False], True)
        sums = (wy * sides.x).sum(1) + mass * row_bias[own] + _sums(*sides, b, a[own], column_bias)
        return self._together(sums, own, f)

    def _pull(self, terms: Sequence[Term], wanted: Sequence[bool], *, held: bool) -> list[Tensor | None]:
        """Return what the own rows contribute to the gradient on each wanted input.

        In a symmetric problem that of W and of its mirror image, on the rows alone.
        """
        ones = tuple(torch.ones_like(v) for v in self.outer)
        log_rows = torch.stack([t.log_rows for t in terms]) + self.outer[0]
        log_columns = torch.stack([t.log_columns for t in terms]) + self.outer[1]
        u = torch.stack([t.weight if t.axis == "rows" else ones[0] for t in terms])
        v = torch.stack([t.weight if t.axis == "columns" else ones[1] for t in terms])
        if self.symmetric:
            log_rows, log_columns = torch.cat([log_rows, log_columns]), torch.cat([log_columns, log_rows])
            u, v = torch.cat([u, v]), torch.cat([v, u])
            wanted = [wanted[0], False, wanted[2], False]
        own = self._own(self.outer[0])
        weights = log_rows[:, own].contiguous(), log_columns, u[:, own].contiguous(), v
        x, y, row_mass, column_mass = _gradients(*self.sides.restrict(own), *weights, list(wanted), held)
        found = [_padded(x, own, self.sides.x), y, _padded(row_mass, own, self.outer[0]), column_mass]
        return [value if want else None for value, want in zip(found, wanted, strict=True)]

    def _own(self, like: Tensor) -> slice:
        """Return the rows that this process works on."""
        rank, processes = self.processes
        return slice(len(like) * rank // processes, len(like) * (rank + 1) // processes)

    def _together(self, part: Tensor, own: slice, like: Tensor) -> Tensor:
        """Return the rows of all processes."""
        whole = _padded(part, own, like)
        self.processes.add_up(whole)
        return whole


def _padded(part: Tensor, own: slice, like: Tensor) -> Tensor:
    """Return what stands in the own rows, zeros in those of other processes."""
    if len(part) == len(like):
        return part
    whole = torch.zeros_like(like, dtype=part.dtype)
    whole[own] = part
    return whole


def obstacle(geometry: Geometry) -> str | None:
    """Say what keeps a geometry from the kernels on any device, or None where nothing does."""
    log_kernel = geometry.log_kernel
    if not isinstance(log_kernel, AffineLogKernel):
        return "its kernels know functions of inner products alone"
    if not all(isinstance(mask, LabelMask) for mask in geometry.masks):
        return "its kernels know masks of equal labels alone"
    if _describe(log_kernel.link) is None:
        return f"its kernels have no link {type(log_kernel.link).__name__}"
    if log_kernel.x.dtype != torch.float32:
        return f"its kernels sum in single precision, and the embeddings are {str(log_kernel.x.dtype).split('.')[-1]}"
    return None


class _Sides(NamedTuple):
    """The owned rows and the columns, and how alike they are: the first arguments of every operator, in their order."""

    x: Tensor
    y: Tensor
    row_bias: Tensor
    column_bias: Tensor
    row_labels: Tensor
    column_labels: Tensor
    kept: int
    link: str
    factor: float
    power: float

    @property
    def T(self) -> _Sides:
        return self._replace(
            x=self.y, y=self.x, row_bias=self.column_bias, column_bias=self.row_bias,
            row_labels=self.column_labels, column_labels=self.row_labels,
        )  # fmt: skip

    def restrict(self, rows: slice) -> _Sides:
        return self._replace(
            x=self.x[rows], row_bias=self.row_bias[rows], row_labels=self.row_labels[:, rows].contiguous()
        )


@torch.library.custom_op("contraport::sums", mutates_args=())
def _sums(
    x: Tensor, y: Tensor, row_bias: Tensor, column_bias: Tensor, row_labels: Tensor, column_labels: Tensor,
    kept: int, link: str, factor: float, power: float,
    log_columns: Tensor, log_rows: Tensor | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return log sum_j exp(S_ij + B_j), (N,), or, with the other two, sum_j exp(S_ij + A_i + B_j) v_j."""
    sides = _Sides(x, y, row_bias, column_bias, row_labels, column_labels, kept, link, factor, power)
    blocks = _blocks("sums_kernel", x)
    shares = _shares(sides, blocks)
    out = log_columns.new_empty(shares, len(x))
    logarithm = weight is None
    _launch("sums_kernel", shares, sides, (log_rows, log_columns, weight, out), blocks, LOGARITHM=logarithm)
    if shares == 1 or len(x) == 0:
        return out[0]
    joined = out.new_empty(len(x))
    with _on(x):
        _kernels().join_kernel[_ceil(len(x), ALONG),](out, joined, len(x), shares, LOGARITHM=logarithm, BLOCK=ALONG)
    return joined


@torch.library.custom_op("contraport::gradients", mutates_args=())
def _gradients(
    x: Tensor, y: Tensor, row_bias: Tensor, column_bias: Tensor, row_labels: Tensor, column_labels: Tensor,
    kept: int, link: str, factor: float, power: float, log_rows: Tensor, log_columns: Tensor,
    row_weights: Tensor, column_weights: Tensor, wanted: list[bool], held: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return W y, W^T x and the row and column sums of W = sum over terms exp(S + A + B) (u v^T) times h'(T).

    What is not wanted may be anything; the derivative h' is left out where W is held. The terms are the rows of
    ``log_rows`` (k, N), ``log_columns`` (k, M), ``row_weights`` and ``column_weights``.
    """
    sides = _Sides(x, y, row_bias, column_bias, row_labels, column_labels, kept, link, factor, power)
    if len(x) == 0:  # more processes than rows
        (dx, row_mass), (dy, column_mass) = ([v.zero_() for v in _places(z)] for z in (x, y))
        return dx, dy, row_mass, column_mass
    weights = _collapse(log_rows, log_columns, row_weights, column_weights)
    if _blocks("gradient_kernel", x)["BLOCK_D"] < x.shape[1]:
        return _through_workspace(sides, weights, wanted, held)
    dx, row_mass = _fused(sides, weights, held) if wanted[0] or wanted[2] else _places(x)
    dy, column_mass = _fused(sides.T, weights.T, held) if wanted[1] or wanted[3] else _places(y)
    return dx, dy, row_mass, column_mass


@_sums.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(len(x), dtype=torch.float32)


@_gradients.register_fake
def _(x: Tensor, y: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (dx, row_mass), (dy, column_mass) = _places(x), _places(y)
    return dx, dy, row_mass, column_mass


class _Weights(NamedTuple):
    """W = exp(S) o sum over terms of exp(A_i + B_j) u_i v_j, and the same with the first term's A and B for all.

    Attributes:
        log_rows: A, (terms, N).
        log_columns: B, (terms, M).
        rows: u, (terms, N).
        columns: v, (terms, M).
        row_factors: u in units of the first term's exponents, (terms, N).
        column_factors: v likewise, (terms, M).
        near: whether a term is near enough to the first to be written so, (terms,).
    """

    log_rows: Tensor
    log_columns: Tensor
    rows: Tensor
    columns: Tensor
    row_factors: Tensor
    column_factors: Tensor
    near: Tensor

    @property
    def T(self) -> _Weights:
        return _Weights(
            self.log_columns, self.log_rows, self.columns, self.rows, self.column_factors, self.row_factors, self.near
        )

    def restrict(self, rows: slice) -> _Weights:
        mine = (v[:, rows].contiguous() for v in (self.log_rows, self.rows, self.row_factors))
        return self._replace(**dict(zip(("log_rows", "rows", "row_factors"), mine, strict=True)))

    def forms(self) -> Iterator[tuple[tuple[Tensor, ...], dict[str, int]]]:
        """Yield what a kernel takes for either form: one exponential for each term, and one for all."""
        terms = len(self.near)
        yield (self.log_rows, self.log_columns, self.rows, self.columns, self.near), {"GROUPS": terms, "RANK": 1}
        if terms > 1:
            factors = self.row_factors, self.column_factors
            yield (self.log_rows, self.log_columns, *factors, self.near), {"GROUPS": 1, "RANK": terms}


def _collapse(log_rows: Tensor, log_columns: Tensor, rows: Tensor, columns: Tensor) -> _Weights:
    """Find the factors by which all terms share one exponential, where they lie near one another.

    The first term's exponents stand for all, as exp(S + A + B) of one term is the weight of a softmax.
    """
    given = log_rows, log_columns, rows, columns
    found = torch.empty_like(rows), torch.empty_like(columns), torch.empty_like(rows[:, 0], dtype=torch.int32)
    (terms, n), m = rows.shape, columns.shape[1]
    if terms > 1:
        with _on(rows):
            _kernels().collapse_kernel[terms,](*given, *found, n, m, REACH, BLOCK=ALONG)
    return _Weights(*given, *found)


def _fused(sides: _Sides, weights: _Weights, held: bool) -> tuple[Tensor, Tensor]:
    """Return W y and the row sums of W."""
    blocks = _blocks("gradient_kernel", sides.x)
    shares = _shares(sides, blocks)
    (n, d), like = sides.x.shape, weights.log_rows
    out, mass = like.new_empty(shares, n, d), like.new_empty(shares, n)
    for given, form in weights.forms():
        _launch("gradient_kernel", shares, sides, (*given, out, mass), blocks, **form, HELD=held)
    return (out[0], mass[0]) if shares == 1 else (out.sum(0), mass.sum(0))


def _through_workspace(
    sides: _Sides, weights: _Weights, wanted: Sequence[bool], held: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return W y, W^T x and the sums of W, W written some rows at a time, in bfloat16 or single precision."""
    x, y = sides.x, sides.y
    n, m = x.shape[0], y.shape[0]
    dtype = torch.float32 if x.dtype == torch.float32 else torch.bfloat16  # weights need the range, not the digits
    blocks = _blocks("weights_kernel", x)
    height = max(WORKSPACE_BYTES // (m * dtype.itemsize) // blocks["BLOCK_M"], 1) * blocks["BLOCK_M"]
    workspace = x.new_empty(min(height, n), m, dtype=dtype)
    left, right = x.to(dtype), y.to(dtype)
    dx, row_mass = (v.zero_() for v in _places(x))
    dy, column_mass = (v.zero_() for v in _places(y))
    for top in range(0, n, height):
        rows = slice(top, min(top + height, n))
        part, w = weights.restrict(rows), workspace[: rows.stop - rows.start]
        tiles = _ceil(m, blocks["BLOCK_N"])
        for given, form in part.forms():
            _launch("weights_kernel", tiles, sides.restrict(rows), (*given, w), blocks, **form, HELD=held)
        if wanted[0]:
            dx[rows] = _product(w, right)
        if wanted[1]:
            dy += _product(w.T, left[rows])
        if wanted[2]:
            row_mass[rows] = w.sum(1, dtype=torch.float32)
        if wanted[3]:
            column_mass += w.sum(0, dtype=torch.float32)
    return dx, dy, row_mass, column_mass


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product in single precision, whatever its factors are in."""
    if left.dtype == torch.float32 or not left.is_cuda:
        return left.float() @ right.float()
    return torch.mm(left, right, out_dtype=torch.float32)


def _launch(
    name: str, second: int, sides: _Sides, given: Sequence[Tensor | None], blocks: dict[str, int], **constants: Any
) -> None:
    """Run a kernel over all blocks of rows and, along the second axis of the grid, as many programs as it wants."""
    (n, d), m = sides.x.shape, len(sides.y)
    with _on(sides.x):
        getattr(_kernels(), name)[_ceil(n, blocks["BLOCK_M"]), second](
            *sides[:6], sides.factor, sides.power, n, m, *given,
            D=d, LINK=sides.link, MASKS=len(sides.row_labels) // 2, KEPT=sides.kept, PRECISION=_precision(sides.x),
            **constants, **blocks,
        )  # fmt: skip


def _on(x: Tensor) -> AbstractContextManager[None]:
    """Return the context in which Triton launches where a tensor is."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


class _Blocks(NamedTuple):
    """The shape of a kernel's blocks, by `BLOCK_M` rows and `BLOCK_N` columns."""

    rows: int
    columns: int
    warps: int
    stages: int


# The best first, as measured on an H100 among blocks of 64 to 256 with 4 or 8 warps and 2 to 4 stages; another follows
# where a device has less shared memory. By the most bytes of an embedding that is held as a whole; 0: none is.
_SHAPES: dict[str, dict[int, list[_Blocks]]] = {
    "sums_kernel": {
        256: [_Blocks(128, 128, 8, 2)],
        512: [_Blocks(128, 64, 8, 3), _Blocks(128, 64, 8, 2)],
        0: [_Blocks(128, 256, 8, 3), _Blocks(128, 64, 8, 3)],
    },
    "gradient_kernel": {
        256: [_Blocks(64, 128, 4, 2)],
        512: [_Blocks(128, 64, 8, 3), _Blocks(128, 64, 8, 2)],
        0: [_Blocks(128, 64, 8, 3)],
    },
    "weights_kernel": {0: [_Blocks(128, 64, 8, 3)]},
}
_WITHOUT_TENSOR_CORES = {"sums_kernel": _Blocks(128, 128, 4, 2)}


def block_shape(kernel: str, dimensions: int, itemsize: int, precision: str, shared_memory: int) -> dict[str, int]:
    """Return the shape of a kernel's blocks; they hold embeddings as a whole, or else pieces of them.

    Args:
        kernel: its name.
        dimensions: of the embeddings.
        itemsize: bytes of a number of theirs.
        precision: ``"ieee"`` where the tensor cores cannot be used, else ``"tf32"``.
        shared_memory: bytes that a program may have.
    """
    if precision == "ieee":
        found, depth = _WITHOUT_TENSOR_CORES.get(kernel, _Blocks(128, 128, 8, 2)), 16 if kernel == "sums_kernel" else 32
        return _constants(found, depth)
    whole = max(16, 1 << (dimensions - 1).bit_length())
    for most, shapes in _SHAPES[kernel].items():
        depth = whole if most else 128 // itemsize
        for blocks in shapes:
            # A whole block of rows stays; pieces of rows move as those of columns do.
            rows = blocks.rows if most else blocks.rows * blocks.stages
            needed = depth * itemsize * (rows + blocks.columns * blocks.stages)
            if (not most or depth * itemsize <= most) and needed <= shared_memory - SPARE_BYTES:
                return _constants(blocks, depth)
    raise AssertionError(f"{kernel} has no blocks for {shared_memory} bytes of shared memory")


def _constants(blocks: _Blocks, depth: int) -> dict[str, int]:
    return {
        "BLOCK_M": blocks.rows, "BLOCK_N": blocks.columns, "BLOCK_D": depth,
        "num_warps": blocks.warps, "num_stages": blocks.stages,
    }  # fmt: skip


def _blocks(kernel: str, x: Tensor) -> dict[str, int]:
    if not x.is_cuda:
        return {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16}
    room: int = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin  # type: ignore[attr-defined, unused-ignore]
    return block_shape(kernel, x.shape[1], x.itemsize, _precision(x), room)


def _precision(x: Tensor) -> str:
    """Return how products of such embeddings are taken: as PyTorch's own are."""
    single = x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "ieee" if single else "tf32"


def _shares(sides: _Sides, blocks: dict[str, int]) -> int:
    """Return how many programs share the columns of a block of rows."""
    if not sides.x.is_cuda:
        return 2
    processors = torch.cuda.get_device_properties(sides.x.device).multi_processor_count
    return fewest_waves(_ceil(len(sides.x), blocks["BLOCK_M"]), _ceil(len(sides.y), blocks["BLOCK_N"]), processors)


@functools.cache
def fewest_waves(row_blocks: int, column_blocks: int, processors: int) -> int:
    """Return into how many shares to cut the columns so that all processors have work to the end, or nearly.

    >>> fewest_waves(32, 64, 132), fewest_waves(256, 512, 132)
    (4, 1)
    """

    def duration(shares: int) -> float:
        return _ceil(row_blocks * shares, processors) / shares * (1 + SHARE_COST * shares)

    return min(range(1, min(column_blocks, 2 * processors) + 1), key=duration, default=1)


def _places(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return places for a gradient in z, (n, d), and for the sums beside it, (n,)."""
    return torch.empty_like(z, dtype=torch.float32), z.new_empty(z.shape[0], dtype=torch.float32)


def _labels(masks: Sequence[LabelMask], side: int, like: Tensor) -> Tensor:
    """Return the labels of one side and those of its exceptions, mask after mask: (2 masks, n), 64-bit integers."""
    pairs = [(mask.labels, mask.labels if mask.kept is None else mask.kept) for mask in masks]
    stacked = [labels[side].to(torch.int64) for pair in pairs for labels in pair]
    return torch.stack(stacked) if stacked else torch.empty(0, len(like), dtype=torch.int64, device=like.device)


def _describe(link: Link | None) -> tuple[str, float, float] | None:
    """Return what the kernels call a link, with its factor and its power; None where they have no such link."""
    match link:
        case None:
            return "identity", 1.0, 1.0
        case LogDecay(power):
            return "log-decay", power, 1.0
        case PowerDecay(power):
            return "power-decay", 1.0, power
        case SquaredKernelLink(inner):
            described = _describe(inner)
            return None if described is None else (described[0], 2 * described[1], described[2])
    return None


def _ceil(length: int, block: int) -> int:
    """Return how many blocks cover a length."""
    return -(-length // block)


def _kernels() -> ModuleType:
    """Load the kernels, and Triton with them."""
    check(TRITON, "backend: 'cuda' needs the package 'triton', which PyTorch's builds for CUDA bring along.")
    from contraport.engine.backends import triton_kernels

    return triton_kernels
