"""Grids built from options and suites."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.errors import raises_usage_error

from contraport.cli.parsing import parse_command_line
from contraport.comparison.command_options import COMPARE_COMMAND_SPEC
from contraport.comparison.grid_builder import build_grid, get_suites_folder, load_suite
from contraport.errors import UsageError
from contraport.training.config import DataPreparationSettings
from contraport.training.settings_and_run_folder import resolve_settings

SUITES = sorted(file.stem for file in get_suites_folder().glob("*.yaml"))
OPTIONS: dict[str, Any] = {"data": ["digits"], "objectives": ["info-nce"]}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("suite", SUITES)
def test_every_cell_of_a_suite_has_valid_settings(suite: str, quick: bool) -> None:
    saved = load_suite(suite)
    if quick and "quick" not in saved:
        assert saved["not_run"]
        return
    grid = build_grid({"suite": suite, "quick": quick})
    for cell in grid.cells_of_all_seeds[: len(grid.rows) * len(grid.columns)]:
        resolve_settings(cell.options)
    assert len({cell.run_folder_name for cell in grid.cells_of_all_seeds}) == len(grid.cells_of_all_seeds)


def test_data_options_are_those_of_train() -> None:
    """All data options of `train` define cells, except those that depend on the machine."""
    options: dict[str, Any] = {
        "image_size": 8, "columns": {"labels": "kind"}, "sample_weight": "classes", "test_fraction": 0.5,
        "max_items": 40, "ignore_labels": True, "test_items": 30, "given_views": [1, 0], "mismatch": 0.1,
        "imbalance": 10, "corrupt": "noise", "domains": "rotate",
    }  # fmt: skip
    machine = {"root": "here", "num_workers": 2, "decoded": "there"}
    own = vars(DataPreparationSettings)["__annotations__"].keys()
    assert own == options.keys() | machine.keys()
    grid = build_grid({**OPTIONS, **options, **machine, "settings": ["plain"], "train": {"max_items": 50, "lr": 0.1}})
    assert grid.cells_of_all_seeds[0].options == {
        **options,
        "data": "digits",
        "objective": "info-nce",
        "lr": 0.1,
        "seed": 0,
    }
    assert grid.machine_options == {**machine, "device": "auto"}
    column = build_grid({**OPTIONS, "corrupt": "noise", "settings": ["corrupt:blur:2"]}).cells_of_all_seeds[0]
    assert column.options["corrupt"] == "blur:2", "expected the option of the column"


@pytest.mark.parametrize("suite", SUITES)
def test_claims_name_rows_and_settings_of_their_suite(suite: str) -> None:
    grid = build_grid({"suite": suite})
    rows, settings = {row.name for row in grid.rows}, {column.setting_name for column in grid.columns}
    for claim in grid.claims:
        assert {*claim.better_rows, claim.other_row} <= rows
        assert set(claim.setting_names) <= settings


def test_cells_are_ordered_by_seed() -> None:
    grid = build_grid(
        {
            "data": ["digits"],
            "objectives": [
                "info-nce,gca-uot:relaxation=0.2,temperature=0.1",
                {"mine": {"objective": "rince", "q": 0.1}},
            ],
            "settings": ["strong+mismatched:0.4:class", {"longer": {"epochs": 9}}],
            "seeds": 2,
            "epochs": 3,
        }
    )
    assert [row.name for row in grid.rows] == ["info-nce", "gca-uot:relaxation=0.2,temperature=0.1", "mine"]
    assert [cell.seed for cell in grid.cells_of_all_seeds] == [0] * 6 + [1] * 6
    first, last = grid.cells_of_all_seeds[1].options, grid.cells_of_all_seeds[-1].options
    assert first == {
        "epochs": 3,
        "data": "digits",
        "augment": "strong",
        "mismatch": "0.4:class",
        "recipe": "gca-uot",
        "temperature": 0.1,
        "objective_settings": {"relaxation": 0.2},
        "seed": 0,
    }
    assert (last["epochs"], last["objective_settings"], last["seed"]) == (9, {"q": 0.1}, 1)


def test_quoted_values_keep_commas() -> None:
    """Commas separate objectives, settings of objectives and settings of options."""
    target, corrupt = "domains:alpha=0.5,beta=0", "noise:3,blur:2"
    for quote in "'", '"':
        named = f"gca-ince:target={quote}{target}{quote}"
        options = {
            "objectives": [f"{named},temperature=0.2,info-nce"],
            "settings": [f"plain,corrupt:{quote}{corrupt}{quote}"],
        }
        result = build_grid({**OPTIONS, **options})
        assert [row.name for row in result.rows] == [f"{named},temperature=0.2", "info-nce"]
        assert result.rows[0].options == {"recipe": "gca-ince", "target": target, "temperature": 0.2}
        assert [column.options for column in result.columns] == [{}, {"corrupt": corrupt}]
    over = build_grid({**OPTIONS, "objectives": ["gca-ince"], "over": [f"target='{target}',labels"]})
    assert [row.options["target"] for row in over.rows] == [target, "labels"]
    with raises_usage_error("objectives.unquoted", "'beta'", "target='domains:alpha=0.5,...'"):
        build_grid({**OPTIONS, "objectives": [f"gca-ince:target={target}"]})


def test_over_makes_a_row_for_each_value() -> None:
    grid = build_grid({**OPTIONS, "objectives": ["rince"], "over": ["q=0.1,0.5", "temperature=0.2,0.5"]})
    assert [row.name for row in grid.rows] == [
        "rince, q 0.1, temperature 0.2",
        "rince, q 0.1, temperature 0.5",
        "rince, q 0.5, temperature 0.2",
        "rince, q 0.5, temperature 0.5",
    ]
    assert grid.rows[0].options == {"recipe": "rince", "objective_settings": {"q": 0.1}, "temperature": 0.2}


def test_explicit_options_override_the_suite(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("data: [digits]\nobjectives: [info-nce]\nseeds: 5\nquick: {seeds: 2}\n")
    options = {"suite": tmp_path / "own.yaml"}
    assert len(build_grid(options).seeds) == 5
    assert len(build_grid({**options, "quick": True}).seeds) == 2
    assert len(build_grid({**options, "quick": True, "seeds": 1}).seeds) == 1


def test_each_combination_of_options_has_its_own_folder() -> None:
    folders = [
        build_grid({**OPTIONS, **more}).cells_of_all_seeds[0].run_folder_name
        for more in ({}, {"epochs": 2}, {"settings": ["strong"]})
    ]
    assert len(set(folders)) == 3
    assert build_grid({**OPTIONS, "seeds": 9}).cells_of_all_seeds[0].run_folder_name == folders[0]


def test_options_of_fewer_cells_override_others() -> None:
    row, column = {"mine": {"objective": "rince", "q": 0.1, "epochs": 3}}, {"own": {"epochs": 2, "weight_decay": 0.1}}
    grid = build_grid(
        {**OPTIONS, "objectives": [row], "settings": [column], "epochs": 1, "train": {"weight_decay": 0.2}}
    )
    (options,) = {json.dumps(cell.options | {"seed": 0}) for cell in grid.cells_of_all_seeds}
    assert json.loads(options).items() >= {"epochs": 3, "weight_decay": 0.1}.items()
    own = {"q": 0.3, "lam": 0.2}
    cell = grid.build_cell(grid.rows[0], grid.columns[0], 7, trial_number=0, epochs=4, objective_settings=own)
    assert (cell.options["epochs"], cell.options["objective_settings"], cell.seed) == (4, own, 7)
    assert "--trial-0-" in cell.run_folder_name
    assert grid.output_folder == Path("runs", "compare")


def test_folder_names_are_short_and_independent_of_option_order() -> None:
    names = ["/U(a, b): 1/2", "x" * 300]
    folders = [
        cell.run_folder_name
        for train in ({"epochs": 2, "lr": 0.1}, {"lr": 0.1, "epochs": 2})
        for cell in build_grid(
            {**OPTIONS, "objectives": [{name: "info-nce"} for name in names], "seeds": 1, "train": train}
        ).cells_of_all_seeds
    ]
    assert folders[:2] == folders[2:]
    assert re.fullmatch(r"digits--standard--U-a-b-1-2--seed-0-[0-9a-f]{8}", folders[0])
    assert re.fullmatch(r"digits--standard--x{102}-[0-9a-f]{8}", folders[1])


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"objectives": ["info-nce"]}, "data.missing", []),
        ({"data": ["digits"]}, "objectives.missing", []),
        ({**OPTIONS, "objectives": ["info-nc"]}, "objectives.unknown", ["'info-nc'", "'info-nce'"]),
        ({**OPTIONS, "objectives": ["info-nce,info-nce"]}, "objectives.repeated", ["info-nce"]),
        ({**OPTIONS, "objectives": ["rince:p=1"]}, "objectives.unknown", ["rince", "'p'"]),
        ({**OPTIONS, "objectives": ["rince:seed=1"]}, "objectives.reserved", ["rince", "seed"]),
        ({**OPTIONS, "settings": ["stong"]}, "settings.unknown", ["'stong'", "'strong'"]),
        ({**OPTIONS, "settings": ["foo"]}, "settings.unknown", ["contraport compare --help"]),
        ({**OPTIONS, "settings": ["mismatched:2"]}, "settings.invalid", ["mismatched:2"]),
        ({**OPTIONS, "over": ["temperature"]}, "over.syntax", ["'temperature'"]),
        ({**OPTIONS, "baseline": "rince"}, "baseline.unknown", ["'rince'"]),
        ({**OPTIONS, "train": {"epoch": 1}}, "train.unknown", ["'epoch'", "'epochs'"]),
        ({**OPTIONS, "budget": "30"}, "budget.invalid", ["'30'"]),
        ({"suite": "gca", "objectives": ["GCA-INC"]}, "objectives.unknown", ["'GCA-INC'", "'GCA-INCE'"]),
        ({"suite": "needs", "settings": ["small batch"]}, "settings.unknown", ["'small batch'", "did you mean 'sma"]),
        ({**OPTIONS, "over": ["q=0.1"]}, "over.unknown", ["info-nce", "'q'"]),
        ({**OPTIONS, "over": ["temp=0.1"]}, "over.unknown", ["'temp'", "did you mean 'temperature'", "symmetric"]),
        ({"suite": "gcaa"}, "suite.unknown", ["'gcaa'", "'gca'"]),
        ({"suite": __file__}, "suite.suffix", [__file__]),
        ({**OPTIONS, "quick": True}, "quick.missing_suite", ["suite"]),
        ({"suite": "pacs", "quick": True}, "quick.unavailable", ["pacs"]),
    ],
)
def test_rejects_invalid_options(options: dict[str, Any], code: str, values: list[str]) -> None:
    with raises_usage_error(code, *values):
        build_grid(options)


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("- a", "suite.not_a_mapping", ""),
        ("seed: 3", "suite.unknown", "did you mean 'seeds'"),
        ("data: [", "suite.unreadable", "YAML"),
        ("data: [digits]\nobjectives: [info-nce]\nclaims: [{says: x}]", "claims.missing_key", "{'says': 'x'}"),
        (
            "data: [digits]\nobjectives: [info-nce]\nclaims: [{says: x, better: [a], than: b, each: 3}]",
            "claims.not_a_bool",
            "3",
        ),
    ],
)
def test_rejects_an_invalid_suite(text: str, code: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(text)
    with raises_usage_error(code, value):
        build_grid({"suite": tmp_path / "wrong.yaml"})


def test_saved_names_select_suite_entries(tmp_path: Path) -> None:
    saved = '- "U(a,b), K = 4": {objective: nt-xent, constraint: "balanced:iterations=4"}'
    (tmp_path / "own.yaml").write_text(
        f"data: [digits]\nobjectives:\n  - info-nce\n  {saved}\nsettings:\n  - short: {{epochs: 1}}\n  - plain\n"
    )
    options = {"suite": tmp_path / "own.yaml", "objectives": ["U(a,b), K = 4", "rince"], "settings": ["short"]}
    grid = build_grid(options)
    assert [row.name for row in grid.rows] == ["U(a,b), K = 4", "rince"]
    assert grid.rows[0].options == {"objective": "nt-xent", "constraint": "balanced:iterations=4"}
    assert [(column.name, column.options) for column in grid.columns] == [("digits, short", {"epochs": 1})]


def test_data_with_the_same_file_name_are_labeled_by_path() -> None:
    options = {"data": ["a/x.npz", "b/x.npz", "digits"], "objectives": ["info-nce"]}
    assert [column.name for column in build_grid(options).columns] == [
        "a/x.npz, standard",
        "b/x.npz, standard",
        "digits, standard",
    ]


@pytest.mark.parametrize(
    ("wrong", "code", "value"),
    [
        ({"better": ["rinse"]}, "claims.unknown", "did you mean 'rince'"),
        ({"than": "info"}, "claims.unknown", "did you mean 'info-nce'"),
        ({"settings": ["strogn"]}, "claims.unknown", "did you mean 'strong'"),
        ({"measure": "kn"}, "metrics.unknown", "did you mean 'knn'"),
    ],
)
def test_rejects_claims_about_unknown_names(tmp_path: Path, wrong: dict[str, object], code: str, value: str) -> None:
    claim = {"says": "it is better", "better": ["rince"], "than": "info-nce", **wrong}
    grid = {"data": ["digits"], "objectives": ["info-nce", "rince"], "settings": ["strong"], "claims": [claim]}
    (tmp_path / "own.yaml").write_text(json.dumps(grid))
    with raises_usage_error(code, value):
        build_grid({"suite": tmp_path / "own.yaml"})
    if "measure" not in wrong:
        assert build_grid({"suite": tmp_path / "own.yaml", "objectives": ["info-nce"]}).claims


@pytest.mark.parametrize("separator", [" ", "="])
def test_flags_of_train_options_may_have_keys_of_their_own(separator: str) -> None:
    """Keys in any order and of any number, as in `contraport train`."""
    flags = {
        "--train.columns.views": '["lidar_*", "radar_*"]',
        "--train.temperature": "0.2",
        "--train.objective_settings.q": "0.3",
        "--train.columns.labels": "kind",
        "--train.columns.names": "*.png",
    }
    joined = [f"{flag}={text}" for flag, text in flags.items()]
    words = joined if separator == "=" else [word for pair in flags.items() for word in pair]
    parsed = parse_command_line(COMPARE_COMMAND_SPEC, ["--data", "digits", *words], prog="contraport compare")
    columns = {"views": ["lidar_*", "radar_*"], "labels": "kind", "names": "*.png"}
    assert parsed is not None
    assert parsed["train"] == {"columns": columns, "temperature": 0.2, "objective_settings": {"q": 0.3}}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--train.columns.views"], "train.columns.views.missing"),
        (["--train.columns.views", "a", "--train.columns", "{}"], "train.columns.conflict"),
        (["--train.columns.views", "a", "--train.columns={}"], "train.columns.conflict"),
        (["--train.columns.views", "a", "b"], "unexpected_argument"),
    ],
)
def test_rejects_invalid_flags_of_train_options(words: list[str], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_command_line(COMPARE_COMMAND_SPEC, ["--data", "digits", *words], prog="contraport compare")
    assert code in str(caught.value.code)


def test_keys_of_train_options_reach_the_grid() -> None:
    words = ["--data", "digits", "--objectives", "info-nce", "--train.columns.labels", "kind"]
    parsed = parse_command_line(COMPARE_COMMAND_SPEC, words, prog="contraport compare")
    assert build_grid(parsed or {}).cells_of_all_seeds[0].options["columns"] == {"labels": "kind"}
