"""Options of the networks: encoders, their first weights, and which of them learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, ValuesView
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport.catalog.encoders import ENCODERS
from contraport.errors import check
from contraport.options import Check, Options, describe_type, int_in_range, is_object_placeholder, matches_type, option


def _described(encoder: Any) -> Any:
    # Here, not above: it looks at modules, and the rest needs no torch.
    from contraport.encoders import describe_encoder

    return describe_encoder(encoder)


def _views_named(*values: Any) -> list[str | None]:
    """Return the views that some of the values are for, or None alone where each is for all."""
    named = [view for value in values if isinstance(value, Mapping) for view in value]
    return list(dict.fromkeys(named)) or [None]


def _of_view(value: Any, view: str | None) -> Any:
    """Return what a value is for a view, which may be one for all."""
    return value.get(view) if isinstance(value, Mapping) else value


def _is_given(encoder: Any) -> bool:
    """Return whether an encoder is one of the user's, which may bring weights, or a list with one."""
    several = encoder.values() if isinstance(encoder, Mapping) else encoder
    names = several if isinstance(encoder, list | tuple | Mapping) else [encoder]
    return any(
        name is not None and (not isinstance(name, str) or ":" in name or is_object_placeholder(name)) for name in names
    )


def _of_views(each: Check) -> Check:
    """Return a check for a value that another check takes, or such values by the views that they are for."""

    def judge(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            each(name, value)
            return
        check(len(value) > 0, f"{name}: expected the name of a view with each value, got none.")
        for view, one in value.items():
            each(f"{name}.{view}", one)

    return judge


def _is(kind: Any) -> Check:
    """Return a check for a value of a type."""

    def judge(name: str, value: Any) -> None:
        check(matches_type(value, kind), f"{name}: expected {describe_type(kind)}, got {value!r}.")

    return judge


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Options):
    """The encoder of each view, the projection behind it, and what the trained model gives."""

    encoder: Sequence[str | Any] | dict[str, Any] | str | Any | None = option(
        None,
        "a name (see `contraport list encoders`), any timm name, of texts any transformers name or folder, "
        "`module:attribute` of your own, or a module of which a copy is trained; or a list of one per view; or those "
        "of some views by their names or kinds, such as --encoder.image resnet18 --encoder.audio small-tcn; default: "
        "small-cnn for images, mlp for vectors, small-tcn for time series, small-text for texts.",
        serialize=_described,
        group="networks",
    )
    pretrained: bool | dict[str, Any] = option(
        False,
        "begin with the weights that timm, or for texts transformers, has of the encoder: in a folder, on the Hugging "
        "Face hub or as downloaded before; images are standardised, and unless `image_size` is given sized, "
        "as those that it was trained on. Or of some views, as in --pretrained.text.",
        check=_of_views(_is(bool)),
    )
    init: str | Path | dict[str, Any] | None = option(
        None,
        "begin with the encoder's weights in a file (.safetensors or .pt), in a folder of timm's, transformers' or of "
        "`contraport export`, or in a run of your own, such as runs/photos, whose encoder it is then by default. Or of "
        "some views, as in --init.image runs/photos --init.text models/minilm.",
        check=_of_views(_is(str | Path)),
    )
    freeze: bool | dict[str, Any] = option(
        False,
        "hold the encoder as it is, not a bit of it moves, so that only what follows it learns; or those of some "
        "views, as in --freeze.image.",
        check=_of_views(_is(bool)),
    )
    lora: int | dict[str, Any] | None = option(
        None,
        "hold the encoder and let adapters of this rank learn beside its linear layers, or of a network without such "
        "beside its convolutions (LoRA, extra `peft`); or those of some views, as in --lora.text 8. The trained model "
        "has them in its weights.",
        check=_of_views(int_in_range(1)),
    )
    freeze_epochs: int = option(
        0, "epochs for which the encoder is held at first, while the rest learns.", check=int_in_range(0)
    )
    frozen_draws: int | None = option(
        None,
        "with `freeze` of all views, how many random views of each kind and item are encoded, once, and kept to be "
        "drawn from; 0: none is kept, and each step encodes its own; default: 4, or 0 with several processes, an "
        "`augment` of your own or a stream.",
        check=int_in_range(0),
    )
    features: str | Path | None = option(
        None,
        "the folder where the features of a frozen encoder are kept, which several trainings of the same data, encoder "
        "and seed may share; default: `features` in the run folder.",
        scope="machine",
    )
    shared_encoder: bool | None = option(
        None,
        "one encoder for all views rather than one each; default: where views are random changes of one, or texts "
        "of which nothing is asked one by one.",
    )
    projection: int = option(
        128,
        "features of the projection that the objective sees; 0: no projection, it sees the encoder's, as is so with "
        "`predict`.",
        check=int_in_range(0),
    )
    projection_layers: int | None = option(
        None,
        "linear layers between the encoder and what the objective sees, with batch norm and ReLU between them: 0 for "
        "none, as with a `projection` of 0; 1, a linear map; 2 or 3; default: 2, or 0 with a `projection` of 0. What "
        "training takes from an embedding it takes from the layers next to the objective, so more of them keep more in "
        "the encoder's, which is what is used afterwards.",
        check=int_in_range(0, most=3),
    )
    representation: str | None = option(
        None,
        "what the trained model gives of several views: concatenate what the encoder makes of them, or take one of "
        "them by its name, number or kind; or projection, what the objective sees; or both, what the encoder makes of "
        "them and the projection, each of length one; default: concatenate; with `freeze`, where nothing but the "
        "projection learns, both for items of one view and projection for those of several.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_projection()
        self._check_frozen()

    @property
    def projected(self) -> int:
        """Features of the projection, 0 where there is none."""
        return 0 if self.projection_layers == 0 else self.projection

    def represented(self, views: int) -> str:
        """Return what the trained model gives of items of so many views."""
        held = "both" if views == 1 else "projection"
        return self.representation or (held if self.freezes_all else "concatenate")

    @property
    def freezes(self) -> bool:
        """Whether the encoder of some view is held to the end."""
        return any(self.freeze.values()) if isinstance(self.freeze, Mapping) else self.freezes_all

    @property
    def freezes_all(self) -> bool:
        """Whether those of all views are, or have nothing to learn."""
        return self.freeze is True or self._is_fixed

    @property
    def freeze_source(self) -> str:
        """By what the encoder of some view is held to the end, in words."""
        return f"encoder {self.encoder!r}" if self._is_fixed and not self.freeze else "freeze"

    @property
    def _is_fixed(self) -> bool:
        """Whether nothing of the encoder of any view can learn."""
        return not isinstance(self.encoder, Mapping) and all(self._fixed)

    @property
    def _fixed(self) -> list[bool]:
        """Whether each encoder that is named has nothing to learn."""
        named = self.encoder.values() if isinstance(self.encoder, Mapping) else self.encoder
        names = named if isinstance(named, list | tuple | ValuesView) else [named]
        return [isinstance(name, str) and name in ENCODERS and ENCODERS[name].fixed for name in names]

    @property
    def has_initial_weights(self) -> bool:
        """Whether some encoder begins with weights that are not drawn, or may."""
        pretrained = any(self.pretrained.values()) if isinstance(self.pretrained, Mapping) else self.pretrained
        return pretrained or self.init is not None or _is_given(self.encoder)

    @property
    def own_encoder(self) -> Any | None:
        """The modules that were given as encoders, which no folder holds; none where all have names."""
        return self.encoder if is_object_placeholder(_described(self.encoder)) else None

    def _check_projection(self) -> None:
        layers = self.projection_layers
        check(
            self.projection > 0 or not layers,
            f"projection_layers: expected 0 or nothing with a projection of 0, got {layers}.",
        )

    def _check_frozen(self) -> None:
        for view in _views_named(self.pretrained, self.init):
            init = _of_view(self.init, view)
            check(
                not (_of_view(self.pretrained, view) and init),
                f"init: expected nothing with pretrained, got {str(init)!r}.",
            )
        self._check_adapted()
        if not self.freezes:
            self.check_kept("freeze with it")  # whether all views are held is known with the data
            return
        check(
            self.freeze_epochs == 0,
            f"freeze_epochs: expected 0 with {self.freeze_source}, which has no end, got {self.freeze_epochs}.",
        )
        check(
            self.projected > 0,
            f"{self.freeze_source}: nothing would learn without a projection; expected one of 1 feature or more.",
        )
        check(
            self.has_initial_weights or any(self._fixed),  # by view it is known with the data
            "freeze: an encoder that was never trained would stay so; expected pretrained (--pretrained) or weights of "
            "its own (--init) with it.",
        )

    def check_kept(self, expected: str) -> None:
        """Raise `UsageError` where features are to be kept and some encoder learns.

        Args:
            expected: what is missing, in words.
        """
        if not self.freezes_all:
            check(self.frozen_draws is None, f"frozen_draws: expected {expected}, got {self.frozen_draws}.")
            check(self.features is None, f"features: expected {expected}, got {str(self.features)!r}.")

    def _check_adapted(self) -> None:
        if self.lora is None:
            return
        held = any(
            _of_view(self.freeze, view) and _of_view(self.lora, view) for view in _views_named(self.freeze, self.lora)
        )
        check(
            not held and self.freeze_epochs == 0, "lora: holds the encoder itself; expected no freeze of it with lora."
        )
        check(not self._is_fixed, f"lora: adapts weights; expected an encoder that has some, got {self.encoder!r}.")
        check(
            self.has_initial_weights,
            "lora: an encoder that was never trained would stay so; expected pretrained (--pretrained) or weights of "
            "its own (--init) with it.",
        )
