"""The policy: how the passes over all pairs are carried out, chosen by size, and open to being told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

from contraport.engine.geometry import Geometry
from contraport.engine.passes import Passes, StoredPasses
from contraport.errors import unknown_name

Policy: TypeAlias = Literal["dense", "stored", "streamed"]

POLICIES: dict[str, str] = {
    "dense": "one (N, M) matrix and plain autograd: the oracle, and the fastest for small batches",
    "stored": "log K computed once and kept in tiles; exact gradient in one more pass",
    "streamed": "tiles recomputed in each pass: O((N + M) d) memory",
}

DENSE_ENTRIES = 1 << 20
"""Up to so many pairs (a batch of 512 in the joint layout) autograd on the whole matrix is quickest."""

STORED_BYTES = 256 << 20
"""Up to so many bytes (8,192 by 8,192 in single precision) log K is kept rather than recomputed."""

_forced: ContextVar[Policy | None] = ContextVar("contraport_policy", default=None)


@contextmanager
def policy(name: Policy) -> Iterator[None]:
    """Carry out everything within the ``with`` block by one policy, whatever the size.

    Args:
        name: ``"dense"``, ``"stored"`` or ``"streamed"``.

    Raises:
        UsageError: the name is unknown.

    >>> import torch, contraport
    >>> z0, z1 = torch.randn(2, 64, 8)
    >>> with contraport.engine.policy("streamed"):
    ...     value = contraport.nt_xent(temperature=0.5)(z0, z1)
    """
    if name not in POLICIES:
        raise unknown_name("policy", name, POLICIES)
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def choose(geometry: Geometry) -> Policy:
    """Return the policy for a geometry: the one in force, else by its number of pairs."""
    forced = _forced.get()
    if forced is not None:
        return forced
    n, m = geometry.shape
    if n * m <= DENSE_ENTRIES:
        return "dense"
    return "stored" if n * m * geometry.log_kernel.inputs[0].element_size() <= STORED_BYTES else "streamed"


def explain(geometry: Geometry) -> str:
    """Say in a sentence which policy a geometry gets and why.

    >>> import torch
    >>> from contraport.engine import Geometry, Gibbs
    >>> x = torch.randn(4096, 16)
    >>> print(explain(Geometry(Gibbs()(x, x))))
    4096 x 4096 pairs, 64 MiB as a matrix: stored (log K computed once and kept in tiles; exact gradient in one more
    pass).
    """
    n, m = geometry.shape
    name = choose(geometry)
    megabytes = n * m * geometry.log_kernel.inputs[0].element_size() / (1 << 20)
    forced = ", as asked for" if _forced.get() else ""
    return f"{n} x {m} pairs, {megabytes:.3g} MiB as a matrix: {name}{forced} ({POLICIES[name]})."


def passes_for(geometry: Geometry) -> Passes | None:
    """Return the passes over a geometry by the policy in force; None stands for the dense oracle."""
    name = choose(geometry)
    if name == "dense":
        return None
    return StoredPasses(geometry) if name == "stored" else Passes(geometry)
