"""The backends: how the passes over all pairs are carried out, and which of them a geometry gets."""

from contraport.engine.backends.backend import Backend
from contraport.engine.backends.choose import POLICIES, PRECISIONS, backend_for, choose, explain, policy, precision

__all__ = ["POLICIES", "PRECISIONS", "Backend", "backend_for", "choose", "explain", "policy", "precision"]
