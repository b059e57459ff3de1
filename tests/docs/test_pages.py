"""Code on pages: blocks of Python run, commands parse, and commands of guides run with tiny settings."""

import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image

import contraport
from contraport.cli import main
from contraport.cli.commands import get_command
from contraport.cli.parsing import parse_command_line
from contraport.metrics import METRICS
from tests.docs.pages import PAGES, code_blocks

WITH_OTHER_LIBRARIES = "docs/moving/"  # tested with the libraries in tests/integrations/test_pages.py
PYTHON = [name for name, page in PAGES.items() if any(not block.reason for block in code_blocks(page, "python"))]
PYTHON = [
    name
    for name in PYTHON
    if WITH_OTHER_LIBRARIES not in name or name.endswith(("solo-learn.md", "cebra.md", "cleanlab.md"))
]
SHELL = [name for name, page in PAGES.items() if code_blocks(page, "sh")]
RUN = [name for name in SHELL if name.startswith(("docs/guides/", "docs/start", "docs/moving/"))]
TINY = {
    "train": ["--epochs", "1", "--batch_size", "8", "--max_items", "48", "--device", "cpu", "--overwrite"],
    "cluster": ["--k", "3"],
}
FIRST = {
    "docs/guides/export.md": [
        ["export", "runs/photos", "--out", "photos.onnx"],
        ["export", "runs/photos", "--format", "safetensors", "--out", "photos-model"],
    ],
    "docs/plots.md": [["evaluate", "runs/a"]],
}
"""Commands to run before the Python code of a page."""


@pytest.fixture
def working_folder(documentation_data, tmp_path, monkeypatch):
    """Copy of the data of the documentation as the current folder, for one test."""
    shutil.copytree(documentation_data, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    with patch.dict(METRICS):
        yield tmp_path / "world"


def build_namespace():
    """Return the names that the pages use without definition."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 12)).astype(np.float32)
    y = x[:, :5] + 0.1 * rng.normal(size=(128, 5)).astype(np.float32)
    z0, z1 = torch.randn(2, 64, 16)
    series = rng.normal(size=(64, 2, 32)).astype(np.float32)
    frames = SimpleNamespace(DataFrame=pyarrow.table)  # tests do not require pandas
    options = {
        "contraport": contraport,
        "pandas": frames,
        "blood": x,
        "walk": y,
        "images": x,
        "sounds": y,
        "ears": x,
        "eyes": y,
        "hands": x[:, :7],
        "items": x,
        "X": x,
        "series": series,
    }
    return {**options, "z0": z0, "z1": z1, "x0": z0, "x1": z1, "labels": torch.arange(64) % 4}


@pytest.mark.parametrize("name", PYTHON)
def test_python_of_a_page_runs(name, working_folder):
    torch.manual_seed(0)
    for verb, *args in FIRST.get(name, []):
        assert main([verb, *args]) in (0, None)
    space = build_namespace()
    for block in code_blocks(PAGES[name], "python"):
        if not block.reason:
            exec(compile(block.code, name, "exec"), space)


def test_cebra_recording_is_cut_and_embedded_as_on_the_page():
    page = PAGES["docs/moving/cebra.md"].read_text("utf-8")
    cut = next(code for code in page.split("`") if code.startswith("windows = "))
    embedded = next(line for line in page.splitlines() if line.startswith("+embedding = "))[1:]
    space = {**build_namespace(), "torch": torch, "recording": np.random.default_rng(0).normal(size=(80, 3))}
    exec(f"{cut}\n{embedded.replace('Encoder(', 'Encoder(epochs=1, batch_size=32, ')}", space)
    assert space["embedding"].shape == (80 - 15, 3)


def test_a_photo_prepared_as_in_the_guide_has_the_features_of_embed(working_folder):
    pytest.importorskip("onnxruntime")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)).save("photos/cats/7.jpg")
    Path("photos/cats/7.png").unlink()
    contraport.export("runs/photos", out="photos.onnx")
    contraport.embed("runs/photos", data="photos", out="photos.npz", progress=False)
    space = build_namespace()
    for block in code_blocks(PAGES["docs/guides/export.md"], "python")[:2]:
        exec(compile(block.code.replace("7.png", "7.jpg"), "export.md", "exec"), space)
    embedded = np.load("photos.npz")
    (place,) = np.flatnonzero(embedded["keys"] == "photos/cats/7.jpg")
    assert np.allclose(space["features"][0], embedded["features"][place], atol=1e-5)


@pytest.mark.parametrize("name", SHELL)
def test_commands_of_a_page_parse(name):
    for block in code_blocks(PAGES[name], "sh"):
        for verb, *args in commands(block.code):
            if verb in ("--version", "--help"):
                continue
            result = get_command(verb)
            arguments = parse_command_line(result, args, prog=f"contraport {verb}")
            if arguments is not None:
                result.options_class(**(result.resolve_options(arguments) if result.resolve_options else arguments))


@pytest.mark.parametrize("name", RUN)
def test_commands_of_a_guide_run(name, working_folder, capsys):
    for block in code_blocks(PAGES[name], "sh"):
        for verb, *args in commands(block.code) if not block.reason else []:
            words = ["small-cnn" if word.startswith("resnet") else word for word in args]
            assert main([verb, *words, *TINY.get(verb, [])]) in (0, None), capsys.readouterr().err


def commands(code: str) -> list[list[str]]:
    """Return the words of the lines that call contraport, after its name."""
    lines = [shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines()]
    result = []
    for words in filter(None, lines):
        if words[0] == "contraport":
            result.append(words[1:])
        elif words[0] in ("torchrun", "srun") and "contraport" in words:
            result.append(words[words.index("contraport") + 1 :])
    return [words[: words.index(">")] if ">" in words else words for words in result]
