"""Which backend carries an operation out: chosen by size and device, and open to being told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import torch

from contraport._utils.formatting import format_significant
from contraport.distributed import world
from contraport.engine.autograd import is_in_torch_func
from contraport.engine.backends.cuda import TRITON, Cuda, obstacle
from contraport.engine.backends.dense import Dense
from contraport.engine.backends.tiled import STORED_BYTES, Stored, Streamed
from contraport.engine.custom_op import BackendConfig
from contraport.engine.geometry import Geometry
from contraport.engine.passes import Passes
from contraport.errors import unknown_name_error

BackendName: TypeAlias = Literal["dense", "stored", "streamed", "cuda"]
Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]

BACKENDS: dict[BackendName, type[Passes]] = {"dense": Dense, "stored": Stored, "streamed": Streamed, "cuda": Cuda}
"""The backends by their names."""

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Few(NamedTuple):
    """Up to what autograd on the whole matrix is quickest.

    Attributes:
        pairs: how many pairs.
        kept: how many in all half steps, each of which autograd keeps.
    """

    pairs: int
    kept: int


FEW: dict[str, Few] = {"cpu": Few(1 << 16, 1 << 21), "cuda": Few(1 << 22, 1 << 26)}
"""By device: 256 by 256 pairs and 32 half steps of them on a CPU; 2,048 by 2,048 and 16 on a GPU, where a pass is over
before the next is launched."""

Value = TypeVar("Value")

_forced: ContextVar[BackendName | None] = ContextVar("contraport_backend", default=None)
_precision: ContextVar[Precision] = ContextVar("contraport_precision", default="float32")


@contextmanager
def _within(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def backend(name: BackendName) -> Iterator[None]:
    """Carry out everything within the ``with`` block by one backend, whatever the size.

    ``"cuda"`` is for embeddings on a CUDA device; what its kernels have no form for (see `explain`) is carried out by
    the backend for its size.

    Args:
        name: ``"dense"``, ``"stored"``, ``"streamed"`` or ``"cuda"``.

    Raises:
        UsageError: the name is unknown; in what follows, ``"cuda"`` met embeddings on another device, or no Triton.

    >>> import torch, contraport
    >>> z0, z1 = torch.randn(2, 64, 8)
    >>> with contraport.engine.backend("streamed"):
    ...     value = contraport.nt_xent(temperature=0.5)(z0, z1)
    """
    if name not in BACKENDS:
        raise unknown_name_error("backend", name, BACKENDS)
    with _within(_forced, name):
        yield


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Round embeddings to a precision before they are multiplied, in the backend ``"cuda"``, within the ``with`` block.

    Sums, exponents and gradients are in single precision whatever the name. Under ``"float32"``, the default, products
    are taken as PyTorch takes them: in TF32 where ``torch.set_float32_matmul_precision`` allows it. The other backends
    take no notice.

    Args:
        name: ``"float32"``, ``"bfloat16"`` (log K is then known to about 1/256 of 1/temperature) or ``"float16"``
            (1/2048 of it; embeddings must stay within its range).

    Raises:
        UsageError: the name is unknown.
    """
    if name not in PRECISIONS:
        raise unknown_name_error("precision", name, PRECISIONS)
    with _within(_precision, name):
        yield


def choose(geometry: Geometry, half_steps: int = 1) -> BackendName:
    """Return the name of the backend for a geometry: the one asked for, else by its number of pairs and its device.

    Few pairs are ``"dense"``, unless many half steps would each keep them. More are ``"cuda"`` on a CUDA device, where
    that has a kernel for them; else ``"stored"`` or ``"streamed"`` by their number. Within `torch.func` all are
    ``"dense"``, the one backend of plain operations.
    """
    if is_in_torch_func():
        return "dense"
    forced = _forced.get()
    if forced is not None and (forced != "cuda" or obstacle(geometry) is None):
        return forced
    n, m = geometry.shape
    like = geometry.log_kernel.inputs[0]
    few = FEW.get(like.device.type, FEW["cpu"])
    if n * m <= few.pairs and n * m * half_steps <= few.kept:
        return "dense"
    if like.is_cuda and TRITON and obstacle(geometry) is None:
        return "cuda"
    return "stored" if n * m * like.element_size() <= STORED_BYTES else "streamed"


def explain(geometry: Geometry, half_steps: int = 1) -> str:
    """Say in a sentence which backend a geometry gets and why.

    >>> import torch
    >>> from contraport.engine import Geometry, Gibbs
    >>> x = torch.randn(4096, 16)
    >>> print(explain(Geometry(Gibbs()(x, x))))
    4096 x 4096 pairs, 64 MiB as a matrix: stored (log K computed once and kept in tiles; exact gradient in one more
    pass).
    >>> with backend("cuda"):
    ...     print(explain(Geometry(Gibbs(torch.cdist)(x, x))))
    4096 x 4096 pairs, 64 MiB as a matrix: stored (log K computed once and kept in tiles; exact gradient in one more
    pass). Not cuda: its kernels know functions of inner products alone.
    """
    n, m = geometry.shape
    name, forced, like = choose(geometry, half_steps), _forced.get(), geometry.log_kernel.inputs[0]
    megabytes = n * m * like.element_size() / (1 << 20)
    asked = ", as asked for" if forced == name else ""
    size = f"{n} x {m} pairs, {format_significant(megabytes, 3)} MiB as a matrix"
    said = f"{size}: {name}{asked} ({BACKENDS[name].summary})."
    if name == "cuda":
        return f"{said} Embeddings are multiplied in {_precision.get()}."
    if forced == "cuda" or (forced is None and name != "dense" and like.is_cuda):
        return f"{said} Not cuda: {obstacle(geometry) or 'Triton is not installed'}."
    return said


def executor_for(geometry: Geometry, half_steps: int = 1) -> BackendConfig:
    """Return how an operation is carried out: by the backend that `choose` returns now, and the present processes.

    Args:
        geometry: the pairs.
        half_steps: how many half steps the operation has.
    """
    return BackendConfig(BACKENDS[choose(geometry, half_steps)], world(), PRECISIONS[_precision.get()])
