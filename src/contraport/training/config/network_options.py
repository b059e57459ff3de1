"""Options of the encoders, their initial weights, and the projection head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, ValuesView
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport._utils.lazy_imports import import_object
from contraport.catalog.encoders import ENCODERS
from contraport.errors import check
from contraport.options import (
    BaseOptions,
    OptionCheck,
    describe_type,
    has_object_placeholder,
    int_in_range,
    matches_type,
    option,
)

EncoderOption = Sequence[str | Any] | dict[str, Any] | str | Any | None
"""Type of the option `encoder`: a name or module, one per view, a mapping by view, or None for the default."""

_WEIGHTS_REQUIRED_MESSAGE_END = (
    "requires trained weights of the encoder: add pretrained (--pretrained) or init (--init)."
)
"""End of the error messages about freezing or adapting an encoder with random weights."""


def _zip_options_by_view(*options: Any) -> list[tuple[Any, ...]]:
    """Return one tuple of option values per view."""
    views = dict.fromkeys(view for option in options if isinstance(option, Mapping) for view in option) or [None]
    return [tuple(one.get(view) if isinstance(one, Mapping) else one for one in options) for view in views]


def _is_pretrained_by_default(encoder: Any) -> bool:
    """Return whether a named encoder, such as lite0, comes with pretrained weights."""
    return isinstance(encoder, str) and encoder in ENCODERS and ENCODERS[encoder].is_pretrained_by_default


def _allow_mapping_by_view(check_value: OptionCheck) -> OptionCheck:
    """Build a check that accepts one option value, or a mapping from views to values."""

    def validate(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            check_value(name, value)
            return
        check(len(value) > 0, f"{name}: must name at least one view, got an empty mapping.", "empty")
        for view, one in value.items():
            check_value(f"{name}.{view}", one)

    return validate


def _build_type_check(required_type: Any) -> OptionCheck:
    """Build a check that an option's value has a given type."""

    def validate(name: str, value: Any) -> None:
        check(matches_type(value, required_type), f"{name}: must be {describe_type(required_type)}, got {value!r}.")

    return validate


def encoder_field(help_group: str) -> Any:
    """Return the dataclass field of the option `encoder`."""
    return option(
        None,
        "Encoder: a name (see `contraport list encoders`), a timm name, for texts a transformers name or folder, or "
        "your own code as `module:attribute`; in Python also a module, which is copied. For several views a list, as "
        "'[resnet18, mlp]', or encoders by view name or kind, as --encoder.image resnet18 --encoder.audio small-tcn; "
        "default: small-cnn for images, mlp for vectors, small-tcn for time series, small-text for texts.",
        # Imported when it is called: it handles modules, and --help needs no torch.
        serialize=lambda encoder: import_object("contraport.encoders:serialize_encoder")(encoder),
        group=help_group,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(BaseOptions):
    """Options of the encoders, the projection head and the model's output."""

    encoder: EncoderOption = encoder_field("networks")
    pretrained: bool | dict[str, Any] = option(
        False,
        "Load the pretrained weights of the timm or transformers model that `encoder` names, from its folder, the "
        "Hugging Face hub or its cache. Images are normalized as in pretraining, and resized as well unless "
        "`image_size` is given. For some views only: --pretrained.text. Not needed for the encoder lite0, which "
        "starts from its own pretrained weights unless `init` is given.",
        check=_allow_mapping_by_view(_build_type_check(bool)),
    )
    init: str | Path | dict[str, Any] | None = option(
        None,
        "Initial weights of the encoder: a file (.safetensors or .pt), a folder of timm, transformers or `contraport "
        "export`, or a run folder such as runs/photos, which also sets the default of `encoder`. By view: --init.image "
        "runs/photos --init.text models/minilm.",
        check=_allow_mapping_by_view(_build_type_check(str | Path)),
    )
    freeze: bool | dict[str, Any] = option(
        False,
        "Freeze the encoder, including its batch norm statistics; only the layers after it are trained. For some views "
        "only: --freeze.image.",
        check=_allow_mapping_by_view(_build_type_check(bool)),
    )
    lora: int | dict[str, Any] | None = option(
        None,
        "Rank of LoRA adapters: freeze the encoder and train low-rank adapters of its linear layers, or of its "
        "convolutions if it has no linear layers (extra `peft`). The trained model has them merged into its weights. "
        "For some views only: --lora.text 8; default: none.",
        check=_allow_mapping_by_view(int_in_range(1)),
    )
    freeze_epochs: int = option(0, "Number of initial epochs with a frozen encoder.", check=int_in_range(0))
    frozen_draws: int | None = option(
        None,
        "With all encoders frozen: number of random versions of each view of an item, encoded once and cached; each "
        "step draws one of them. 0 encodes new random views in each step; default: 4, or 0 with several processes, a "
        "custom `augment` or a stream.",
        check=int_in_range(0),
    )
    features: str | Path | None = option(
        None,
        "Cache folder for the features of a frozen encoder; runs with the same data, encoder and seed may share it; "
        "default: `features` in the run folder.",
        lifetime="machine",
    )
    shared_encoder: bool | None = option(
        None,
        "Use one encoder for all views instead of one per view; default: true for random views of one input, and for "
        "texts unless an option is given by view.",
    )
    projection: int = option(
        128,
        "Output size of the projection head, whose output the objective compares. 0: no projection head, required by "
        "`predict`.",
        check=int_in_range(0),
    )
    projection_layers: int | None = option(
        None,
        "Number of linear layers of the projection head, with batch norm and ReLU between them: 0 (no head), 1 "
        "(linear), 2 or 3; default: 2, or 0 with a `projection` of 0. Training discards information in the layers next "
        "to the objective, so a deeper head preserves more of it in the encoder's features.",
        check=int_in_range(0, most=3),
    )
    representation: str | None = option(
        None,
        "Output of the trained model: concatenate (the encoder features of all views), one view by its name, number or "
        "kind, projection (output of the projection head), or both (features and projection, each normalized); "
        "default: concatenate. With all encoders frozen, where only the projection is trained: both for one view, "
        "projection for several.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.projection_layers
        message = f"projection_layers: must be 0 with a projection of 0, got {layers}."
        check(self.projection > 0 or not layers, message, "conflict")
        for pretrained, init in _zip_options_by_view(self.pretrained, self.init):
            message = f"init: cannot be combined with pretrained, got {str(init)!r}."
            check(not (pretrained and init), message, "conflict")
        if self.lora is not None:
            is_frozen = any(freeze and lora for freeze, lora in _zip_options_by_view(self.freeze, self.lora))
            message = "lora: cannot be combined with freeze or freeze_epochs, since it freezes the encoder itself."
            check(not is_frozen and self.freeze_epochs == 0, message, "conflict")
            message = f"lora: requires an encoder with weights, got {self.encoder!r}."
            check(not self._has_one_untrainable_encoder_for_all_views, message, "no_weights")
            check(self.may_have_trained_weights, f"lora: {_WEIGHTS_REQUIRED_MESSAGE_END}", "untrained")
        if not self.freezes_some_encoder_throughout:
            # With `freeze` by view it is checked again once the views are known, with the data.
            self.check_cached_encoders_frozen()
            return
        message = f"freeze_epochs: cannot be combined with {self.freezing_cause}, got {self.freeze_epochs}."
        check(self.freeze_epochs == 0, message, "conflict")
        message = f"{self.freezing_cause}: requires a projection, since nothing else is trained; got a projection of 0."
        check(self.projection_size_or_zero > 0, message, "no_projection")
        # With weights by view, each encoder is checked once the views are known.
        is_frozen_with_weights = self.may_have_trained_weights or any(self._untrainable_encoder_mask)
        check(is_frozen_with_weights, f"freeze: {_WEIGHTS_REQUIRED_MESSAGE_END}", "untrained")

    @property
    def projection_size_or_zero(self) -> int:
        """Output size of the projection head, or 0 without one."""
        return 0 if self.projection_layers == 0 else self.projection

    @property
    def freezes_some_encoder_throughout(self) -> bool:
        """True if at least one encoder is frozen for the whole training."""
        return any(self.freeze.values()) if isinstance(self.freeze, Mapping) else self.freezes_all_encoders_throughout

    @property
    def freezes_all_encoders_throughout(self) -> bool:
        """True if all encoders are frozen or have no trainable weights."""
        return self.freeze is True or self._has_one_untrainable_encoder_for_all_views

    @property
    def freezing_cause(self) -> str:
        """Name of the option or encoder that freezes the weights, for messages."""
        by_encoder = self._has_one_untrainable_encoder_for_all_views and not self.freeze
        return f"encoder {self.encoder!r}" if by_encoder else "freeze"

    @property
    def _has_one_untrainable_encoder_for_all_views(self) -> bool:
        """True if one encoder is given for all views and has no trainable weights."""
        return not isinstance(self.encoder, Mapping) and all(self._untrainable_encoder_mask)

    @property
    def _untrainable_encoder_mask(self) -> list[bool]:
        """Mask of the encoders that have no trainable weights."""
        return [
            isinstance(name, str) and name in ENCODERS and ENCODERS[name].has_no_trainable_weights
            for name in self._listed_encoders
        ]

    @property
    def _listed_encoders(self) -> list[Any]:
        """Value of the option `encoder` as a list."""
        several = self.encoder.values() if isinstance(self.encoder, Mapping) else self.encoder
        return list(several) if isinstance(several, list | tuple | ValuesView) else [several]

    @property
    def effective_pretrained(self) -> bool | dict[str, Any]:
        """Value of `pretrained` for all views or by view; if not set, the encoder's default.

        The default is True for an encoder such as lite0, by view if there are several encoders. Weights set by `init`
        replace the default weights.
        """
        if self.pretrained is True or isinstance(self.init, str | Path):
            return self.pretrained
        if self.encoder is None or isinstance(self.encoder, str):
            return self.pretrained or (self.init is None and _is_pretrained_by_default(self.encoder))
        if not isinstance(self.encoder, Mapping | list | tuple):
            return self.pretrained
        by_view = self.encoder if isinstance(self.encoder, Mapping) else dict(enumerate(self.encoder))
        own = {str(view): True for view, name in by_view.items() if _is_pretrained_by_default(name)}
        return {view: True for view in own if view not in (self.init or {})} | (self.pretrained or {}) or False

    @property
    def may_have_trained_weights(self) -> bool:
        """True if at least one encoder starts, or may start, from trained weights."""
        pretrained = self.effective_pretrained
        pretrained = any(pretrained.values()) if isinstance(pretrained, Mapping) else pretrained
        has_custom_encoder = any(  # a module or code of the user, which may have trained weights
            not isinstance(encoder, str) or ":" in encoder or has_object_placeholder(encoder)
            for encoder in self._listed_encoders
            if encoder is not None
        )
        return pretrained or self.init is not None or has_custom_encoder

    def check_cached_encoders_frozen(self) -> None:
        """Raise `UsageError` if features are to be cached but some encoder is trained."""
        for name in () if self.freezes_all_encoders_throughout else ("frozen_draws", "features"):
            value = getattr(self, name)
            check(value is None, f"{name}: requires freeze of all views, got {name} {str(value)!r}.", "conflict")
