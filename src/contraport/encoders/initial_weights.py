"""Initial weights of the encoders of a model, taken from an earlier training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from contraport.encoders.factory import Shape
from contraport.encoders.model import Model
from contraport.encoders.state_dicts import State, load_weights
from contraport.encoders.view_lookup import mapping_to_view_list
from contraport.errors import check

Statistics: TypeAlias = tuple[list[float], list[float]]
"""Mean and standard deviation of an encoder's input, per channel or feature."""


@dataclass(frozen=True)
class InitialWeights:
    """Weights of trained encoders, with the image size and statistics of their training data.

    Attributes:
        source: file, folder or run that the weights are from, for messages.
        encoder_names: name of the encoder of all towers, names per tower, or a mapping from views to names; None if
            unknown.
        state_dicts: state dict of each encoder, or one entry for all encoders; None in it stands for random weights.
        input_statistics: mean and standard deviation of the training data of each encoder, or one entry for all;
            None: those of the new data are used.
        image_size: side of the training images in pixels, or None.
        has_low_resolution_stem: whether the encoder is a ResNet with the stem for small images.
        option_name: name of the option that maps views to encoders, for messages.
        config_folders: folder with the config and tokenizer of each transformers encoder, or one entry for all
            encoders; None in it stands for an encoder that is built by its name.
    """

    source: str
    encoder_names: str | list[Any] | Mapping[str, Any] | None
    state_dicts: Sequence[State | None]
    input_statistics: Sequence[Statistics | None] = (None,)
    image_size: int | None = None
    has_low_resolution_stem: bool = False
    option_name: str = "encoder"
    config_folders: Sequence[Path | None] = (None,)

    def load_into(self, model: Model) -> list[bool]:
        """Load the weights into the encoders of a model; return for each tower whether weights were loaded.

        Raises:
            UsageError: the weights are of another architecture.
        """
        places = self._encoder_indices(len(model.towers), model.view_names, model.shapes)
        states = [None if place is None else self.state_dicts[place] for place in places]
        for number, (place, state) in enumerate(zip(places, states, strict=True)):
            if state is not None:
                load_weights(model.tower(number).encoder, state, self._encoder_name(place or 0), self.source)
        return [state is not None for state in states]

    def resolve_statistics(
        self, defaults: Sequence[Statistics], names: Sequence[str] = (), shapes: Sequence[Shape] = ()
    ) -> list[Statistics]:
        """Return the input mean and standard deviation of each tower, from the earlier training if the sizes match.

        Args:
            defaults: mean and standard deviation of the new data, per tower.
            names: of the views, needed if the encoders are a mapping from views.
            shapes: of one item of each view.
        """
        result = []
        for place, default in zip(self._encoder_indices(len(defaults), names, shapes), defaults, strict=True):
            own = None if place is None else _value_at(self.input_statistics, place)
            result.append(default if own is None or len(own[0]) != len(default[0]) else own)
        return result

    def config_folders_by_tower(self, towers: int, names: Sequence[str], shapes: Sequence[Shape]) -> list[Path | None]:
        """Return each tower's folder with its transformers config and tokenizer; None for a tower built by name."""
        return [
            None if place is None else _value_at(self.config_folders, place)
            for place in self._encoder_indices(towers, names, shapes)
        ]

    def _encoder_indices(self, towers: int, names: Sequence[str], shapes: Sequence[Shape]) -> list[int | None]:
        """Return the index in `state_dicts` of each tower's encoder, or None if it has no weights."""
        if isinstance(self.encoder_names, Mapping):
            numbered = {view: place for place, view in enumerate(self.encoder_names)}
            return mapping_to_view_list(self.option_name, numbered, names, shapes)[:towers]
        count = len(self.state_dicts)
        check(count in (1, towers), f"init: must have {towers} encoders, one per view, got {count} in {self.source}.")
        return [number if count > 1 else 0 for number in range(towers)]

    def _encoder_name(self, place: int) -> str | None:
        if isinstance(self.encoder_names, Mapping):
            name = list(self.encoder_names.values())[place]
        else:
            name = _value_at(self.encoder_names, place) if isinstance(self.encoder_names, list) else self.encoder_names
        return None if name is None else str(name)


def _value_at(values: Sequence[Any], place: int) -> Any:
    """Return the value at an index; a single value applies to all indices."""
    return values[place if len(values) > 1 else 0]


def combine_initial_weights(
    parts: Sequence[InitialWeights | None], encoder: list[Any] | Mapping[str, Any], *, source: str, option_name: str
) -> InitialWeights:
    """Combine initial weights of single encoders into the initial weights of a model of several views.

    Args:
        parts: one per encoder; None: random weights.
        encoder: name of each, as a list or as a mapping from views.
        source: file, folder or run that the weights are from, for messages.
        option_name: name of the option that maps views to encoders, for messages.
    """
    present = [part for part in parts if part is not None]
    sizes = {part.image_size for part in present if part.image_size is not None}
    return InitialWeights(
        source,
        encoder,
        [None if part is None else part.state_dicts[0] for part in parts],
        [None if part is None else part.input_statistics[0] for part in parts],
        sizes.pop() if len(sizes) == 1 else None,
        any(part.has_low_resolution_stem for part in present),
        option_name,
        [None if part is None else part.config_folders[0] for part in parts],
    )


def combine_weights_by_view(parts: Mapping[str, InitialWeights]) -> InitialWeights:
    """Combine initial weights of single encoders, given by view, into those of a model."""
    names = {
        view: part.encoder_names[0] if isinstance(part.encoder_names, list) else part.encoder_names
        for view, part in parts.items()
    }
    source = ", ".join(dict.fromkeys(part.source for part in parts.values()))
    return combine_initial_weights(list(parts.values()), names, source=source, option_name="init")
