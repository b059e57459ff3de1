"""The engine: everything that sums over all pairs. It knows tensors, kernels and masks, and never a method's name."""

from contraport.engine.autograd import (
    check_not_in_torch_func,
    disable_autocast_in_backward,
    is_in_torch_func,
    without_autocast,
)
from contraport.engine.backends.selection import BACKENDS, PRECISIONS, backend, choose, explain, precision
from contraport.engine.custom_op import HostLoop, run_host_loop
from contraport.engine.geometry import Geometry, LabelMask, SimilarityMask
from contraport.engine.half_steps import OTHER, Axis, Relaxation, Step
from contraport.engine.kernels import (
    BilinearCost,
    Gibbs,
    Kernel,
    LearnedTemperature,
    RationalQuadratic,
    StudentT,
    TemperatureLike,
    normalize,
)
from contraport.engine.learned_numbers import parameter_value, scalar_parameter
from contraport.engine.links import (
    CostWeightedLink,
    Link,
    LogDecay,
    LogFunction,
    LogHinge,
    LogPower,
    LogSoftplus,
    SquaredKernelLink,
)
from contraport.engine.log_kernels import LogKernel, MatrixLogKernel, Weight
from contraport.engine.operations import log_sums, scale, solve_fixed_point, transport_cost
from contraport.engine.row_blocks import map_row_blocks
from contraport.engine.tensor_cache import CacheEntry, constant, log_size, remembered

__all__ = [
    "BACKENDS",
    "OTHER",
    "PRECISIONS",
    "Axis",
    "BilinearCost",
    "CacheEntry",
    "SquaredKernelLink",
    "Geometry",
    "Gibbs",
    "HostLoop",
    "Kernel",
    "LearnedTemperature",
    "Link",
    "LogDecay",
    "LogHinge",
    "LogKernel",
    "LogFunction",
    "LogPower",
    "LogSoftplus",
    "LabelMask",
    "MatrixLogKernel",
    "RationalQuadratic",
    "Relaxation",
    "Step",
    "StudentT",
    "TemperatureLike",
    "SimilarityMask",
    "CostWeightedLink",
    "Weight",
    "backend",
    "map_row_blocks",
    "check_not_in_torch_func",
    "choose",
    "constant",
    "solve_fixed_point",
    "explain",
    "transport_cost",
    "scalar_parameter",
    "log_size",
    "log_sums",
    "normalize",
    "parameter_value",
    "precision",
    "disable_autocast_in_backward",
    "remembered",
    "run_host_loop",
    "scale",
    "is_in_torch_func",
    "without_autocast",
]
