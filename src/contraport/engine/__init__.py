"""The engine: everything that sums over all pairs. It knows tensors, kernels and masks, and never a method's name."""

from contraport.engine.geometry import Geometry, Mask
from contraport.engine.kernels import Gibbs, Kernel, LogKernel, StudentT, normalize
from contraport.engine.policies import POLICIES, choose, explain, policy
from contraport.engine.scaling import Axis, Step, log_sums, scale

__all__ = [
    "POLICIES",
    "Axis",
    "Geometry",
    "Gibbs",
    "Kernel",
    "LogKernel",
    "Mask",
    "Step",
    "StudentT",
    "choose",
    "explain",
    "log_sums",
    "normalize",
    "policy",
    "scale",
]
