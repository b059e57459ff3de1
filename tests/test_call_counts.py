"""Upper bounds on the size of the source, and on the Python calls of a loss, of `train` and of `evaluate`.

Calls are counted in a second call, with modules imported and constants cached.
"""

import sys
import tomllib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import contraport

SOURCE = str(Path(contraport.__file__).parent)
MODULES = {path: path.read_text("utf-8").count("\n") for path in Path(SOURCE).rglob("*.py")}


@contextmanager
def count_calls(code_attribute="co_qualname"):
    """Count the calls of the block, by the qualified name of the function or another attribute of its code."""
    calls = Counter()

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            calls[getattr(frame.f_code, code_attribute)] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def train(out):
    return contraport.train(data="digits", max_items=300, epochs=1, out=out, progress=False, threads=1, device="cpu")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_calls_of_a_loss():
    z0, z1 = torch.randn(2, 128, 16)
    loss = contraport.nt_xent()
    loss(z0, z1)
    with count_calls() as calls:
        loss(z0, z1)
    with count_calls("co_filename") as files:
        loss(z0, z1)
    assert calls.total() <= 90
    assert len(files) <= 18


def test_calls_of_train_to_its_first_step(finished_run, tmp_path):
    with count_calls() as calls:
        hook = register_optimizer_step_pre_hook(lambda *_: sys.setprofile(None))
        try:
            train(tmp_path / "run")
        finally:
            hook.remove()
    assert calls.total() <= 1_900
    assert calls["build_objective"] == 1
    assert calls["Settings.__post_init__"] == 1


def test_calls_of_evaluate(finished_run):
    contraport.evaluate(finished_run.path, progress=False)
    with count_calls() as calls:
        contraport.evaluate(finished_run.path, progress=False)
    assert calls.total() <= 4_290
    assert calls["build_objective"] == 1
    assert calls["Settings.__post_init__"] == 1


def test_files_and_lines_of_the_source():
    assert len(MODULES) <= 295
    assert sum(MODULES.values()) <= 63_900


def test_module_names_are_unique():
    """Except those that have the same role in each package."""
    names = Counter(path.stem for path in MODULES if path.stem not in ("__init__", "command_options", "page"))
    assert [name for name, number in names.items() if number > 1] == []


def test_few_modules_are_short():
    """Modules under 40 lines, apart from entries of registries."""
    entry_points = ("__init__.py", "__main__.py", "_version.py")
    short = [path for path, lines in MODULES.items() if lines < 40 and path.name not in entry_points]
    assert len(short) <= 5, short


def test_import_layers():
    contracts = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    assert len(contracts["contracts"][0]["layers"]) <= 8
