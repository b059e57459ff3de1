"""Log-kernel and backend that exchange embeddings around a ring of processes.

Each process has its own rows and columns; the blocks of columns travel around a ring of processes. One visit is the
rectangle between the own rows and the block that is present: an ordinary geometry, whose passes are those of any
backend. Their results add up to those of all pairs, so memory is O(N d / W) on W processes. Vectors of all rows, such
as potentials, and masks are held by every process: 1/d of the embeddings.

Order. Vectors are in the order of the pattern of the block; the ring takes them by owner. `Shards` maps one to the
other.

Symmetry. Where rows and columns are the same embeddings, a visit serves the pairs (i, j) and (j, i), and blocks travel
half of the ring. With an even number of processes the last visit is shared: the two that have each other's block
compute half of it each.

Source: for InfoNCE, Cheng et al. (2025), Breaking the memory barrier of contrastive loss via tile-based strategy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import torch
from torch import Tensor

from contraport.distributed import Processes, RingExchange
from contraport.engine.kernel_link_functions import Link
from contraport.engine.log_kernels import Indices, LinearOperator, LogKernel
from contraport.engine.masked_geometry import Geometry
from contraport.engine.pair_passes import OptionalSums, PairPasses, WeightTerm
from contraport.engine.pytree import TreeStructure, flatten, unflatten
from contraport.errors import UsageError, check

_SINGLE_PROCESS = Processes()
"""Processes without communication, for the sums of one ring step."""


class Shards(NamedTuple):
    """Distribution of rows, or of columns, over processes.

    Attributes:
        sizes: Number of rows of each process.
        order: Permutation, (N,), that sorts the rows by owner, in a stable order; None if they are already sorted.
        inverse_order: Inverse of the permutation `order`, (N,), or None.
    """

    sizes: tuple[int, ...]
    order: Tensor | None = None
    inverse_order: Tensor | None = None

    @classmethod
    def assign_rows_by_item(cls, item_of_row: Tensor, items_per_process: tuple[int, ...]) -> Shards:
        """Assign each row to the process that holds its item.

        Args:
            item_of_row: index of the item of each row, (N,), counted over all processes.
            items_per_process: number of items of each process.
        """
        ends = torch.tensor(items_per_process, device=item_of_row.device).cumsum(0)
        owners = torch.bucketize(item_of_row, ends, right=True)
        sizes = tuple(owners.bincount(minlength=len(items_per_process)).tolist())
        if bool((owners[1:] >= owners[:-1]).all()):
            return cls(sizes)
        order = owners.argsort(stable=True)  # rows of one owner keep their order
        return cls(sizes, order, order.argsort())

    def first_row(self, rank: int) -> int:
        """Return the index of a process's first row, with rows sorted by process."""
        return sum(self.sizes[:rank])

    def sort_rows_by_process(self, value: Tensor) -> Tensor:
        """Reorder per-row values, (N,), so that rows are sorted by process."""
        return value if self.order is None else value[self.order]

    def restore_row_order(self, value: Tensor) -> Tensor:
        """Restore the original row order of per-row values sorted by process, (N,)."""
        return value if self.inverse_order is None else value[self.inverse_order]

    def row_indices(self, slice_in_owner_order: slice) -> Indices:
        """Return the original indices of a slice of the rows, which are sorted by process."""
        return slice_in_owner_order if self.order is None else self.order[slice_in_owner_order]


class RingVisit(NamedTuple):
    """Pairs between this process's rows and the column block that it currently holds.

    Attributes:
        owner: Rank of the process that owns the columns.
        log_kernel: Log-kernel of the rectangle.
        rows: Range of its rows, in the order of owners.
        columns: Range of its columns, in the order of owners.
        local_rows: Range of its rows, counted within the rows of this process.
        local_columns: Range of its columns, counted within the block now held.
        also_stands_for_transpose: Whether it also stands for the transposed rectangle of a symmetric problem.
    """

    owner: int
    log_kernel: LogKernel
    rows: slice
    columns: slice
    local_rows: slice
    local_columns: slice
    also_stands_for_transpose: bool


@dataclass(frozen=True, eq=False)
class RingLogKernel(LogKernel):
    """Log-kernel whose embeddings are distributed over processes.

    Gradients follow `contraport.distributed`: that of an own embedding is the whole gradient times the number of
    processes.

    Attributes:
        own: Log-kernel between the rows and the columns of this process.
        row_shards: Distribution of the rows.
        column_shards: Distribution of the columns.
        processes: Processes of the ring.
    """

    own: LogKernel
    row_shards: Shards
    column_shards: Shards
    processes: Processes

    @property
    def link(self) -> Link | None:  # type: ignore[override]
        return self.own.link

    @property
    def temperature(self) -> float | Tensor:  # type: ignore[override]
        return self.own.temperature

    @property
    def cost_unit(self) -> float | Tensor:  # type: ignore[override]
        return self.own.cost_unit

    @property
    def cost_is_distance(self) -> bool:  # type: ignore[override]
        return self.own.cost_is_distance

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.own.inputs

    @property
    def num_parameter_inputs(self) -> int:
        return self.own.num_parameter_inputs

    @property
    def shape(self) -> tuple[int, int]:
        """Total number of rows, and of columns, over all processes."""
        return sum(self.row_shards.sizes), sum(self.column_shards.sizes)

    @property
    def T(self) -> RingLogKernel:
        return replace(self, own=self.own.T, row_shards=self.column_shards, column_shards=self.row_shards)

    @property
    def is_always_finite(self) -> bool:
        return self.own.is_always_finite

    @property
    def a_priori_absolute_bound(self) -> float:
        return self.own.a_priori_absolute_bound

    @property
    def is_symmetric(self) -> bool:
        return self.own.is_symmetric

    def to_custom_op_input(self) -> RingLogKernel:
        return replace(self, own=self.own.to_custom_op_input())

    def with_link(self, link: Link | None, *, factor: float | Tensor = 1.0, row_shift: Tensor | None = None) -> Self:
        if row_shift is not None:
            shards = self.row_shards
            row_shift = self.processes.own_rows(shards.sort_rows_by_process(row_shift), shards.sizes)
        return replace(self, own=self.own.with_link(link, factor=factor, row_shift=row_shift))

    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        places = []
        for indices, shards in ((rows, self.row_shards), (columns, self.column_shards)):
            place = indices if shards.inverse_order is None else shards.inverse_order[indices]
            ends = torch.tensor(shards.sizes, device=place.device).cumsum(0)
            places.append((place, torch.bucketize(place, ends, right=True)))
        (row_places, owners), (column_places, column_owners) = places
        check(
            torch.equal(owners, column_owners),
            "exchange: 'ring' reads single pairs only within a process; this objective or target has pairs of items "
            "of different processes. Use 'gather'.",
            "exchange",
        )
        rank, size = self.processes
        mine = owners == rank
        values = self.own.gather_entries(
            row_places[mine] - self.row_shards.first_row(rank), column_places[mine] - self.column_shards.first_row(rank)
        )
        counts = tuple(owners.bincount(minlength=size).tolist())
        return self.processes.gather(values, counts)[owners.argsort(stable=True).argsort()]  # gathered by rank

    def row_sums_of_weighted_log_kernel(self, weight: LinearOperator) -> Tensor:
        tensors: list[Tensor] = []
        structure = flatten(self.to_custom_op_input(), tensors)
        own: Tensor = _RowSumsOfWeightedLogKernel.apply(structure, weight, *tensors)
        return self.row_shards.restore_row_order(self.processes.gather(own, self.row_shards.sizes))

    def _raise_unsupported(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `UsageError` for an operation that the ring exchange does not support."""
        raise UsageError(
            "exchange: 'ring' does not hold whole rows of the matrix of pairs; this objective, a second derivative or "
            "an inspected plan requires them. Use contraport.engine.exchange('gather').",
            kind="exchange",
        )

    take_rows = dense = tile_with_link_input = add_tile_gradients = _raise_unsupported

    def start_exchange(self, *, with_gradient: bool, half_ring: bool) -> RingExchange:
        """Build the exchange that passes column blocks around the ring of processes."""
        size = self.processes.size
        columns = [self.own.inputs[k].detach() for k in self.own.column_input_indices]
        block = torch.cat([v.flatten() for v in columns])  # embeddings and biases as one message
        width = sum(math.prod(v.shape[1:]) for v in columns)
        sizes = [width * count for count in self.column_shards.sizes]
        hops = size // 2 if half_ring else size - 1
        return RingExchange(self.processes, block, sizes, hops, with_gradient=with_gradient)

    def iter_visits(self, exchange: RingExchange, *, half_ring: bool = False) -> Iterator[RingVisit]:
        """Yield blocks of pairs: this process's rows with each process's columns in turn.

        With `half_ring`, only one of (i, j) and (j, i) is visited.
        """
        rank, size = self.processes
        top = self.row_shards.first_row(rank)
        for owner, block in exchange.iterate_blocks():
            left, columns = self.column_shards.first_row(owner), slice(0, self.column_shards.sizes[owner])
            rows = slice(0, self.row_shards.sizes[rank])
            if half_ring and 2 * exchange.hops == size and (owner - rank) % size == exchange.hops:
                # Two processes have each other's block: the one of lower rank computes the upper half of the rectangle.
                middle = self.row_shards.sizes[min(rank, owner)] // 2
                if rank < owner:
                    rows = slice(0, middle)
                else:
                    columns = slice(middle, columns.stop)
            if rows.start == rows.stop or columns.start == columns.stop:
                continue
            kernel = self.own
            if owner != rank:
                kernel = kernel.with_column_inputs([v[columns] for v in self._unpack_block(block, owner)])
                kernel = kernel.take_rows(rows)
            yield RingVisit(
                owner,
                kernel,
                slice(top + rows.start, top + rows.stop),
                slice(left + columns.start, left + columns.stop),
                rows,
                columns,
                half_ring and owner != rank,
            )

    def add_column_gradients(
        self, exchange: RingExchange, visit: RingVisit, gradients: Sequence[Tensor | None]
    ) -> None:
        """Add this process's gradients to the accumulated gradients of the current columns."""
        if exchange.with_gradient and any(gradients[k] is not None for k in self.own.column_input_indices):
            parts = self._unpack_block(exchange.gradient_accumulator, visit.owner)
            for k, part in zip(self.own.column_input_indices, parts, strict=True):
                if (value := gradients[k]) is not None:
                    part[visit.local_columns] += value

    def own_column_gradients_by_input_index(self, exchange: RingExchange) -> dict[int, Tensor]:
        """Return the gradients of this process's column tensors, by index in `inputs`."""
        parts = self._unpack_block(exchange.gradient_accumulator, self.processes.rank)
        return dict(zip(self.own.column_input_indices, parts, strict=True))

    def _unpack_block(self, block: Tensor, owner: int) -> list[Tensor]:
        """Split a received flat tensor into the columns' embeddings and biases."""
        count, parts, start = self.column_shards.sizes[owner], [], 0
        for k in self.own.column_input_indices:
            shape = count, *self.own.inputs[k].shape[1:]
            parts.append(block[start : start + math.prod(shape)].view(shape))
            start += math.prod(shape)
        return parts


class RingPairPasses(PairPasses):
    """Backend that exchanges column embeddings around a ring of processes.

    Another backend computes each block that arrives.

    Attributes:
        visit_passes_class: Backend of a visit.
    """

    description: ClassVar[str] = "embeddings travel around a ring of processes: O(N d / W) memory on W"
    visit_passes_class: ClassVar[type[PairPasses]]

    def prepare_passes(self) -> None:
        assert isinstance(self.log_kernel, RingLogKernel)
        self.ring, self.processes = self.log_kernel, self.log_kernel.processes
        self.rows, self.columns = self.ring.row_shards, self.ring.column_shards

    def row_column_log_sums(self, column_potential: Tensor | None, row_potential: Tensor | None) -> OptionalSums:
        column_potential = None if column_potential is None else self.columns.sort_rows_by_process(column_potential)
        row_potential = None if row_potential is None else self.rows.sort_rows_by_process(row_potential)
        n, m = self.ring.shape
        by_row = None if column_potential is None else column_potential.new_full((n,), -torch.inf)
        by_column = None if row_potential is None else row_potential.new_full((m,), -torch.inf)
        for visit, passes in self._iter_visits_with_passes():
            rows, columns = visit.rows, visit.columns
            if not visit.also_stands_for_transpose:
                sums = passes.row_column_log_sums(
                    None if column_potential is None else column_potential[columns],
                    None if row_potential is None else row_potential[rows],
                )
                _add_log_sums_in_place(by_row, rows, sums[0])
                _add_log_sums_in_place(by_column, columns, sums[1])
                continue
            # S is symmetric: the log-sums of rows, taken on both sides, are those of rows and of columns.
            for potential, total in ((column_potential, by_row), (row_potential, by_column)):
                if potential is not None:
                    sums = passes.row_column_log_sums(potential[columns], potential[rows])
                    _add_log_sums_in_place(total, rows, sums[0])
                    _add_log_sums_in_place(total, columns, sums[1])
        return self._combine_in_row_order(by_row, self.rows), self._combine_in_row_order(by_column, self.columns)

    def weighted_kernel_sums(self, terms: Sequence[WeightTerm]) -> list[Tensor]:
        terms = self._sort_within_terms_by_process(terms)
        sums = [torch.zeros_like(t.column_exponents if t.factor_axis == "rows" else t.row_exponents) for t in terms]
        for visit, passes in self._iter_visits_with_passes():
            parts = {"rows": visit.columns, "columns": visit.rows}  # a sum over rows has an entry for each column
            if not visit.also_stands_for_transpose:
                own_sums = passes.weighted_kernel_sums(_restrict_terms_to_visit(terms, visit))
                for term, total, part in zip(terms, sums, own_sums, strict=True):
                    total[parts[term.factor_axis]] += part
                continue
            for term, total in zip(terms, sums, strict=True):
                both = _restrict_terms_to_visit([term, term.T], visit)
                for side, part in zip(both, passes.weighted_kernel_sums(both), strict=True):
                    total[parts[side.factor_axis]] += part
        self.processes.all_reduce_(*sums)
        shards = {"rows": self.columns, "columns": self.rows}
        return [shards[term.factor_axis].restore_row_order(total) for term, total in zip(terms, sums, strict=True)]

    def input_grads(
        self, terms: Sequence[WeightTerm], needs_grad: Sequence[bool], *, without_link: bool = False
    ) -> list[Tensor | None]:
        terms, columns = self._sort_within_terms_by_process(terms), self.ring.own.column_input_indices
        gradients = [
            torch.zeros_like(value) if needed and k not in columns else None
            for k, (value, needed) in enumerate(zip(self.ring.inputs, needs_grad, strict=True))
        ]
        with_gradient = any(needs_grad[k] for k in columns)
        exchange = self.ring.start_exchange(with_gradient=with_gradient, half_ring=self.is_symmetric)
        for visit, passes in self._iter_visits_with_passes(exchange):
            both = [*terms, *(term.T for term in terms)] if visit.also_stands_for_transpose else terms
            parts = passes.input_grads(_restrict_terms_to_visit(both, visit), needs_grad, without_link=without_link)
            for k, total in enumerate(gradients):
                part, parts[k] = parts[k], None if total is not None else parts[k]
                if total is not None and part is not None:
                    total[visit.local_rows if k < len(parts) - self.ring.num_parameter_inputs else ...] += part
            self.ring.add_column_gradients(exchange, visit, parts)
        if exchange.with_gradient:
            for k, total in self.ring.own_column_gradients_by_input_index(exchange).items():
                # If columns and rows are the same embeddings, the row input, k - 1, gets the whole gradient.
                rest = gradients[k - 1] if self.is_symmetric else None
                if rest is not None:
                    rest += total
                elif needs_grad[k]:
                    gradients[k] = total
        return self._reduce_or_scale_gradients(gradients)

    def plan_link_input_row_sums(self, row_potential: Tensor, column_potential: Tensor) -> Tensor:
        f, g = self.rows.sort_rows_by_process(row_potential), self.columns.sort_rows_by_process(column_potential)
        sums = torch.zeros_like(f)
        for visit, passes in self._iter_visits_with_passes():
            sums[visit.rows] += passes.plan_link_input_row_sums(f[visit.rows], g[visit.columns])
            if visit.also_stands_for_transpose:
                mirrored = self.visit_passes_class(passes.geometry.T, _SINGLE_PROCESS, (), self.operand_dtype)
                sums[visit.columns] += mirrored.plan_link_input_row_sums(f[visit.columns], g[visit.rows])
        self.processes.all_reduce_(sums)
        return self.rows.restore_row_order(sums)

    def _iter_visits_with_passes(self, exchange: RingExchange | None = None) -> Iterator[tuple[RingVisit, PairPasses]]:
        """Yield the pairs of each ring step, and the backend that processes them.

        Without an exchange one is started, around half of the ring if the problem is symmetric.
        """
        exchange = exchange or self.ring.start_exchange(with_gradient=False, half_ring=self.is_symmetric)
        for visit in self.ring.iter_visits(exchange, half_ring=self.is_symmetric):
            rows = self.rows.row_indices(visit.rows)
            # One tensor for both where they are the same, by which a mask is recognized as symmetric.
            columns = rows if visit.owner == self.processes.rank and self.is_symmetric else None
            columns = self.columns.row_indices(visit.columns) if columns is None else columns
            masks = tuple(mask.take_rows_and_columns(rows, columns) for mask in self.geometry.masks)
            geometry = Geometry(visit.log_kernel, masks)
            yield visit, self.visit_passes_class(geometry, _SINGLE_PROCESS, (), self.operand_dtype)

    def _sort_within_terms_by_process(self, terms: Sequence[WeightTerm]) -> list[WeightTerm]:
        """Return the terms of the pair weights, their rows and columns ordered by process."""
        rows, columns = self.rows.sort_rows_by_process, self.columns.sort_rows_by_process
        return [
            WeightTerm(rows(a), columns(b), axis, rows(factor) if axis == "rows" else columns(factor))
            for a, b, axis, factor in terms
        ]

    def _combine_in_row_order(self, log_sums_in_owner_order: Tensor | None, shards: Shards) -> Tensor | None:
        """Merge partial log-sum-exps of all processes, and restore the original row order."""
        if log_sums_in_owner_order is None:
            return None
        total = torch.ones_like(log_sums_in_owner_order)
        self.processes.all_reduce_log_sums_(log_sums_in_owner_order, total)
        return shards.restore_row_order(log_sums_in_owner_order + total.log())


def _add_log_sums_in_place(total: Tensor | None, part: slice, values: Tensor | None) -> None:
    """Add log-sum-exps to a slice of `total` in place, by logaddexp."""
    if total is not None and values is not None:
        total[part] = torch.logaddexp(total[part], values)


def _restrict_terms_to_visit(terms: Sequence[WeightTerm], visit: RingVisit) -> list[WeightTerm]:
    """Restrict the terms of the pair weights to the rows and columns of a ring visit."""
    rows, columns = visit.rows, visit.columns
    return [
        WeightTerm(a[rows], b[columns], axis, factor[rows if axis == "rows" else columns])
        for a, b, axis, factor in terms
    ]


class _RowSumsOfWeightedLogKernel(torch.autograd.Function):
    """Autograd function for this process's row sums of weights times log K.

    Each is sum_j W_ij log K_ij, with W a weight matrix.
    """

    @staticmethod
    def forward(ctx: Any, structure: TreeStructure, weight: LinearOperator, *tensors: Tensor) -> Tensor:
        ctx.structure, ctx.weight = structure, weight
        ctx.save_for_backward(*tensors)
        ring: RingLogKernel = unflatten(structure, tensors)
        sums = ring.inputs[0].new_zeros(ring.row_shards.sizes[ring.processes.rank])
        exchange = ring.start_exchange(with_gradient=False, half_ring=False)
        for visit in ring.iter_visits(exchange):
            sums += visit.log_kernel.row_sums_of_weighted_log_kernel(_restrict_weights_to_visit(weight, ring, visit))
        return sums

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        ring: RingLogKernel = unflatten(ctx.structure, tensors)
        if torch.is_grad_enabled():
            ring._raise_unsupported()  # a second derivative
        needs_grad, columns = ctx.needs_input_grad[2:], ring.own.column_input_indices
        gradients = {id(v): torch.zeros_like(v) for v, needed in zip(tensors, needs_grad, strict=True) if needed}
        with_gradient = any(id(ring.inputs[k]) in gradients for k in columns)
        exchange = ring.start_exchange(with_gradient=with_gradient, half_ring=False)
        for visit in ring.iter_visits(exchange):
            inputs: list[Tensor] = []
            structure = flatten(visit.log_kernel, inputs)
            with torch.enable_grad():
                leaves = [v.detach().requires_grad_(v.is_floating_point()) for v in inputs]
                kernel: LogKernel = unflatten(structure, leaves)
                values = kernel.row_sums_of_weighted_log_kernel(_restrict_weights_to_visit(ctx.weight, ring, visit))
            input_grads = torch.autograd.grad(values, kernel.inputs, grad_output, allow_unused=True)
            parts: list[Tensor | None] = [None] * len(input_grads)
            for k, (source, value) in enumerate(zip(ring.inputs, input_grads, strict=True)):
                repeated = any(kernel.inputs[k] is other for other in kernel.inputs[:k])
                if value is None or repeated or id(source) not in gradients:
                    continue
                if k in columns:
                    parts[k] = value
                else:
                    gradients[id(source)] += value
            ring.add_column_gradients(exchange, visit, parts)
        if exchange.with_gradient:
            for k, value in ring.own_column_gradients_by_input_index(exchange).items():
                if id(ring.inputs[k]) in gradients:
                    gradients[id(ring.inputs[k])] += value
        return None, None, *[gradients.get(id(v)) for v in tensors]


def _restrict_weights_to_visit(weight: LinearOperator, ring: RingLogKernel, visit: RingVisit) -> LinearOperator:
    """Restrict a weight matrix to the pairs of one ring step."""
    rows = ring.row_shards.row_indices(visit.rows)
    return weight.take_rows_and_columns(rows, ring.column_shards.row_indices(visit.columns))
