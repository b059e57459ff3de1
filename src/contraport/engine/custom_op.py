"""Operations over all pairs as one operator of torch each: pure functions of tensors, with a gradient of their own.

An `Operation` is what `contraport.engine.scale` and its like compute on one geometry. `apply` runs it by the passes of
a backend and registers its gradient: as an `autograd.Function` in eager mode, and as the custom operators
``contraport::apply`` and ``contraport::gradient`` under `torch.compile`. Both call the same two functions, `_run` and
`_pull`. An operator is opaque to the compiler, so that the passes may read numbers on the host (bounds of exponents,
convergence) without a break in the graph.

Everything that the gradient needs is among the tensors that went in and came out. An operation therefore works under
saved tensor hooks, such as those of gradient checkpointing, and keeps no memory that autograd does not know of.

A gradient of a gradient (``create_graph=True``) is taken by plain autograd on the whole (N, M) matrix, whatever the
backend: exact, in O(N M) memory for each half step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine.autograd import without_autocast
from contraport.engine.geometry import Geometry
from contraport.engine.passes import Passes, differentiably
from contraport.engine.pytree import Structure, flatten, unflatten


class BackendConfig(NamedTuple):
    """The backend of an operation, fixed when it begins: its gradient is computed the same way, wherever that runs.

    Attributes:
        backend: the passes over all pairs.
        processes: the processes that share the work.
        operands: the precision to which the backend ``"cuda"`` rounds embeddings before it multiplies them.
    """

    backend: type[Passes]
    processes: Processes
    operands: torch.dtype = torch.float32

    def passes(self, geometry: Geometry, saved: Sequence[Tensor] = ()) -> Passes:
        """Return the passes over a geometry, with what earlier passes over it saved."""
        return self.backend(geometry, self.processes, saved, self.operands)


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """A differentiable operation over all pairs. Subclasses are dataclasses whose fields `flatten` can take apart.

    Attributes:
        executor: the backend.
        geometry: the pairs.
    """

    executor: BackendConfig
    geometry: Geometry

    @property
    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """The number of outputs in all, and of those, the first ones, that are differentiable."""

    @abstractmethod
    def run(self, passes: Passes) -> list[Tensor]:
        """Return the outputs; those that are not differentiable are what the gradient needs besides."""

    @abstractmethod
    def empty(self) -> list[Tensor]:
        """Return uninitialized tensors like the outputs."""

    @abstractmethod
    def sources(self) -> tuple[Tensor | None, ...]:
        """Return the tensors in which it is differentiable."""

    @abstractmethod
    def gradient(
        self, passes: Passes, outputs: Sequence[Tensor], seeds: Sequence[Tensor | None], requires: Sequence[bool]
    ) -> list[Tensor | None]:
        """Return the gradient in each source that requires one.

        Args:
            passes: over the pairs.
            outputs: all that `run` has returned.
            seeds: the gradients in the differentiable outputs; None is zero.
            requires: for each source.
        """

    @abstractmethod
    def second_gradient(
        self,
        structure: Structure,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        seeds: Sequence[Tensor | None],
        requires: Sequence[bool],
    ) -> list[Tensor | None]:
        """Return the gradient in each tensor of the structure by operations that are differentiable themselves."""


@dataclass(frozen=True, eq=False)
class Explicit(Operation):
    """An operation that plain operations on the whole matrix define; on the backend ``"dense"`` they compute it."""

    @abstractmethod
    def definition(self) -> list[Tensor]:
        """Return the differentiable outputs by plain operations on the whole matrix."""

    def second_gradient(
        self,
        structure: Structure,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        seeds: Sequence[Tensor | None],
        requires: Sequence[bool],
    ) -> list[Tensor | None]:
        """Return the gradient in each tensor of the structure by autograd through the definition."""

        def definition(*named: Tensor) -> list[Tensor]:
            operation: Explicit = unflatten(structure, named)
            return operation.definition()

        return differentiably(definition, tensors, seeds, requires)


def apply(operation: Operation) -> list[Tensor]:
    """Return the outputs of an operation, the differentiable ones first."""
    tensors: list[Tensor] = []
    operation = replace(operation, geometry=operation.geometry.for_passes())
    structure = flatten(operation, tensors)
    if torch.compiler.is_compiling():
        outputs: list[Tensor] = _apply(_number(structure), tensors)
        return outputs
    return list(_Applied.apply(operation, structure, *tensors))


def _run(operation: Operation) -> list[Tensor]:
    """Return the outputs of an operation, and what its passes have saved for the gradient."""
    with torch.no_grad(), without_autocast(operation.geometry.log_kernel.inputs[0]):
        passes = operation.executor.passes(operation.geometry)
        return [*operation.run(passes), *passes.saved()]


def _pull(
    structure: Structure,
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    seeds: Sequence[Tensor | None],
    requires: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradient in each tensor that requires one, from what `_run` has returned."""
    operation: Operation = unflatten(structure, tensors)
    own, _ = operation.counts
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    sources = [None if source is None else places[id(source)] for source in operation.sources()]
    with torch.no_grad(), without_autocast(tensors[0]):
        passes = operation.executor.passes(operation.geometry, outputs[own:])
        each = [place is not None and requires[place] for place in sources]
        gradients: list[Tensor | None] = [None] * len(tensors)
        for place, value in zip(sources, operation.gradient(passes, outputs[:own], seeds, each), strict=True):
            if place is not None and value is not None:
                total = gradients[place]
                gradients[place] = value if total is None else total + value
    return gradients


class _Applied(torch.autograd.Function):
    """An operation in eager mode; its arguments are the operation, its structure and its tensors."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, structure: Structure, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = _run(operation)
        _, differentiable = operation.counts
        ctx.structure, ctx.sizes = structure, (len(tensors), differentiable)
        ctx.save_for_backward(*tensors, *outputs)
        ctx.mark_non_differentiable(*outputs[differentiable:])
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *seeds: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, differentiable = ctx.sizes
        saved = ctx.saved_tensors  # each access counts for the hooks of gradient checkpointing, which allow one
        tensors, outputs, seeds = saved[:inputs], saved[inputs:], seeds[:differentiable]
        requires = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            operation: Operation = unflatten(ctx.structure, tensors)
            with without_autocast(tensors[0]):
                return None, None, *operation.second_gradient(ctx.structure, tensors, outputs, seeds, requires)
        return None, None, *_pull(ctx.structure, tensors, outputs, seeds, requires)


class HostLoop(ABC):
    """A computation without a gradient that reads numbers on the host, such as an iteration until convergence.

    Subclasses are dataclasses whose fields `flatten` can take apart; their geometries are `Geometry.for_passes`.
    """

    @abstractmethod
    def run(self) -> list[Tensor]:
        """Return the outputs."""

    @abstractmethod
    def empty(self) -> list[Tensor]:
        """Return uninitialized tensors like the outputs."""


def run_host_loop(loop: HostLoop) -> list[Tensor]:
    """Return the outputs of a loop, which `torch.compile` keeps whole, as ``contraport::run_host_loop``."""
    if not torch.compiler.is_compiling():
        with torch.no_grad():
            return loop.run()
    tensors: list[Tensor] = []
    structure = flatten(loop, tensors)
    outputs: list[Tensor] = _run_loop(_number(structure), [tensor.detach() for tensor in tensors])
    return outputs


_structures: list[Structure] = []
_numbers: dict[Structure, int] = {}
_lock = threading.Lock()


def _number(structure: Structure) -> int:
    """Return the number of a structure, which stands for it in compiled graphs of this process."""
    with _lock:
        if structure not in _numbers:
            _numbers[structure] = len(_structures)
            _structures.append(structure)
        return _numbers[structure]


# As `torch.compiler.assume_constant_result` does, which would load the compiler, and Triton, wherever this is imported.
_number._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch.library.custom_op("contraport::apply", mutates_args=())
def _apply(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    return _run(unflatten(_structures[structure], tensors))


@_apply.register_fake
def _(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    operation: Operation = unflatten(_structures[structure], tensors)
    executor = operation.executor
    return [*operation.empty(), *executor.backend.empty_saved(operation.geometry, executor.processes)]


@torch.library.custom_op("contraport::gradient", mutates_args=())
def _gradient(
    structure: int,
    tensors: list[Tensor],
    outputs: list[Tensor],
    seeds: list[Tensor],
    seeded: list[int],
    requires: list[bool],
) -> list[Tensor]:
    """Return the gradients that are required; the seeds are those of the outputs at the places in ``seeded``."""
    operation: Operation = unflatten(_structures[structure], tensors)
    every: list[Tensor | None] = [None] * operation.counts[1]
    for place, seed in zip(seeded, seeds, strict=True):
        every[place] = seed
    gradients = _pull(_structures[structure], tensors, outputs, every, requires)
    return [
        torch.zeros_like(tensor) if gradient is None else torch.empty_like(tensor).copy_(gradient)
        for tensor, gradient, required in zip(tensors, gradients, requires, strict=True)
        if required
    ]


@_gradient.register_fake
def _(
    structure: int,
    tensors: list[Tensor],
    outputs: list[Tensor],
    seeds: list[Tensor],
    seeded: list[int],
    requires: list[bool],
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor, required in zip(tensors, requires, strict=True) if required]


@torch.library.custom_op("contraport::run_host_loop", mutates_args=())
def _run_loop(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    loop: HostLoop = unflatten(_structures[structure], tensors)
    with torch.no_grad():
        return loop.run()


@_run_loop.register_fake
def _(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    loop: HostLoop = unflatten(_structures[structure], tensors)
    return loop.empty()


def _save(ctx: Any, inputs: tuple[int, list[Tensor]], output: list[Tensor]) -> None:
    ctx.structure, tensors = inputs
    ctx.tensors = len(tensors)
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, every: Sequence[Tensor | None]) -> tuple[None, list[Tensor | None]]:
    saved, (_, requires) = ctx.saved_tensors, ctx.needs_input_grad
    tensors, outputs = list(saved[: ctx.tensors]), list(saved[ctx.tensors :])
    operation: Operation = unflatten(_structures[ctx.structure], tensors)
    seeded = [place for place in range(operation.counts[1]) if every[place] is not None]
    seeds = [seed for place in seeded if (seed := every[place]) is not None]
    gradients = iter(_gradient(ctx.structure, tensors, outputs, seeds, seeded, list(requires)))
    return None, [next(gradients) if required else None for required in requires]


_apply.register_autograd(_backward, setup_context=_save)
