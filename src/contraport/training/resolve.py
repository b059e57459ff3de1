"""Resolves the settings of a training: explicit > resumed run > recipe > default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contraport.catalog import apply_recipe
from contraport.encoders import check_trusted
from contraport.errors import check, hint_on_error, unknown_name_error
from contraport.options import has_object_placeholder
from contraport.runs import Run
from contraport.training.config import RECORDED_OPTIONS, Settings


def resolve_settings(options: Mapping[str, Any]) -> Settings:
    """Return all settings of a training: explicit options, completed by resumed run, recipe and defaults.

    Raises:
        UsageError: an invalid setting, an unknown recipe, or a change of an option that is fixed on resume.

    >>> resolve_settings({"recipe": "byol", "momentum": 0.9}).predictor
    True
    """
    return Settings(**apply_recipe(_with_resumed_run(options) if options.get("resume") else options))


@hint_on_error("contraport docs troubleshooting resume-is-refused")
def _with_resumed_run(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the resumed run in `out`, overridden by the explicit options."""
    out = options.get("out")
    check(out is not None, "out: required with resume, got none.", "missing")
    run = Run(str(out))
    config = run.config()
    for name, value in config.items():
        if name not in RECORDED_OPTIONS:
            raise unknown_name_error(f"{out}/config.yaml", name, RECORDED_OPTIONS)
        message = f"{name}: the run in {out} was given the object {value}; pass it again to resume."
        check(name in options or not has_object_placeholder(value), message, "object_required")
    trust = options.get("trust_remote_code", False) or "encoder" in options
    check_trusted(run.settings().encoder, f"{out}/config.yaml", trust_remote_code=trust)
    for name in RECORDED_OPTIONS.keys() & options.keys() & config.keys():
        _check_unchanged(name, options[name], config[name], out)
    return {**config, **options}


def _check_unchanged(name: str, value: Any, recorded: Any, out: object) -> None:
    option = RECORDED_OPTIONS[name]
    if option.may_increase_on_resume:
        option.validate(value)
        check(value >= recorded, f"{name}: must be at least {recorded}, as in the run {out}, got {value}.", "decreased")
    elif option.lifetime == "run":
        value = option.serialize(value)
        message = f"{name}: must be {recorded!r}, as in the resumed run {out}, got {value!r}."
        check(value == recorded, message, "changed")
