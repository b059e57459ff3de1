"""Log messages and warnings before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contraport.runs import as_run_folder
from contraport.training import train
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings
from contraport.training.start_warnings import are_view_features_identical


def train_and_list_log_lines(folder: Path, data: Path, **options: Any) -> list[tuple[str, str]]:
    """Train, and return level and text of the log lines before the first step."""
    run = train(**{"data": data, "epochs": 1, "batch_size": 40, **options}, out=folder / "run", progress=False)
    lines = [line.split(" ", 3)[2:] for line in as_run_folder(run).log_path.read_text().splitlines()]
    return [(level, text) for level, text in lines if level in ("INFO", "WARNING")][1:-1]


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(120, 4)))
    return tmp_path / "data.npy"


def test_logs_items_steps_and_dropped_items(data_file: Path, tmp_path: Path) -> None:
    assert train_and_list_log_lines(tmp_path, data_file, epochs=3, test_fraction=0.1) == [
        ("INFO", "12 items held out for evaluation (test_fraction)"),
        ("INFO", "6 steps: 3 epochs of 2 batches of 40 items; 28 items dropped per epoch, chosen at random"),
        (
            "WARNING",
            "few steps: 6. Use batch_size=32, epochs=334 for 1,002 steps, 3 per epoch",
        ),
    ]


def test_warns_of_a_view_that_is_the_same_in_all_items(data_file: Path, tmp_path: Path) -> None:
    rows = np.load(data_file)
    np.savez(tmp_path / "constant.npz", view0=rows, view1=np.ones((120, 3)))
    lines = train_and_list_log_lines(tmp_path, tmp_path / "constant.npz", epochs=100)
    assert [text.startswith("view 'view1' ") for level, text in lines if level == "WARNING"] == [True]
    np.savez(tmp_path / "constant.npz", view0=rows, view1=rows[:, :3])
    lines = train_and_list_log_lines(tmp_path / "other", tmp_path / "constant.npz", epochs=100)
    assert [text for level, text in lines if level == "WARNING"] == []


def test_logs_steps_with_accumulation(data_file: Path, tmp_path: Path) -> None:
    lines = train_and_list_log_lines(tmp_path, data_file, batch_size=32, grad_accum_steps=2)
    assert ("INFO", "2 steps: 1 epoch of 3 batches of 32 items, 2 per step") in lines


def test_logs_the_test_split_of_the_data(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 4))
    np.savez(tmp_path / "data.npz", x=rows, x_test=rows)
    lines = train_and_list_log_lines(
        tmp_path, tmp_path / "data.npz", batch_size=2, epochs=5, objective="byol", predictor=True
    )
    assert lines == [
        ("INFO", "evaluation uses the test split of the data"),
        ("INFO", "200 steps: 5 epochs of 40 batches of 2 items"),
    ]


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ("question,answer", {}, True),
        ("question,answer", {"temperature": 0.1}, False),
        ("question,answer", {"recipe": "gca-ince"}, False),
        ("question", {}, False),
    ],
    ids=str,
)
def test_suggests_options_for_pairs_of_texts(
    tmp_path: Path, columns: str, options: dict[str, Any], expected: bool
) -> None:
    rows = [",".join(f"word{number} of {name}" for name in columns.split(",")) for number in range(80)]
    (tmp_path / "texts.csv").write_text("\n".join([columns, *rows]))
    lines = train_and_list_log_lines(tmp_path, tmp_path / "texts.csv", **options)
    suggested_options = "objective='info-nce', temperature=0.05, projection=0"
    assert any(level == "WARNING" and suggested_options in text for level, text in lines) is expected


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ("question,answer", {}, True),
        ("question,answer", {"shared_encoder": False, "audit": True, "batch_size": 20}, True),
        ("question,answer", {"mismatch": 0.2}, False),
        ("question,answer", {"encoder": "weighted-ngrams"}, False),
        ("question,answer", {"encoder": "short-ngrams"}, False),
        ("question", {}, False),
    ],
    ids=str,
)
def test_logs_the_recall_of_word_counts_for_pairs_of_texts(
    tmp_path: Path, columns: str, options: dict[str, Any], expected: bool
) -> None:
    # In three quarters of the pairs, both texts share a word that no other pair has; the others share no word.
    letters = {name: chr(ord("a") + place) for place, name in enumerate(columns.split(","))}
    rows = [
        [f"{number:03} {number:03}" if number % 4 else letter * 5 for letter in letters.values()]
        for number in range(80)
    ]
    (tmp_path / "texts.csv").write_text("\n".join([columns, *map(",".join, rows)]))
    notes = [
        text
        for _, text in train_and_list_log_lines(tmp_path, tmp_path / "texts.csv", test_fraction=0, **options)
        if "recall@1" in text
    ]
    assert len(notes) == expected
    assert not expected or ("75.0%" in notes[0] and " 80 " in notes[0] and "weighted-ngrams" in notes[0])


@pytest.mark.parametrize(
    ("options", "warning_text"),
    [
        ({"batch_size": 31}, "30 negatives"),
        ({"batch_size": 31, "momentum": 0.9}, "30 negatives"),
        ({"batch_size": 32}, None),
        ({"batch_size": 31, "objective": "dclw"}, "30 negatives"),
        ({"batch_size": 31, "objective": "vic-reg"}, None),
        ({"batch_size": 31, "recipe": "moco"}, None),
        ({"batch_size": 31, "recipe": "byol"}, None),
        ({"batch_size": 31, "recipe": "predictive", "views": 2}, None),
        ({"recipe": "swav", "prototypes": 41}, "40 items for 41 prototypes"),
        ({"recipe": "swav", "prototypes": 40}, None),
    ],
    ids=str,
)
def test_warns_of_small_batches(
    data_file: Path, tmp_path: Path, options: dict[str, Any], warning_text: str | None
) -> None:
    warnings = [
        text
        for level, text in train_and_list_log_lines(tmp_path, data_file, **options)
        if level == "WARNING" and "steps" not in text
    ]
    assert len(warnings) == (warning_text is not None)
    assert warning_text is None or warning_text in warnings[0]


@pytest.mark.parametrize(
    ("options", "is_identical"),
    [
        ({"encoder": "mlp", "augment": "none"}, True),
        ({"encoder": "mlp"}, False),
        ({"data": ["a red bag", "a shoe", "two hats"] * 20, "augment": "none"}, False),  # the text encoder has dropout
        ({"data": ["a red bag", "a shoe", "two hats"] * 20, "recipe": "simcse", "freeze": True}, True),
    ],
    ids=["no augmentation", "augmentation", "dropout", "frozen"],
)
def test_warns_of_identical_views(data_file: Path, tmp_path: Path, options: dict[str, Any], is_identical: bool) -> None:
    if options.get("freeze"):
        options["init"] = train(data=options["data"], epochs=1, out=tmp_path / "initial", progress=False).path
    lines = train_and_list_log_lines(tmp_path, options.pop("data", data_file), **options)
    assert any("augment='none'" in text for _, text in lines) == is_identical


def test_views_are_identical_changes_no_state(data_file: Path, tmp_path: Path) -> None:
    settings = Settings(data=str(data_file), encoder="mlp", augment="none", batch_size=40)
    components = build_components(settings)
    before = {name: value.clone() for name, value in components.module.state_dict().items()}
    state = torch.get_rng_state()
    assert are_view_features_identical(components.module, components.dataset)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in components.module.state_dict().items())
    assert all(part.training for part in components.module.model.modules())
