import subprocess
import sys
from pathlib import Path

import pytest

import contraport
from contraport._utils import public_names
from tests import wheel

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


def with_core_only(code: str) -> subprocess.CompletedProcess[str]:
    code = CORE_ONLY.format(extras=EXTRAS) + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_a_name_is_the_same_each_time_it_is_asked_for_and_is_what_its_module_has():
    first = {name: getattr(contraport, name) for name in contraport.__all__}
    assert {name: getattr(contraport, name) for name in contraport.__all__} == first
    assert {name: public_names.load_public_name(name) for name in contraport.__all__} == first


def test_what_there_is_is_what_is_listed():
    assert sorted(dir(contraport)) == sorted(contraport.__all__)
    assert {"nt_xent", "Objective", "train", "UsageError", "__version__", "engine"} < set(contraport.__all__)
    with pytest.raises(AttributeError, match="no attribute 'gca_uott'; did you mean 'gca_uot'"):
        _ = contraport.gca_uott
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = contraport.nothing


def test_a_room_is_there_without_an_import_of_its_own():
    told = "import contraport; print(contraport.runs.Run.__name__, contraport.data.from_arrays.__name__)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Run from_arrays\n", "")
    assert "runs" not in dir(contraport)


def test_with_core_dependencies_only_a_name_that_needs_an_extra_names_it():
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
    done = with_core_only(code)
    assert done.returncode == 0, done.stderr
    needing = {
        name: public_names.EXTRA_BY_PACKAGE.get(f"{place}.".split(".")[1])
        for name, place in public_names.module_by_name().items()
    }
    del needing["doctor"]  # it looks for what is there
    assert {"train", "demo", "export", "SNE", "report"} < {name for name, extra in needing.items() if extra}
    for name, extra in needing.items():
        if not extra:
            continue
        line = next(
            line for line in done.stdout.splitlines() if line.startswith(f"contraport.{name} needs the package '")
        )
        assert line.endswith(f"': pip install 'contraport[{extra}]'.")
    assert "all: contraport." in done.stdout
    assert "\ngca-uot\n    " in done.stdout


def test_with_core_dependencies_only_a_verb_names_the_extra():
    done = with_core_only("from contraport.cli import main; sys.exit(main(['evaluate', 'runs/a']))")
    assert done.returncode == 2
    assert "evaluate needs the package" in done.stderr
    assert "contraport[train,report]" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["trian"]])
def test_nothing_heavy_is_imported_to_say_what_there_is(arguments):
    code = f"""
import sys
from contraport.cli import main
main({arguments})
heavy = {{"torch", "numpy", "timm", "sklearn", "jsonargparse", "rich"}} & set(sys.modules)
sys.exit(f"imported: {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_wheel_is_tried_with_what_its_environment_has_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "stray_package.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    assert "No module named 'stray_package'" in wheel.run(tmp_path, sys.executable, "-c", "import stray_package").stderr
