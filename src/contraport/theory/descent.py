"""Minimising to the end: the theory speaks of optima, not of epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def minimize_lbfgs(parameters: list[Tensor], value: Callable[[], Tensor], iterations: int) -> Iterator[float]:
    """Minimise by L-BFGS, and yield the value at the start and after each iteration, until nothing moves.

    Args:
        parameters: what is moved, tensors that require a gradient.
        value: the function, of these; a tensor without dimensions.
        iterations: how many at most.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> values = list(minimize_lbfgs([x], lambda: (x - 1).square().sum(), 20))
    >>> values[0], round(x.item(), 4)
    (4.0, 1.0)
    """
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=1, max_eval=25, tolerance_grad=1e-12, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = value()
        loss.backward()
        return loss

    yield value().item()
    for _ in range(iterations):
        before = [p.detach().clone() for p in parameters]
        optimizer.step(closure)
        yield value().item()
        if all(torch.equal(p, q) for p, q in zip(parameters, before, strict=True)):
            return
