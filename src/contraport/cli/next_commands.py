"""Suggested next commands, filled in with the paths that the user passed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contraport._utils.files import find_unused_path
from contraport._utils.formatting import format_flags
from contraport.runs import as_run_folder

if TYPE_CHECKING:
    from contraport.auditing import Audit, ViewAudit
    from contraport.estimators import Map
    from contraport.hard_negatives import MinedNegatives
    from contraport.runs import Run

Options = Mapping[str, Any]  # explicit options of a command, by name


def after_audit(options: Options, result: Audit | ViewAudit) -> Sequence[str]:
    """Suggest commands that train without the suspected pairs or write cleaned data."""
    return result.next_commands


def after_train(options: Options, run: Run) -> Sequence[str]:
    """Suggest `evaluate` for the run, or `embed` if no items are held out."""
    if options.get("dry_run"):
        return []
    path, record = shlex.quote(str(run.path)), as_run_folder(run).find_split_digests()
    if record is not None and len(record.test_digests) == 0:
        out = _unused_path(f"{run.path.name}.npz")
        return [f"contraport embed {path} {format_flags({'split': 'train', 'out': out})}"]
    return [f"contraport evaluate {path}"]


def after_evaluate(options: Options, results: Mapping[str, Any]) -> Sequence[str]:
    """Suggest the command that writes a report of the runs."""
    return [f"contraport report {shlex.join(results)} {format_flags({'out': _unused_path('report.html')})}"]


def after_embed(options: Options, path: Path) -> Sequence[str]:
    """Suggest commands that use the written features, such as `contraport duplicates`."""
    features = shlex.quote(str(options["out"]))
    commands = [f"contraport duplicates {features}", f"contraport neighbors {features} --query 0"]
    run = as_run_folder(options["run"])
    if options.get("view") is None or run.settings().predict is not None:
        return commands
    from contraport.encoders.model import resolve_view_index  # needs torch, which `embed` has imported

    config = run.read_model_config()
    names, shapes = config["view_names"], config["shapes"]
    embedded = names[resolve_view_index("view", options["view"], names, shapes)]
    texts = [name for name, shape in zip(names, shapes, strict=True) if len(shape) == 0]
    others = [name for name in texts if name != embedded]
    if not others:
        return commands
    # If several views hold texts, the query must name its view.
    flags = format_flags({"query_view": others[0]}) if len(texts) > 1 else ""
    return [f"contraport search {features} {shlex.quote('a few words')} {flags}".rstrip(), *commands]


def after_mine(options: Options, result: MinedNegatives) -> Sequence[str]:
    """Suggest training with the mined negatives, if `contraport` can read their file."""
    if Path(options["out"]).suffix != ".npy":
        return []  # a table for other trainers
    source = {name: options[name] for name in ("data", "columns", "root") if name in options}
    config = Path(str(options["encoder"])) / "config.yaml"
    if config.exists():  # the settings of the run select the same items
        source = {"config": config, **source}
    flags = {**source, "negatives": f"mined:{options['out']}", "out": _unused_path("runs/mined")}
    return [f"contraport train {format_flags(flags)}"]


def after_map(options: Options, result: Map) -> Sequence[str]:
    """Suggest a command that saves the 2-D map or clusters its points."""
    if result.folder is None:
        rest = {name: value for name, value in options.items() if name != "source"}
        out = _unused_path(f"maps/{Path(str(options['source'])).stem}")
        return [f"contraport map {shlex.quote(str(options['source']))} {format_flags({**rest, 'out': out})}"]
    clusters = min(10, len(result.points))
    return [f"contraport cluster {shlex.quote(str(result.folder / 'map.npz'))} --k {clusters}"]


def _unused_path(path: str) -> str:
    """Return a path, with a number appended if it exists."""
    return str(find_unused_path(Path(path)))
