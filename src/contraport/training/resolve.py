"""From what a call gives to all settings of its training: the rest is as the run that goes on has it, or the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contraport.catalog import resolve_recipe
from contraport.encoders import check_trusted
from contraport.errors import check, hint_on_error, unknown_name_error
from contraport.options import is_object_placeholder
from contraport.runs import Run
from contraport.training.config import KEPT, Settings


def resolve_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a training that was given some of them.

    Raises:
        UsageError: a wrong setting, an unknown recipe, or what differs from the run that is to go on.

    >>> resolve_settings({"recipe": "byol", "momentum": 0.9}).predictor
    True
    """
    return Settings(**resolve_recipe(_continued(given) if given.get("resume") else given))


@hint_on_error("contraport docs troubleshooting resume-is-refused")
def _continued(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given, over what the run in `out` has."""
    out = given.get("out")
    check(out is not None, "out: resume needs the folder of the run.")
    run = Run(str(out))
    config, kept = run.config(), run.settings()
    for name, value in config.items():
        if name not in KEPT:
            raise unknown_name_error(f"{out}/config.yaml", name, KEPT)
        if name not in given:
            check(
                not is_object_placeholder(value),
                f"{name}: the run in {out} was given the object {value}; pass it again to go on.",
            )
    check_trusted(
        kept.encoder,
        f"{out}/config.yaml",
        trust_remote_code=given.get("trust_remote_code", False) or "encoder" in given,
    )
    for name in KEPT.keys() & given.keys() & config.keys():
        _check_agrees(name, given[name], config[name], out)
    return {**config, **given}


def _check_agrees(name: str, value: Any, kept: Any, out: object) -> None:
    known = KEPT[name]
    if known.extendable:
        known.validate(value)
        check(value >= kept, f"{name}: the run in {out} has {kept}, got {value}; on resume {name} may only grow.")
    elif known.scope == "run":
        value = known.serialize(value)
        grow = " and ".join(name for name, known in KEPT.items() if known.extendable)
        check(
            value == kept,
            f"{name}: the run in {out} has {kept!r}, got {value!r}; on resume only {grow} may change.",
        )
