"""The engine: everything that sums over all pairs. It knows tensors, kernels and masks, and never a method's name."""

from contraport.engine.collectives import gather, gather_batch, local, world
from contraport.engine.convergence import converge
from contraport.engine.geometry import Geometry, Mask
from contraport.engine.kernels import Bilinear, Gibbs, Kernel, RationalQuadratic, StudentT, normalize
from contraport.engine.links import Doubled, Link, LogOf, LogSoftplus, TimesCost, positive_part
from contraport.engine.log_kernels import LogKernel, MatrixLogKernel, Weight
from contraport.engine.policies import POLICIES, PRECISIONS, choose, explain, policy, precision
from contraport.engine.scaling import Axis, Step, held_total, log_sums, scale
from contraport.engine.stripes import by_stripes

__all__ = [
    "POLICIES",
    "PRECISIONS",
    "Axis",
    "Bilinear",
    "Doubled",
    "Geometry",
    "Gibbs",
    "Kernel",
    "Link",
    "LogKernel",
    "LogOf",
    "LogSoftplus",
    "Mask",
    "MatrixLogKernel",
    "RationalQuadratic",
    "Step",
    "StudentT",
    "TimesCost",
    "Weight",
    "by_stripes",
    "choose",
    "converge",
    "explain",
    "gather",
    "gather_batch",
    "held_total",
    "local",
    "log_sums",
    "normalize",
    "policy",
    "positive_part",
    "precision",
    "scale",
    "world",
]
