"""Backends for sums over all pairs, chosen by number of pairs and device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from contraport._utils.formatting import format_significant
from contraport.distributed import current_processes
from contraport.engine.autograd_utilities import is_in_torch_func
from contraport.engine.backends.cuda import HAS_TRITON, CudaPairPasses, unsupported_reason
from contraport.engine.backends.dense import DensePairPasses
from contraport.engine.backends.tiled import MAX_STORED_BYTES, StoredPairPasses, StreamedPairPasses, uses_cpu_bfloat16
from contraport.engine.custom_op import BackendConfig
from contraport.engine.masked_geometry import Geometry
from contraport.engine.pair_passes import PairPasses
from contraport.engine.ring import RingLogKernel, RingPairPasses
from contraport.errors import check, check_integer, check_name, check_type
from contraport.options import accept_deprecated_keywords

BackendName: TypeAlias = Literal["dense", "stored", "streamed", "cuda"]
"""Name of a backend, a key of `BACKENDS`."""

PrecisionName: TypeAlias = Literal["float32", "bfloat16", "float16"]
"""Name of a precision of matrix products, a key of `PRECISION_DTYPES`."""

ExchangeName: TypeAlias = Literal["gather", "ring"]
"""Name of a way in which processes exchange embeddings, one of `EXCHANGES`."""

BACKENDS: dict[BackendName, type[PairPasses]] = {
    "dense": DensePairPasses,
    "stored": StoredPairPasses,
    "streamed": StreamedPairPasses,
    "cuda": CudaPairPasses,
}
"""Backends for batches whose embeddings are all on every process, by name."""

PRECISION_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes to which embeddings can be rounded before matrix products, by name."""

EXCHANGES: tuple[ExchangeName, ...] = ("gather", "ring")
"""Ways in which processes exchange embeddings: gathered once, or passed around a ring in each pass."""


class StreamedRingPasses(RingPairPasses):
    """Streamed backend for embeddings that are passed around a ring of processes."""

    visit_passes_class = StreamedPairPasses


class CudaRingPasses(RingPairPasses):
    """Triton backend for the ring exchange, on CUDA devices."""

    visit_passes_class = CudaPairPasses


RING_BACKENDS: dict[BackendName, type[PairPasses]] = {"streamed": StreamedRingPasses, "cuda": CudaRingPasses}
"""Backends of the ring exchange by name; none stores anything of size O(N M)."""

MAX_DENSE_PAIRS_BY_DEVICE = {"cpu": 1 << 16, "cuda": 1 << 22}
"""Largest number of pairs for ``"dense"``, by device: up to it plain autograd on the whole matrix is fastest.

It is 256 by 256 on a CPU; 2,048 by 2,048 on a GPU, where a pass ends before the host can launch the next one: fewer
kernels beat fewer operations there.
"""

MAX_STORED_BYTES_BFLOAT16_ONE_PASS_OPERATION = 32 << 20
"""Maximum bytes of stored tiles in an operation of one bfloat16 pass before its gradient.

glibc gets larger blocks anew from the system, page by page in each call, which takes longer than such products.
"""

MAX_DENSE_PAIR_STEPS_BY_DEVICE = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Largest number of pairs times half-steps for ``"dense"``, by device: autograd stores all pairs of each half-step."""

T = TypeVar("T")

# Context variables and not globals: a thread or an async task that overrides the choice does not change it for others.
_forced_backend: ContextVar[BackendName | None] = ContextVar("contraport_backend", default=None)
_precision: ContextVar[PrecisionName] = ContextVar("contraport_precision", default="float32")
_exchange: ContextVar[ExchangeName] = ContextVar("contraport_exchange", default="gather")


@contextmanager
def _override_variable(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Context manager that sets a context variable within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def backend(name: BackendName) -> Iterator[None]:
    """Context manager that forces one backend for all operations within the block.

    ``"cuda"`` requires embeddings on a CUDA device. What its kernels do not support (see `explain_backend`) runs on the
    backend for its size.

    Args:
        name: ``"dense"``, ``"stored"``, ``"streamed"`` or ``"cuda"``.

    Raises:
        UsageError: the name is unknown; later, in an operation, ``"cuda"`` is used with embeddings on another device or
            without Triton.

    >>> import torch, contraport
    >>> z0, z1 = torch.randn(2, 64, 8)
    >>> with contraport.engine.backend("streamed"):
    ...     value = contraport.nt_xent(temperature=0.5)(z0, z1)
    """
    check_name("backend", name, BACKENDS)
    with _override_variable(_forced_backend, name):
        yield


@contextmanager
def precision(name: PrecisionName) -> Iterator[None]:
    """Context manager that sets the precision of embeddings in matrix products.

    The backend ``"cuda"`` does so; on a CPU with AVX512-BF16 or AMX the tiled backends do, in ``"bfloat16"``, for
    embeddings in single precision. The backend ``"dense"``, for few embeddings, does not, and on another CPU
    ``"bfloat16"`` gains nothing: a warning is given. Sums and exponents are always in single precision. Several
    processes that gather embeddings then send them and their gradients in bfloat16, half of the bytes. Under
    ``"float32"``, the default, embeddings are multiplied as PyTorch does it: in TF32 where
    ``torch.set_float32_matmul_precision`` allows it.

    Args:
        name: ``"float32"``, ``"bfloat16"`` (the error of log K is about 1/256 of 1/temperature) or ``"float16"``
            (1/2048 of it; embeddings must stay within its range).

    Raises:
        UsageError: the name is unknown.
    """
    check_name("precision", name, PRECISION_DTYPES)
    with _override_variable(_precision, name):
        yield


@contextmanager
def exchange(name: ExchangeName) -> Iterator[None]:
    """Context manager that sets how processes exchange embeddings.

    Values and gradients are the same. ``"gather"``, the default, sends the embeddings once, and each process holds all
    of them. Under ``"ring"`` each process keeps its own, and blocks of them travel around the processes in each pass
    over the pairs: memory falls with the number of processes, and each pass sends the embeddings once. Vectors of all
    rows, labels and masks are held by every process under either.

    The ring does not support second derivatives, ``features=``, ``negatives=``, ``weights="plan"``, layouts of
    coordinates or shared columns, plans as matrices, or divergences that read whole rows of a plan.

    Args:
        name: ``"gather"`` or ``"ring"``. One process exchanges nothing.

    Raises:
        UsageError: the name is unknown; in a later call, processes differ in it, or the ring does not support the call.

    >>> import torch, contraport
    >>> with contraport.engine.exchange("ring"):
    ...     value = contraport.nt_xent()(*torch.randn(2, 64, 8))
    """
    check_name("exchange", name, EXCHANGES)
    with _override_variable(_exchange, name):
        yield


def current_exchange() -> ExchangeName:
    """Return how processes currently exchange embeddings, ``"gather"`` or ``"ring"``."""
    return _exchange.get()


def choose_backend_name(geometry: Geometry, num_half_steps: int = 1, num_passes: int | None = None) -> BackendName:
    """Return the name of the backend that will process the given pairs.

    It is the one set by `backend`, else the best for size and device. Few pairs are ``"dense"``, unless autograd would
    store them for many half-steps. More pairs are ``"cuda"`` on a CUDA device if it has a kernel for them; else
    ``"stored"`` or ``"streamed"`` by their number. Within `torch.func` all are ``"dense"``, the only backend made of
    plain operations. The ring exchange has ``"streamed"`` and ``"cuda"`` only.

    Args:
        geometry: the pairs.
        num_half_steps: number of half-steps.
        num_passes: number of passes over the pairs before the gradient; None is one for each half-step.
    """
    forced, ring = _forced_backend.get(), geometry.log_kernel
    if isinstance(ring, RingLogKernel):
        names = " or ".join(RING_BACKENDS)
        message = f"backend: {forced!r} stores a matrix of pairs; with exchange 'ring' use {names}."
        check(forced is None or forced in RING_BACKENDS, message, "exchange")
        is_supported = unsupported_reason(replace(geometry, log_kernel=ring.own)) is None
        has_cuda = forced == "cuda" or (ring.inputs[0].is_cuda and HAS_TRITON)
        return "cuda" if is_supported and has_cuda and forced != "streamed" else "streamed"
    if is_in_torch_func():
        return "dense"
    if forced is not None and (forced != "cuda" or unsupported_reason(geometry) is None):
        return forced
    n, m = geometry.shape
    like = geometry.log_kernel.inputs[0]
    device = like.device.type if like.device.type in MAX_DENSE_PAIRS_BY_DEVICE else "cpu"
    if n * m <= MAX_DENSE_PAIRS_BY_DEVICE[device] and n * m * num_half_steps <= MAX_DENSE_PAIR_STEPS_BY_DEVICE[device]:
        return "dense"
    if like.is_cuda and HAS_TRITON and unsupported_reason(geometry) is None:
        return "cuda"
    size, limit = n * m * like.element_size(), MAX_STORED_BYTES
    if (num_passes or num_half_steps) == 1 and uses_cpu_bfloat16(like, PRECISION_DTYPES[_precision.get()]):
        # Symmetric: half of the tiles are stored.
        limit = MAX_STORED_BYTES_BFLOAT16_ONE_PASS_OPERATION * (1 + geometry.is_symmetric)
    return "stored" if size <= limit else "streamed"


@accept_deprecated_keywords(half_steps="num_half_steps")
def explain_backend(geometry: Geometry, num_half_steps: int = 1) -> str:
    """Explain in a sentence which backend is chosen, and why.

    >>> import torch
    >>> from contraport.engine import Geometry, Gibbs
    >>> x = torch.randn(4096, 16)
    >>> print(explain_backend(Geometry(Gibbs()(x, x))))
    4096 x 4096 pairs, 64 MiB as a matrix: stored (log K computed once and kept in tiles; exact gradient in one more
    pass).
    >>> with backend("cuda"):
    ...     print(explain_backend(Geometry(Gibbs(torch.cdist)(x, x))))
    4096 x 4096 pairs, 64 MiB as a matrix: stored (log K computed once and kept in tiles; exact gradient in one more
    pass). Not cuda: its kernels support inner products only.
    """
    check_type("geometry", geometry, Geometry, "Geometry(Gibbs()(x, y))")
    check_integer("num_half_steps", num_half_steps)
    n, m = geometry.shape
    multiplied = f" Embeddings are multiplied in {_precision.get()}."
    ring = isinstance(geometry.log_kernel, RingLogKernel)
    name, forced = choose_backend_name(geometry, num_half_steps), _forced_backend.get()
    like = geometry.log_kernel.inputs[0]
    size = format_significant(n * m * like.element_size() / (1 << 20), 3)
    reason = ", as requested" if forced == name else ""
    text = f"{n} x {m} pairs, {size} MiB as a matrix: {name}{reason} ({BACKENDS[name].description})."
    if ring:
        return f"{text} {RingPairPasses.description[0].upper()}{RingPairPasses.description[1:]}."
    if name == "cuda":
        return text + multiplied
    if name != "dense" and uses_cpu_bfloat16(like, PRECISION_DTYPES[_precision.get()]):
        text += multiplied
    if forced == "cuda" or (forced is None and name != "dense" and like.is_cuda):
        return f"{text} Not cuda: {unsupported_reason(geometry) or 'Triton is not installed'}."
    return text


def communication_dtype(embeddings: Tensor) -> torch.dtype:
    """Return the dtype in which processes send embeddings.

    It is bfloat16 if matrix products use it, else that of the embeddings.
    """
    precision = PRECISION_DTYPES[_precision.get()]
    on_gpu = embeddings.is_cuda and embeddings.dtype == torch.float32 and precision == torch.bfloat16
    return torch.bfloat16 if on_gpu or uses_cpu_bfloat16(embeddings, precision) else embeddings.dtype


def choose_backend_config(geometry: Geometry, num_half_steps: int = 1, num_passes: int | None = None) -> BackendConfig:
    """Choose the backend and the precision of an operation and its gradient."""
    name = choose_backend_name(geometry, num_half_steps, num_passes)
    backends = RING_BACKENDS if isinstance(geometry.log_kernel, RingLogKernel) else BACKENDS
    passes_class, operands = backends[name], PRECISION_DTYPES[_precision.get()]
    if operands != torch.float32 and not torch.compiler.is_compiling():  # a warning would break the graph
        like = geometry.log_kernel.inputs[0]
        gains_nothing = like.device.type == "cpu" and not uses_cpu_bfloat16(like, operands)
        if gains_nothing or name == "dense":
            reason = "gains nothing on this CPU" if gains_nothing else "is not used by the backend 'dense'"
            dtype = str(like.dtype).split(".")[-1]
            message = f"precision: {_precision.get()!r} {reason}; embeddings are multiplied in {dtype}."
            warnings.warn(message, stacklevel=2)
    return BackendConfig(passes_class, current_processes(), operands)
