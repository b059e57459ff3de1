"""The engine: everything that sums over all pairs. It knows tensors, kernels and masks, and never a method's name."""

from contraport.engine.backends.choose import BACKENDS, PRECISIONS, backend, choose, explain, precision
from contraport.engine.constants import CacheEntry, constant, log_of, remembered
from contraport.engine.custom_op import HostLoop, run_loop
from contraport.engine.geometry import Geometry, Mask, Threshold
from contraport.engine.half_steps import OTHER, Axis, Slack, Step
from contraport.engine.kernels import Bilinear, Gibbs, Kernel, Learned, RationalQuadratic, StudentT, Tempered, normalize
from contraport.engine.learned_numbers import learned_number, number_of
from contraport.engine.links import Doubled, Link, LogDecay, LogHinge, LogOf, LogPower, LogSoftplus, TimesCost
from contraport.engine.log_kernels import LogKernel, MatrixLogKernel, Weight
from contraport.engine.operations import converge, held_sums, log_sums, scale
from contraport.engine.row_blocks import by_row_blocks
from contraport.engine.transforms import check_outside, products_without_autocast, within_transform, without_autocast

__all__ = [
    "BACKENDS",
    "OTHER",
    "PRECISIONS",
    "Axis",
    "Bilinear",
    "CacheEntry",
    "Doubled",
    "Geometry",
    "Gibbs",
    "HostLoop",
    "Kernel",
    "Learned",
    "Link",
    "LogDecay",
    "LogHinge",
    "LogKernel",
    "LogOf",
    "LogPower",
    "LogSoftplus",
    "Mask",
    "MatrixLogKernel",
    "RationalQuadratic",
    "Slack",
    "Step",
    "StudentT",
    "Tempered",
    "Threshold",
    "TimesCost",
    "Weight",
    "backend",
    "by_row_blocks",
    "check_outside",
    "choose",
    "constant",
    "converge",
    "explain",
    "held_sums",
    "learned_number",
    "log_of",
    "log_sums",
    "normalize",
    "number_of",
    "precision",
    "products_without_autocast",
    "remembered",
    "run_loop",
    "scale",
    "within_transform",
    "without_autocast",
]
