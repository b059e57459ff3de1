"""Commands that train on audited or cleaned data, proposed after an audit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contraport._utils.files import find_unused_path
from contraport._utils.formatting import format_options, use_flag_style
from contraport.auditing.command_options import AUDIT_COMMAND_SPEC, AuditOptions
from contraport.auditing.export_clean import SAMPLE_WEIGHT_COLUMN
from contraport.auditing.multi_view_audit_result import ViewAudit
from contraport.auditing.result import Audit
from contraport.data import Dataset
from contraport.data.formats.tables import TABLE_SUFFIXES
from contraport.options import has_object_placeholder, to_config_value
from contraport.training.advise import (
    Suggestion,
    compose_train_command,
    data_stem_as_folder_name,
    find_encoder_for_few_images,
    make_objective_suggestion,
    make_wrong_pairs_suggestion,
)

_SHARED_TRAIN_OPTION_NAMES = ("data", "columns", "given_views", "image_size", "root", "encoder")
"""Names of the options of an audit that `contraport train` has too, for the same pairs and encoders."""


def compose_next_commands(
    result: Audit | ViewAudit, options: AuditOptions, dataset: Dataset, *, view_indices: list[int]
) -> tuple[str, ...]:
    """Return the commands to run after an audit.

    There are none if the data were passed from Python, otherwise one or two. They train on the files of cleaned data
    or, before these are written, with `--audit`; the other then writes one. If nothing is flagged, or the share of
    wrong pairs is unknown, the only command trains on all pairs.

    Args:
        result: result of the audit.
        options: its options.
        dataset: the audited items, and those that were left out because they lack a view.
        view_indices: numbers of the audited views among those of the data.
    """
    values = {name: to_config_value(getattr(options, name)) for name in AUDIT_COMMAND_SPEC.options_by_name}
    if has_object_placeholder(values):
        return ()
    explicit = {
        name: value
        for name, value in values.items()
        if value != to_config_value(AUDIT_COMMAND_SPEC.options_by_name[name].default)
    }
    data_options = {name: explicit[name] for name in _SHARED_TRAIN_OPTION_NAMES if name in explicit}
    name = data_stem_as_folder_name(dataset)
    suggestions = [make_objective_suggestion(dataset), *filter(None, [find_encoder_for_few_images(dataset)])]

    def compose(*added: Suggestion, suffix: str = "", **changes: Any) -> str:
        out = find_unused_path(Path("runs", f"{name}{suffix}"))
        return compose_train_command(data_options | changes, [*suggestions, *added], out=str(out))

    is_known = result.is_rate_reliable if isinstance(result, Audit) else not result.views_of_unknown_rate
    if len(result.flagged()) == 0 or not is_known:
        return (compose(),)
    if result.clean_files:
        return tuple(
            compose(suffix=f"-{path.stem}", **_build_training_options(path, data_options, view_indices))
            for path in result.clean_files[:2]
        )
    repeated = {"resume": True, "out": explicit.get("out")}
    if options.out is None:
        declared = AUDIT_COMMAND_SPEC.options_by_name
        lasting = {name: value for name, value in explicit.items() if declared[name].lifetime != "call"}
        repeated = {**lasting, "out": str(find_unused_path(Path("audits", name)))}
    with use_flag_style():
        again = f"contraport audit {format_options(**repeated, drop=True)}"
    if dataset.present is not None:  # `train --audit` requires all views of all items
        return (again,)
    return compose(make_wrong_pairs_suggestion(len(dataset.shapes))), again


def _build_training_options(
    data_or_weights: Path, data_options: Mapping[str, Any], view_indices: list[int]
) -> dict[str, Any]:
    """Return training options that load the audit's clean data or its item weights."""
    source = Path(str(data_options["data"]))
    if data_or_weights.suffix == ".npy":  # weights alone
        return {"sample_weight": str(data_or_weights)}
    if data_or_weights.suffix in TABLE_SUFFIXES:
        return {"data": str(data_or_weights)} | (
            {"sample_weight": SAMPLE_WEIGHT_COLUMN} if data_or_weights.stem == "weighed" else {}
        )
    if data_or_weights.is_dir() or (source.suffix == ".npz" and source.is_file()):  # a coupling, or arrays by name
        return {"data": str(data_or_weights)}
    # The arrays of other data have names of their own, and the size of images is that of the audit.
    views = view_indices if "given_views" in data_options else None
    return {"data": str(data_or_weights), "columns": None, "image_size": None, "root": None, "given_views": views}
