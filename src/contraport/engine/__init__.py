"""Engine: differentiable sums over all pairs, computed by interchangeable backends."""

from contraport.engine.autograd_utilities import (
    autocast_disabled,
    check_not_in_torch_func,
    checkpoint_row_blocks,
    disable_autocast_in_grad_fn,
    is_in_torch_func,
)
from contraport.engine.backends import (
    BACKENDS,
    EXCHANGES,
    PRECISION_DTYPES,
    backend,
    choose_backend_name,
    communication_dtype,
    current_exchange,
    exchange,
    explain_backend,
    precision,
)
from contraport.engine.constant_tensor_cache import (
    WriteDetectingCacheEntry,
    cached_until_result_written,
    constant_vector,
    traceable_log,
)
from contraport.engine.custom_op import HostLoop, run_host_loop
from contraport.engine.half_steps import HalfStepSpec, Relaxation
from contraport.engine.kernel_link_functions import (
    Link,
    LinkPlusLogCost,
    LinkTimesTwo,
    LogOfFunction,
    LogSoftplus,
    PolynomialTailLink,
    ScaledLog,
    ScaledLog1p,
)
from contraport.engine.kernels import (
    BilinearCost,
    Gibbs,
    InitialTemperature,
    Kernel,
    RationalQuadratic,
    StudentT,
    TemperatureLike,
    create_shardable_scalar_parameter,
    gather_scalar_parameter,
    normalize,
    normalize_rows_by_max_then_norm,
)
from contraport.engine.late_interaction import LateInteraction
from contraport.engine.log_kernels import Indices, LinearOperator, LogKernel, MatrixLogKernel
from contraport.engine.masked_geometry import Geometry, LabelExclusion, SimilarityExclusion
from contraport.engine.operations import (
    column_log_sums,
    fixed_plan_row_costs,
    row_log_sums,
    run_half_steps,
    run_sinkhorn_to_convergence,
)
from contraport.engine.pair_passes import OTHER_AXIS, AxisName
from contraport.engine.ring import RingLogKernel, Shards
from contraport.options import keep_deprecated_module_names

__all__ = [
    "BACKENDS", "EXCHANGES", "OTHER_AXIS", "PRECISION_DTYPES", "AxisName", "BilinearCost", "Geometry", "Gibbs",
    "HalfStepSpec", "HostLoop", "Indices", "InitialTemperature", "Kernel", "LabelExclusion", "LateInteraction",
    "LinearOperator", "Link", "LinkPlusLogCost", "LinkTimesTwo", "LogKernel", "LogOfFunction", "LogSoftplus",
    "MatrixLogKernel", "PolynomialTailLink", "RationalQuadratic", "Relaxation", "RingLogKernel", "ScaledLog",
    "ScaledLog1p", "Shards", "SimilarityExclusion", "StudentT", "TemperatureLike", "WriteDetectingCacheEntry",
    "autocast_disabled", "backend", "cached_until_result_written", "check_not_in_torch_func", "checkpoint_row_blocks",
    "choose_backend_name", "column_log_sums", "communication_dtype", "constant_vector",
    "create_shardable_scalar_parameter", "current_exchange", "disable_autocast_in_grad_fn", "exchange",
    "explain_backend", "fixed_plan_row_costs", "gather_scalar_parameter", "is_in_torch_func", "normalize",
    "normalize_rows_by_max_then_norm", "precision", "row_log_sums", "run_half_steps", "run_host_loop",
    "run_sinkhorn_to_convergence", "traceable_log",
]  # fmt: skip

__getattr__ = keep_deprecated_module_names(
    __name__, Axis="AxisName", explain="explain_backend", scale="run_half_steps", transport_cost="fixed_plan_row_costs",
    row_transport_costs="fixed_plan_row_costs", LearnedTemperature="InitialTemperature", LogDecay="PolynomialTailLink",
    LogFunction="LogOfFunction", PolynomialTail="PolynomialTailLink", HalfStep="HalfStepSpec",
    SquaredKernelLink="LinkTimesTwo", SquareOfKernelLink="LinkTimesTwo", DoubledLink="LinkTimesTwo",
    disable_autocast_in_backward="disable_autocast_in_grad_fn",
    disable_autocast_in_own_backward_node="disable_autocast_in_grad_fn", LabelMask="LabelExclusion",
    SimilarityMask="SimilarityExclusion", log_of_size="traceable_log", gather_dtype="communication_dtype",
    solve_fixed_point="run_sinkhorn_to_convergence", exchange_dtype="communication_dtype",
    parameter_value="gather_scalar_parameter", scalar_parameter="create_shardable_scalar_parameter",
    CostWeightedLink="LinkPlusLogCost", LogPower="ScaledLog", LogHinge="ScaledLog1p", LogOnePlusHinge="ScaledLog1p",
    create_scalar_parameter="create_shardable_scalar_parameter", CacheEntry="WriteDetectingCacheEntry",
    cached="cached_until_result_written", cached_until_written="cached_until_result_written",
)  # fmt: skip
