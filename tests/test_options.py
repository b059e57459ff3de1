"""Options: one declaration gives the keyword, the flag, the check and the help; deprecated names still work."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from contraport._utils.formatting import use_flag_style
from contraport.cli.parsing import parse_command_line
from contraport.comparison.command_options import CompareOptions
from contraport.comparison.grid_builder import build_grid
from contraport.estimators import ContrastiveEncoder
from contraport.objectives import Layout
from contraport.options import Command, accept_deprecated_keywords, int_in_range, keep_deprecated_attributes, option
from contraport.runs import WritableRun
from contraport.similarity_search.command_options import DuplicateSearchOptions
from contraport.training.config import Settings
from tests.errors import raises_usage_error


@dataclass(frozen=True, kw_only=True)
class ExtendedSettings(Settings):
    patience: int | None = option(
        None, "Epochs without improvement.", check=int_in_range(2), group="early stopping", deprecated_name="wait"
    )


COMMAND = Command(ExtendedSettings, "nowhere:learn", "Learn.")


@COMMAND.with_option_parameters
def learn(options: dict[str, Any]) -> ExtendedSettings:
    """Learn.

    Raises:
        UsageError: an invalid setting.
    """
    return ExtendedSettings(**options)


def test_new_option_is_a_keyword() -> None:
    assert learn(patience=3, epochs=2) == ExtendedSettings(patience=3, epochs=2)
    assert "    patience: Epochs without improvement.\n\nRaises:" in (inspect.getdoc(learn) or "")


def test_new_option_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_command_line(COMMAND, ["--patience", "3"], prog="learn") == {"patience": 3}
    with raises_usage_error("patience.invalid", "much"):
        parse_command_line(COMMAND, ["--patience", "much"], prog="learn")
    assert parse_command_line(COMMAND, ["--help"], prog="learn") is None
    assert "early stopping: --patience PATIENCE Epochs without improvement." in " ".join(
        capsys.readouterr().out.split()
    )


def test_new_option_checks_its_values() -> None:
    with raises_usage_error("patience.invalid", 1):
        learn(patience=1)


@pytest.mark.parametrize(
    ("options_class", "values"),
    [
        (Settings, {"epochs": np.int64(5), "lr": np.float64(0.5), "seed": np.uint8(2), "temperature": np.float32(0.5)}),
        (Settings, {"objective": "iot", "objective_settings": {"iterations": np.int64(3), "lam": np.float32(0.5)}}),
        (Settings, {"test_fraction": np.float32(0.25)}),
        (CompareOptions, {"seeds": np.int32(2), "validation": np.float32(0.25), "train": {"epochs": np.int64(2)}}),
        (partial(DuplicateSearchOptions, "features.npz"), {"threshold": np.float32(0.5)}),
    ],
)
def test_numbers_of_numpy_become_numbers_of_python(options_class: Any, values: dict[str, Any]) -> None:
    options = options_class(**values)
    plain = {name: getattr(options, name) for name in values}
    assert plain == values
    assert yaml.safe_load(yaml.safe_dump(plain)) == values  # which cannot represent numbers of NumPy
    if options_class is Settings:
        assert {name: options.to_config()[name] for name in values} == values


def test_functions_receive_numbers_of_python() -> None:
    assert type(learn(patience=np.int64(3)).patience) is int
    with raises_usage_error("patience.invalid", 1):
        learn(patience=np.int64(1))
    array = np.arange(3.0)
    data = learn(data=(array, [array])).data
    assert data[0] is array
    assert data[1][0] is array


@pytest.mark.parametrize("name", ["out", "data", "root", "teacher"])
def test_rejects_an_empty_path(name: str) -> None:
    with raises_usage_error(f"{name}.empty"):
        Settings(**{"data": "digits", name: ""})


def test_deprecated_keyword_works_with_one_warning() -> None:
    with pytest.warns(FutureWarning, match=r"wait.*patience") as caught:
        assert learn(wait=3).patience == 3  # type: ignore[call-arg]
    assert [Path(warning.filename).name for warning in caught] == ["test_options.py"]
    with raises_usage_error("patience.conflict", "wait"):
        learn(wait=3, patience=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("words", [["--wait", "3"], ["--wait=3"], ["--config", "old.yaml"]])
def test_deprecated_flag_and_config_entry_work_with_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text("wait: 3\nmomentum: 0.99:1:cosine\n")
    with use_flag_style():
        options = parse_command_line(COMMAND, words, prog="learn")
    assert options is not None
    assert options["patience"] == 3
    assert options.get("momentum", "0.99:1:cosine") == "0.99:1:cosine"
    (record,) = caplog.records
    assert "--wait" in record.getMessage()
    assert "--patience" in record.getMessage()


@pytest.mark.parametrize("words", [["--batch-size", "8"], ["--batch-size=8"]])
def test_flag_with_dashes_is_read(words: list[str]) -> None:
    assert parse_command_line(COMMAND, words, prog="learn") == {"batch_size": 8}


def test_runs_and_suites_with_deprecated_names_are_read(tmp_path: Path) -> None:
    run = WritableRun.create(tmp_path / "run", {"data": "digits", "opt": "sgd", "items": 50, "weights": None})
    assert run.settings().optimizer == "sgd"
    assert run.settings().max_items == 50
    (tmp_path / "old.yaml").write_text(
        'data: [digits]\nitems: 64\nmeasures: [knn]\ntrain: {sched: constant}\nobjectives: ["info-nce:opt=sgd"]\n'
    )
    with pytest.warns(FutureWarning):
        grid = build_grid({"suite": tmp_path / "old.yaml", "out": tmp_path})
    assert grid.common_options == {"lr_scheduler": "constant", "max_items": 64}
    assert grid.rows[0].options == {"objective": "info-nce", "optimizer": "sgd"}
    assert list(grid.compare_options.metrics) == ["knn"]


def test_rejects_an_override_of_a_deprecated_name() -> None:
    """An override in a subclass written for an earlier version would silently have no effect."""

    @keep_deprecated_attributes(width="breadth")
    class Box:
        subclasses: tuple[str, ...] = ()
        breadth = 1

        def __init_subclass__(cls) -> None:
            Box.subclasses += (cls.__name__,)

    with raises_usage_error("Old.width.renamed", "Box", "breadth"):
        type("Old", (Box,), {"width": 2})
    new = type("New", (Box,), {"breadth": 2})
    with pytest.warns(FutureWarning, match="New.breadth|Box.breadth"):
        assert new().width == 2
    assert Box.subclasses == ("Old", "New")
    with raises_usage_error("Squares.view_sizes.renamed", "infer_view_sizes"):
        type("Squares", (Layout,), {"view_sizes": lambda *_: (2, 2)})


def test_dir_lists_no_deprecated_attribute() -> None:
    """torch.jit reads every name in dir(), which would warn of names that nobody used."""

    @keep_deprecated_attributes(width="breadth")
    class Box:
        breadth = 1

    assert "breadth" in dir(Box())
    assert "width" not in dir(Box())


def test_deprecated_estimator_parameter_works_with_a_warning() -> None:
    encoder = ContrastiveEncoder(epochs=1, opt="sgd", random_state=0)
    with pytest.warns(FutureWarning, match="optimizer"):
        encoder.fit(np.random.default_rng(0).normal(size=(30, 5)))
    assert "momentum" in encoder._optimizer.param_groups[0]


def test_rejects_a_deprecated_keyword_beside_its_new_name():
    @accept_deprecated_keywords(wide="width")
    def area(width):
        return width * width

    with pytest.warns(FutureWarning, match="width"):
        assert area(wide=3) == 9
    with pytest.raises(TypeError, match="wide"):
        area(wide=3, width=4)
