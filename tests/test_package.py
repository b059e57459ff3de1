import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import contraport
from contraport._utils import lazy_imports
from tests import TIMEOUT, wheel

CORE_ONLY = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {extras}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
EXTRAS = [
    "timm", "torchvision", "kornia", "torchmetrics", "sklearn", "safetensors", "huggingface_hub",
    "jsonargparse", "docstring_parser", "PIL", "jinja2", "pyarrow", "yaml", "rich", "threadpoolctl", "matplotlib",
    "scipy", "pandas", "onnx",
]  # fmt: skip


def run_with_core_only(code: str) -> subprocess.CompletedProcess[str]:
    code = CORE_ONLY.format(extras=EXTRAS) + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)


def test_public_names_load_the_same_objects():
    first = {name: getattr(contraport, name) for name in contraport.__all__}
    assert {name: getattr(contraport, name) for name in contraport.__all__} == first
    assert {name: lazy_imports.load_public_name(name) for name in contraport.__all__} == first


def test_dir_lists_public_names_and_errors_suggest_the_nearest():
    assert sorted(dir(contraport)) == sorted(contraport.__all__)
    assert {"nt_xent", "Objective", "train", "UsageError", "__version__", "engine"} < set(contraport.__all__)
    with pytest.raises(AttributeError, match="no attribute 'gca_uott'; did you mean 'gca_uot'"):
        _ = contraport.gca_uott
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = contraport.nothing


@pytest.mark.parametrize(("old", "new"), lazy_imports.CURRENT_NAME_BY_DEPRECATED.items())
def test_deprecated_names_still_work_with_a_warning(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(contraport), old, raising=False)
    with pytest.warns(FutureWarning, match=new):
        assert getattr(contraport, old) is getattr(contraport, new)
    assert old not in dir(contraport)


def test_subpackages_are_attributes():
    code = "import contraport; print(contraport.runs.Run.__name__, contraport.data.from_arrays.__name__)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (completed.stdout, completed.stderr) == ("Run from_arrays\n", "")
    assert "runs" not in dir(contraport)


def test_errors_name_the_extra_of_a_public_name():
    code = """
import torch, contraport
z = torch.randn(4, 3)
contraport.gca_uot()(z, z)
for name in dir(contraport):
    try:
        getattr(contraport, name)
    except contraport.UsageError as error:
        print(error)
try:
    from contraport import *
except contraport.UsageError as error:
    print("all:", error)
from contraport.cli import main
sys.exit(main(["list", "objectives"]))
"""
    completed = run_with_core_only(code)
    assert completed.returncode == 0, completed.stderr
    extras = {
        name: lazy_imports.EXTRA_BY_SUBPACKAGE.get(f"{module}.".split(".")[1])
        for name, module in lazy_imports.map_public_names_to_modules().items()
    }
    del extras["doctor"]  # runs without its optional packages
    assert {"train", "demo", "export", "SNE", "report"} < {name for name, extra in extras.items() if extra}
    for name, extra in extras.items():
        if not extra:
            continue
        line = next(
            line for line in completed.stdout.splitlines() if line.startswith(f"contraport.{name} needs the package '")
        )
        assert line.endswith(f"': pip install 'contraport[{extra}]'.")
    assert "all: contraport." in completed.stdout
    assert "\ngca-uot  " in completed.stdout


def test_errors_name_the_extra_of_a_command():
    completed = run_with_core_only("from contraport.cli import main; sys.exit(main(['evaluate', 'runs/a']))")
    assert completed.returncode == 2
    assert "evaluate needs the package" in completed.stderr
    assert "contraport[train,report]" in completed.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["trian"]])
def test_help_imports_nothing_heavy(arguments):
    code = f"""
import sys
from contraport.cli import main
main({arguments})
heavy = {{"torch", "numpy", "timm", "sklearn", "jsonargparse", "rich"}} & set(sys.modules)
sys.exit(f"imported: {{heavy}}" if heavy else 0)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    assert completed.returncode == 0, completed.stderr


def test_wheel_runs_without_packages_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "stray_package.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    assert "No module named 'stray_package'" in wheel.run(tmp_path, sys.executable, "-c", "import stray_package").stderr


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [
        ("engine", "explain", "explain_backend"),
        ("engine", "scale", "run_half_steps"),
        ("engine", "transport_cost", "fixed_plan_row_costs"),
        ("engine", "row_transport_costs", "fixed_plan_row_costs"),
        ("engine", "exchange_dtype", "communication_dtype"),
        ("engine", "gather_dtype", "communication_dtype"),
        ("engine", "log_of_size", "traceable_log"),
        ("engine", "LogOnePlusHinge", "ScaledLog1p"),
        ("engine", "LogPower", "ScaledLog"),
        ("engine", "solve_fixed_point", "run_sinkhorn_to_convergence"),
        ("distributed", "local_batch", "use_local_batch"),
        ("distributed", "first_non_none", "first_non_none_across_ranks"),
        ("plots", "arrow_maps", "barycentric_maps_1d"),
        ("plots", "neighbors", "nearest_items"),
        ("objectives", "Coordinates", "CoordinatePairs"),
        ("objectives", "Marginals", "LogMarginals"),
        ("objectives", "PhaseShift", "RotatedFirstView"),
        ("objectives", "SignedPairwise", "PairwiseSum"),
        ("objectives", "ExactPlan", "DensePlan"),
        ("theory", "optimal_couplings", "compute_couplings_1d"),
        ("theory", "Couplings", "Couplings1D"),
    ],
)
def test_deprecated_names_of_packages_still_work_with_a_warning(package: str, old: str, new: str) -> None:
    module = importlib.import_module(f"contraport.{package}")
    with pytest.warns(FutureWarning, match=new):
        assert getattr(module, old) is getattr(module, new)
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_deprecated_names_of_a_geometry_still_work_with_a_warning():
    engine = contraport.engine
    geometry = engine.Geometry(engine.Gibbs()(torch.eye(2), torch.eye(2)), has_no_empty_row_or_column=True)
    with pytest.warns(FutureWarning, match="has_finite_log_sums"):
        assert geometry.has_positive_sums is True
    for part in (geometry, geometry.log_kernel):
        with pytest.warns(FutureWarning, match="to_custom_op_input"):
            assert part.reduce_to_pass_inputs().shape == (2, 2)
    with pytest.warns(FutureWarning, match="cost_unit"):
        assert geometry.log_kernel.cost_scale == 0.5
    with pytest.warns(FutureWarning, match="cost_unit"):
        assert engine.MatrixLogKernel(torch.eye(2), cost_scale=2.0).cost_unit == 2.0
