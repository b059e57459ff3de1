"""Differentiable operations over all pairs, each as one torch operator.

An `Operation` is what a function such as `contraport.engine.run_half_steps` computes on one geometry. `apply_operation`
runs it with the passes of a backend and registers its gradient: as an `autograd.Function` in eager mode, and as the
custom operators ``contraport::apply`` and ``contraport::gradient`` under `torch.compile`. Both call the same two
functions, `_compute_outputs_and_saved_tensors` and `_run_backward`.

Why custom operators: the compiler does not look into an operator. The passes may therefore read numbers on the host (a
bound of the exponents, a convergence check) without breaking the graph.

Why pure functions: all that the gradient needs is among the input and output tensors. An operation therefore works
under saved-tensor hooks, such as those of gradient checkpointing, and holds no memory that autograd does not track.

A second derivative (``create_graph=True``) uses plain autograd on the whole (N, M) matrix, whatever the backend: exact,
in O(N M) memory for each half-step.
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
from contraport.engine.autograd_utilities import autocast_disabled, differentiable_gradients
from contraport.engine.masked_geometry import Geometry
from contraport.engine.pair_passes import PairPasses
from contraport.engine.pytree import TreeStructure, flatten, unflatten


class BackendConfig(NamedTuple):
    """Backend, processes and precision of an operation and its gradient.

    Attributes:
        passes_class: Class of the backend, which computes the passes over all pairs.
        processes: Processes that share the work.
        operand_dtype: Dtype to which a backend rounds embeddings before matrix products, if that is faster.
    """

    passes_class: type[PairPasses]
    processes: Processes
    operand_dtype: torch.dtype = torch.float32

    def create_passes(self, geometry: Geometry, saved: Sequence[Tensor] = ()) -> PairPasses:
        """Create the backend object that computes sums over all pairs, reusing `saved` tensors."""
        return self.passes_class(geometry, self.processes, saved, self.operand_dtype)


class BackwardArgs(NamedTuple):
    """Arguments of a backward pass, such as outputs and their gradients.

    Attributes:
        outputs: All outputs of the forward computation.
        grad_outputs: Gradients with respect to the differentiable outputs; None is zero.
        needs_grad: Whether each input needs a gradient, one flag per input.
    """

    outputs: Sequence[Tensor]
    grad_outputs: Sequence[Tensor | None]
    needs_grad: Sequence[bool]


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """Base class of differentiable operations over all pairs of rows and columns.

    Subclasses are dataclasses. The fields of a subclass must be values that `flatten` supports.

    Attributes:
        backend_config: Backend, processes and precision of the operation.
        geometry: Compared pairs of rows and columns.
    """

    backend_config: BackendConfig
    geometry: Geometry

    @property
    @abstractmethod
    def num_differentiable_outputs(self) -> int:
        """Number of differentiable outputs of `forward`, which precede the others."""

    @property
    @abstractmethod
    def num_nondifferentiable_outputs(self) -> int:
        """Number of non-differentiable outputs of `forward`, such as log-sums."""

    @abstractmethod
    def forward(self, passes: PairPasses) -> list[Tensor]:
        """Compute the outputs, the differentiable ones first.

        All are saved for the gradient.
        """

    @abstractmethod
    def empty_outputs_for_tracing(self) -> list[Tensor]:
        """Allocate uninitialized outputs, for tracing by `torch.compile`."""

    @abstractmethod
    def differentiable_inputs(self) -> tuple[Tensor | None, ...]:
        """Return the input tensors that can have a gradient."""

    @abstractmethod
    def backward(self, passes: PairPasses, args: BackwardArgs) -> list[Tensor | None]:
        """Return the gradient of each differentiable input, None for inputs that need none."""

    @abstractmethod
    def differentiable_backward(
        self, structure: TreeStructure, tensors: Sequence[Tensor], args: BackwardArgs
    ) -> list[Tensor | None]:
        """Return differentiable gradients of all input tensors, None for unused ones."""


@dataclass(frozen=True, eq=False)
class OperationWithDenseForm(Operation, ABC):
    """Base class of operations that the backend ``"dense"`` runs in plain PyTorch."""

    @abstractmethod
    def compute_differentiable_outputs_densely(self) -> list[Tensor]:
        """Compute the differentiable outputs in plain PyTorch on the whole matrix."""

    def compute_differentiable_outputs_by_backend(self) -> list[Tensor]:
        """Compute the differentiable outputs by the backend of the operation."""
        if self.backend_config.passes_class.uses_plain_autograd:
            return self.compute_differentiable_outputs_densely()
        return apply_operation(self)[: self.num_differentiable_outputs]

    def differentiable_backward(
        self, structure: TreeStructure, tensors: Sequence[Tensor], args: BackwardArgs
    ) -> list[Tensor | None]:
        def outputs(*views: Tensor) -> list[Tensor]:
            operation: OperationWithDenseForm = unflatten(structure, views)
            return operation.compute_differentiable_outputs_densely()

        return differentiable_gradients(outputs, tensors, args.grad_outputs, args.needs_grad)


def apply_operation(operation: Operation) -> list[Tensor]:
    """Run an operation and return its outputs, the differentiable ones first."""
    tensors: list[Tensor] = []
    # Without the temperature, which is in the embeddings already: fewer inputs, and none without a gradient.
    operation = replace(operation, geometry=operation.geometry.to_custom_op_input())
    structure = flatten(operation, tensors)
    if torch.compiler.is_compiling():
        outputs: list[Tensor] = _outputs_and_saved_tensors_op(_get_structure_index(structure), tensors)
        return outputs
    return list(_EagerOperation.apply(operation, structure, *tensors))


def _compute_outputs_and_saved_tensors(operation: Operation) -> list[Tensor]:
    """Return the outputs of an operation, then the tensors saved for backward."""
    with torch.no_grad(), autocast_disabled(operation.geometry.log_kernel.inputs[0]):
        passes = operation.backend_config.create_passes(operation.geometry)
        return [*operation.forward(passes), *passes.computed_tensors_to_save()]


def _run_backward(structure: TreeStructure, tensors: Sequence[Tensor], args: BackwardArgs) -> list[Tensor | None]:
    """Return the gradient of each input tensor, or None if not needed."""
    operation: Operation = unflatten(structure, tensors)
    count = operation.num_differentiable_outputs + operation.num_nondifferentiable_outputs
    # One tensor may be several inputs (rows that are also columns): gradients are added up by tensor.
    positions = {id(tensor): position for position, tensor in enumerate(tensors)}
    slots = [None if variable is None else positions[id(variable)] for variable in operation.differentiable_inputs()]
    with torch.no_grad(), autocast_disabled(tensors[0]):
        passes = operation.backend_config.create_passes(operation.geometry, args.outputs[count:])
        needs_grad = [slot is not None and args.needs_grad[slot] for slot in slots]
        own_args = BackwardArgs(args.outputs[:count], args.grad_outputs, needs_grad)
        gradients: list[Tensor | None] = [None] * len(tensors)
        for slot, value in zip(slots, operation.backward(passes, own_args), strict=True):
            if slot is not None and value is not None:
                total = gradients[slot]
                gradients[slot] = value if total is None else total + value
    return gradients


class _EagerOperation(torch.autograd.Function):
    """Autograd function that runs an operation in eager mode."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, structure: TreeStructure, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = _compute_outputs_and_saved_tensors(operation)
        differentiable = operation.num_differentiable_outputs
        ctx.structure, ctx.sizes = structure, (len(tensors), differentiable)
        ctx.save_for_backward(*tensors, *outputs)
        ctx.mark_non_differentiable(*outputs[differentiable:])
        ctx.set_materialize_grads(False)  # an absent gradient stays None, and its passes are skipped
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, differentiable = ctx.sizes
        saved = ctx.saved_tensors  # read once: the hooks of gradient checkpointing allow a single access
        tensors = saved[:inputs]
        args = BackwardArgs(saved[inputs:], grad_outputs[:differentiable], ctx.needs_input_grad[2:])
        if torch.is_grad_enabled():
            operation: Operation = unflatten(ctx.structure, tensors)
            with autocast_disabled(tensors[0]):
                return None, None, *operation.differentiable_backward(ctx.structure, tensors, args)
        return None, None, *_run_backward(ctx.structure, tensors, args)


class HostLoop(ABC):
    """Base class of iterative solvers whose number of steps depends on the data.

    They have no gradient; the host reads a value from the device to decide. Subclasses are dataclasses whose fields
    `flatten` can take apart; their geometries are results of `Geometry.to_custom_op_input`.
    """

    @abstractmethod
    def run(self) -> list[Tensor]:
        """Run the solver until it stops, and return its outputs."""

    @abstractmethod
    def empty_outputs_for_tracing(self) -> list[Tensor]:
        """Allocate uninitialized outputs, for tracing by `torch.compile`."""


def run_host_loop(loop: HostLoop) -> list[Tensor]:
    """Run a loop with a data-dependent stop, as one operator when compiled.

    Under `torch.compile` it is one custom operator. Traced loops would unroll, and each number read on the host would
    break the graph.
    """
    if not torch.compiler.is_compiling():
        with torch.no_grad():
            return loop.run()
    tensors: list[Tensor] = []
    structure = flatten(loop, tensors)
    outputs: list[Tensor] = _run_host_loop_op(_get_structure_index(structure), [tensor.detach() for tensor in tensors])
    return outputs


_structures: list[TreeStructure] = []
"""Table of structures: a custom operator takes tensors and numbers only, so compiled graphs hold an index into it."""

_index_by_structure: dict[TreeStructure, int] = {}
"""Index of each structure in `_structures`."""

_structures_lock = threading.Lock()  # graphs may be compiled by several threads


def _get_structure_index(structure: TreeStructure) -> int:
    """Return the integer that identifies a nested argument structure in compiled graphs."""
    with _structures_lock:
        if structure not in _index_by_structure:
            _index_by_structure[structure] = len(_structures)
            _structures.append(structure)
        return _index_by_structure[structure]


# Set by hand: `torch.compiler.assume_constant_result` would load the compiler, and Triton, when this file is imported.
_get_structure_index._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch.library.custom_op("contraport::apply", mutates_args=())
def _outputs_and_saved_tensors_op(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    """Custom operator that returns outputs, then tensors saved for the gradient."""
    return _compute_outputs_and_saved_tensors(unflatten(_structures[structure], tensors))


@_outputs_and_saved_tensors_op.register_fake
def _outputs_and_saved_tensors_op_fake(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    """Return empty outputs of `_outputs_and_saved_tensors_op`, for tracing."""
    operation: Operation = unflatten(_structures[structure], tensors)
    config = operation.backend_config
    saved = config.passes_class.empty_saved_tensors_for_tracing(operation.geometry, config.processes)
    return [*operation.empty_outputs_for_tracing(), *saved]


@torch.library.custom_op("contraport::gradient", mutates_args=())
def _needed_gradients_op(
    structure: int,
    tensors: list[Tensor],
    outputs: list[Tensor],
    present_grads: list[Tensor],
    present_indices: list[int],
    needs_grad: list[bool],
) -> list[Tensor]:
    """Custom operator that returns the gradients of inputs marked in `needs_grad`.

    `present_grads` are the gradients of the outputs at `present_indices`; all others are zero.
    """
    operation: Operation = unflatten(_structures[structure], tensors)
    grad_outputs: list[Tensor | None] = [None] * operation.num_differentiable_outputs
    for position, grad_output in zip(present_indices, present_grads, strict=True):
        grad_outputs[position] = grad_output
    gradients = _run_backward(_structures[structure], tensors, BackwardArgs(outputs, grad_outputs, needs_grad))
    # Copies: an operator must not return its inputs, nor one tensor twice, and its result has the layout of the input.
    return [
        torch.zeros_like(tensor) if gradient is None else torch.empty_like(tensor).copy_(gradient)
        for tensor, gradient, needed in zip(tensors, gradients, needs_grad, strict=True)
        if needed
    ]


@_needed_gradients_op.register_fake
def _needed_gradients_op_fake(structure: int, tensors: list[Tensor], *others: Any) -> list[Tensor]:
    """Allocate the outputs of `_needed_gradients_op` without computing them, for tracing."""
    return [torch.empty_like(tensor) for tensor, needed in zip(tensors, others[-1], strict=True) if needed]


@torch.library.custom_op("contraport::run_host_loop", mutates_args=())
def _run_host_loop_op(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    """Custom operator that runs a loop with a data-dependent stop."""
    loop: HostLoop = unflatten(_structures[structure], tensors)
    with torch.no_grad():
        return loop.run()


@_run_host_loop_op.register_fake
def _run_host_loop_op_fake(structure: int, tensors: list[Tensor]) -> list[Tensor]:
    """Return empty outputs of `_run_host_loop_op`, for tracing."""
    loop: HostLoop = unflatten(_structures[structure], tensors)
    return loop.empty_outputs_for_tracing()


def _save_for_compiled_backward(ctx: Any, inputs: tuple[int, list[Tensor]], output: list[Tensor]) -> None:
    """Save inputs and outputs of `_outputs_and_saved_tensors_op` for `_compiled_backward`."""
    ctx.structure, tensors = inputs
    ctx.tensors = len(tensors)
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _compiled_backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[None, list[Tensor | None]]:
    """Return the gradient of each custom operator input, or None if not needed."""
    saved, (_, needs_grad) = ctx.saved_tensors, ctx.needs_input_grad
    tensors, outputs = list(saved[: ctx.tensors]), list(saved[ctx.tensors :])
    operation: Operation = unflatten(_structures[ctx.structure], tensors)
    # An operator takes no list with None in it: absent gradients are left out, and positions of the others are passed.
    differentiable = operation.num_differentiable_outputs
    present_indices = [position for position in range(differentiable) if grads[position] is not None]
    present_grads = [grad_output for position in present_indices if (grad_output := grads[position]) is not None]
    gradients = iter(
        _needed_gradients_op(ctx.structure, tensors, outputs, present_grads, present_indices, list(needs_grad))
    )
    return None, [next(gradients) if needed else None for needed in needs_grad]


_outputs_and_saved_tensors_op.register_autograd(_compiled_backward, setup_context=_save_for_compiled_backward)
