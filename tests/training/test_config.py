"""Training settings: agreement of options, signatures, docstrings, recipes and the estimator; validation."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, get_type_hints

import docstring_parser
import pytest

from contraport import ContrastiveEncoder, train
from contraport.catalog import RECIPES
from contraport.catalog.data_option_parsers import AUGMENT_NAMES
from contraport.options import matches_type
from contraport.runs import Run, WritableRun
from contraport.schedules import RAMP_FUNCTION_BY_SHAPE
from contraport.training.callbacks.loggers import LOGGER_CLASS_BY_NAME
from contraport.training.config import RECORDED_OPTIONS_BY_NAME, TRAIN_OPTIONS, Settings
from contraport.training.step.step_losses import RECONSTRUCTION_LOSS_BY_NAME
from tests import TIMEOUT
from tests.errors import raises_usage_error


def test_train_has_and_documents_all_settings() -> None:
    parameters = inspect.signature(train).parameters
    assert list(parameters) == list(TRAIN_OPTIONS)
    assert all(parameters[name].default == option.default for name, option in TRAIN_OPTIONS.items())
    assert get_type_hints(train) == {name: option.type for name, option in TRAIN_OPTIONS.items()} | {"return": Run}
    docstring = docstring_parser.parse(inspect.getdoc(train) or "")
    assert {one.arg_name: " ".join((one.description or "").split()) for one in docstring.params} == {
        name: option.help for name, option in TRAIN_OPTIONS.items()
    }
    assert {one.type_name for one in docstring.raises} == {"UsageError", "FloatingPointError", "KeyboardInterrupt"}


def test_train_rejects_unknown_keywords() -> None:
    with pytest.raises(TypeError, match="epoch"):
        train(epoch=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        train("digits", "moco")  # type: ignore[misc]


def test_defaults_are_valid_values() -> None:
    for option in TRAIN_OPTIONS.values():
        option.check_value(option.default)
        assert option.group
        assert option.help.endswith(".")


def test_choices_match_the_registered_names() -> None:
    for name, names in (
        ("augment", AUGMENT_NAMES),
        ("lr_scheduler", RAMP_FUNCTION_BY_SHAPE),
        ("predict", RECONSTRUCTION_LOSS_BY_NAME),
        ("negatives", ("in-batch", "queue", "bank", "mined")),
    ):
        for value in names:
            TRAIN_OPTIONS[name].check_value(value)
        with raises_usage_error(f"{name}.unknown", ", ".join(sorted(names))):
            TRAIN_OPTIONS[name].check_value("?")
    with raises_usage_error("logger.unknown", ", ".join(sorted(LOGGER_CLASS_BY_NAME))):
        TRAIN_OPTIONS["logger"].check_value(["?"])


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_contain_only_settings(name: str) -> None:
    for setting, value in RECIPES[name].settings.items():
        TRAIN_OPTIONS[setting].check_value(value)
        assert matches_type(value, TRAIN_OPTIONS[setting].type)


def test_estimator_parameters_agree_with_the_settings() -> None:
    """The defaults that differ from those of `train` suit arrays."""
    parameters = dict(inspect.signature(ContrastiveEncoder).parameters)
    docstring = docstring_parser.parse(inspect.getdoc(ContrastiveEncoder) or "").params
    assert [one.arg_name for one in docstring if one.args[0] == "param"] == list(parameters)
    assert parameters.pop("random_state").default is None
    assert parameters.pop("opt").default == "deprecated"
    assert parameters.keys() <= TRAIN_OPTIONS.keys()
    different_defaults = {
        name
        for name, one in parameters.items()
        if one.default is not None and one.default != TRAIN_OPTIONS[name].default
    }
    assert different_defaults == {"epochs", "device"}
    for name, parameter in parameters.items():
        TRAIN_OPTIONS[name].check_value(
            parameter.default if parameter.default is not None else TRAIN_OPTIONS[name].default
        )


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ({"predictor": "yes"}, "predictor.invalid", "yes"),
        ({"views": 1.5}, "views.invalid", 1.5),
        ({"temperature": [0.1]}, "temperature.format", [0.1]),
        ({"columns": "x"}, "columns.invalid", "x"),
        ({"out": 3}, "out.invalid", 3),
        ({"logger": "wandb"}, "logger.invalid", "wandb"),
        ({"logger": ["wand"]}, "logger.unknown", "wandb"),
        ({"checkpoint_minutes": True}, "checkpoint_minutes.invalid", True),
        ({"epochs": None}, "epochs.invalid", None),
        ({"epochs": 3, "warmup_epochs": 3}, "warmup_epochs.too_large", 3),
        ({"resume": True, "overwrite": True}, "resume.conflict", "overwrite"),
        ({"predict": "l2", "objective": None}, "projection.predict", 128),
    ],
)
def test_rejects_invalid_settings(options: dict[str, Any], code: str, value: object) -> None:
    with raises_usage_error(code, value):
        Settings(**options)


def test_settings_are_immutable_and_validated_on_replace() -> None:
    settings = Settings(data="digits")
    with pytest.raises(FrozenInstanceError):
        settings.epochs = 3  # type: ignore[misc]
    with raises_usage_error("epochs.invalid", 0):
        replace(settings, epochs=0)


def test_settings_round_trip_through_the_run_folder(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, columns={"labels": "kind"}, logger=("wandb",), lr=0.1, out=tmp_path / "run")
    run = WritableRun.create(tmp_path / "run", settings.to_config())
    assert run.settings().to_config() == settings.to_config()
    lists = {"logger": ["wandb"], "online_metrics": [], "given_views": []}
    assert run.settings(epochs=20) == replace(settings, data=str(tmp_path), out=None, epochs=20, **lists)
    assert run.config().keys() == RECORDED_OPTIONS_BY_NAME.keys()


def test_rejects_a_run_folder_with_conflicting_settings(tmp_path: Path) -> None:
    run = WritableRun.create(tmp_path / "run", {"queue_size": 5})
    with raises_usage_error("run.corrupt", "config.yaml", "queue_size"):
        run.settings()


def find_type_errors(file: Path) -> dict[int, str]:
    """Return the error messages of mypy by line number."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    errors = [line.split(":", 2) for line in result.stdout.splitlines() if file.name in line and ": error:" in line]
    return {int(number): message for _, number, message in errors}


@pytest.mark.slow
def test_type_checkers_check_arguments_of_commands(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(
        "from contraport import embed, evaluate, train\n"
        'train(data="digits", epochs=3)\ntrain(epoch=3)\ntrain(epochs="3")\ntrain("x", "y")\n'
        'evaluate("run", neighbors=3)\nevaluate()\nembed("run")\nembed("run", out="x.npz", spilt="test")\n'
    )
    errors = find_type_errors(file)
    assert list(errors) == [3, 4, 5, 7, 8, 9], errors
    assert 'did you mean "epochs"' in errors[3]


@pytest.mark.slow
def test_type_checkers_distinguish_one_evaluation_from_several(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(
        "from pathlib import Path\n"
        "from contraport import Run, evaluate, train\n"
        'run: Run = train(data="digits", epochs=1)\n'
        'for one in (evaluate(run), evaluate("run", alone=True), evaluate(Path("run"), metrics=["knn"])):\n'
        '    print(one.metrics["knn"].low, one.verdict)\n'
        'for one in evaluate([run, "other"]).values():\n'
        '    print(one.metrics["knn"].low)\n'
        "evaluate([run]).verdict\n"
        "evaluate(run).to_nothing()\n"
    )
    errors = find_type_errors(file)
    assert list(errors) == [8, 9], errors


@pytest.mark.slow
def test_type_checkers_narrow_audits_by_number_of_views(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(
        "from contraport import audit\n"
        "from contraport.auditing import Audit, ViewAudit\n"
        'result = audit("pairs.npz")\n'
        "print(result.noise_rate < 0.1, result.flagged(count=3).sum())\n"
        "pairs: Audit = result\n"
        "views: ViewAudit = result\n"
        "print(result.noise_rates)\n"
        "assert isinstance(result, ViewAudit)\n"
        "print(result.noise_rates.sum())\n"
        "result.noise_rate\n"
    )
    errors = find_type_errors(file)
    assert list(errors) == [6, 7, 10], errors
