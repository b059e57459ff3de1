"""Random streams: each use of randomness has its own purpose, and streams are uncorrelated."""

import ast
from collections import Counter
from itertools import combinations
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import contraport
from contraport import theory
from contraport.data.views.custom_transforms import CustomTransform
from contraport.embedding import fixed_seed
from contraport.estimators import TSNE
from contraport.seeding import (
    derive_128_bit_seed,
    derive_torch_seed,
    numpy_generator,
    seed_torch_generators,
    torch_generator,
)
from contraport.training.components.model_builder import seeded_weight_initialization

SOURCE = Path(contraport.__file__).parent
STREAMS = {"derive_128_bit_seed", "numpy_generator", "torch_generator", "derive_torch_seed"}
FORBIDDEN = {"default_rng", "manual_seed", "RandomState", "SeedSequence"}


def _iter_calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            yield name, node


def _purposes_of_module(path):
    tree, names = ast.parse(path.read_text("utf-8")), set()
    for name, call in _iter_calls(tree):
        if name in STREAMS and call.args and isinstance(call.args[0], ast.Constant):
            names.add(call.args[0].value)
        names |= {keyword.value.value for keyword in call.keywords if _is_purpose(keyword.arg, keyword.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            defaults = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            names |= {value.value for argument, value in defaults if _is_purpose(argument.arg, value)}
    return names


def _is_purpose(name, value):
    return name == "purpose" and isinstance(value, ast.Constant) and isinstance(value.value, str)


PURPOSES = sorted({purpose for path in sorted(SOURCE.rglob("*.py")) for purpose in _purposes_of_module(path)})


def test_purposes_are_found():
    assert {"audit.decoys", "data.mismatch", "data.split", "data.order", "bootstrap.items"} <= set(PURPOSES)


def test_each_purpose_has_one_use():
    uses = Counter(purpose for path in sorted(SOURCE.rglob("*.py")) for purpose in _purposes_of_module(path))
    assert [purpose for purpose, times in uses.items() if times > 1] == []


def test_generators_are_created_only_in_the_seeding_module():
    forbidden_calls = [
        f"{path.relative_to(SOURCE)}:{call.lineno}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "seeding.py"
        for name, call in _iter_calls(ast.parse(path.read_text("utf-8")))
        if name in FORBIDDEN
    ]
    assert forbidden_calls == []


@pytest.mark.parametrize("keys", [(), (0,), (0, 1600), (3, 7)])
def test_streams_of_all_purposes_are_uncorrelated(keys):
    items = 2_000
    draws = {purpose: numpy_generator(purpose, *keys).permutation(items) for purpose in PURPOSES}
    draws |= {f"{purpose} (uniform)": numpy_generator(purpose, *keys).random(items) for purpose in PURPOSES}
    draws |= {
        f"{purpose} (torch)": torch.randperm(items, generator=torch_generator(purpose, *keys)).numpy()
        for purpose in PURPOSES
    }
    centered = {name: (values - values.mean()) / values.std() for name, values in draws.items()}
    for one, other in combinations(draws, 2):
        same_purpose = one.split(" ")[0] == other.split(" ")[0]
        if not same_purpose:
            assert abs(centered[one] @ centered[other]) / items < 6 / items**0.5, (one, other)
            first = len(np.intersect1d(draws[one][:200], draws[other][:200]))
            assert first < 70, (one, other)  # 20 are expected for independent permutations


def test_only_model_weights_use_a_bare_seed():
    bare = [
        path.name
        for path in sorted(SOURCE.rglob("*.py"))
        for name, call in _iter_calls(ast.parse(path.read_text("utf-8")))
        if name == "seed_torch_generators" and not isinstance(call.args[0], ast.Call)
    ]
    assert sorted(bare) == ["custom_transforms.py", "model_builder.py"]  # the first has hashed a purpose before


def test_keys_are_not_padded():
    assert derive_128_bit_seed("a", 1) != derive_128_bit_seed("a", 1, 0) != derive_128_bit_seed("a", 1, 0, 0)
    assert derive_128_bit_seed("a") != derive_128_bit_seed("a", 0)


def test_numpy_integers_are_keys():
    assert derive_torch_seed("a", np.int64(3)) == derive_torch_seed("a", 3)


def test_split_equals_that_of_earlier_versions():
    assert numpy_generator("data.split").permutation(10).tolist() == np.random.default_rng(0).permutation(10).tolist()


def test_work_on_the_cpu_does_not_seed_the_generators_of_gpus(monkeypatch):
    """Only generators of participating devices are restored afterwards."""
    seed_gpus = Mock()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seed_gpus)
    theory.compare_collapse(torch.randn(20, 6), features=4, iterations=0)
    theory.train_on_five_gaussians(iterations=0)
    TSNE(perplexity=5, max_iter=2, random_state=0).fit(np.random.default_rng(0).normal(size=(30, 3)))
    with fixed_seed(0, torch.device("cpu")):
        torch.rand(3)
    items = torch.rand(2, 1, 4, 4)
    CustomTransform(torch.rand_like, takes_batches=True).transform_whole_batch(items, None)
    CustomTransform(torch.rand_like, takes_batches=False).draw_views_per_item(items, 2, [[0, 0, 0], [0, 0, 1]])
    with seeded_weight_initialization(0):
        torch.rand(3)
    assert not seed_gpus.called
    seed_torch_generators(0)
    assert seed_gpus.called
