"""What encoders begin with instead of random weights: those of encoders that were trained before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from contraport.encoders.build import Shape
from contraport.encoders.model import Model
from contraport.encoders.state_dicts import State, load_weights
from contraport.encoders.view_names import values_per_view
from contraport.errors import check

Statistics: TypeAlias = tuple[list[float], list[float]]
"""The mean and the standard deviation of what an encoder takes, by channel or feature."""


@dataclass(frozen=True)
class InitialWeights:
    """Encoders that were trained before, and what they were trained to see.

    Attributes:
        source: what messages call it.
        encoder: the names of the encoders, one per tower, or one that is taken for each, or those of some views by what
            these are called; None: the source has none.
        states: the weights of each, or one for all; None where they are drawn.
        standardised: by what the data of each were, or one for all; None: by what they have.
        image_size: side in pixels of the images that they saw; None: they saw none, or the source does not say.
        low_resolution: whether a ResNet has the stem for small images.
        argument: what messages call what names the views.
        folders: with what each of transformers is built of, or one for all; None: it is built by its name.
    """

    source: str
    encoder: str | list[Any] | Mapping[str, Any] | None
    states: Sequence[State | None]
    standardized: Sequence[Statistics | None] = (None,)
    image_size: int | None = None
    low_resolution: bool = False
    argument: str = "encoder"
    folders: Sequence[Path | None] = (None,)

    def give(self, model: Model) -> list[bool]:
        """Put the weights into the encoders of a model, and return which of its towers have some.

        Raises:
            UsageError: they are of another architecture.
        """
        places = self._places(len(model.towers), model.view_names, model.shapes)
        states = [None if place is None else self.states[place] for place in places]
        for number, (place, state) in enumerate(zip(places, states, strict=True)):
            if state is not None:
                load_weights(model.tower(number).encoder, state, self._named(place or 0), self.source)
        return [state is not None for state in states]

    def statistics(
        self, given: Sequence[Statistics], names: Sequence[str] = (), shapes: Sequence[Shape] = ()
    ) -> list[Statistics]:
        """Return what each tower standardises by: what the encoders were trained with, or else what is given.

        Args:
            given: the mean and the standard deviation of what each tower takes.
            names: of the views, where it is by these that encoders were asked for.
            shapes: of one item of each.
        """
        chosen = []
        for place, of_data in zip(self._places(len(given), names, shapes), given, strict=True):
            own = None if place is None else self.standardized[place if len(self.standardized) > 1 else 0]
            chosen.append(of_data if own is None or len(own[0]) != len(of_data[0]) else own)
        return chosen

    def folders_by_tower(self, towers: int, names: Sequence[str], shapes: Sequence[Shape]) -> list[Path | None]:
        """Return the folder with what each tower's encoder is built of, None where it is built by its name."""
        places = self._places(towers, names, shapes)
        return [None if place is None else self.folders[place if len(self.folders) > 1 else 0] for place in places]

    def _places(self, towers: int, names: Sequence[str], shapes: Sequence[Shape]) -> list[int | None]:
        """Return which of the encoders each tower has, None for one that has none of them."""
        if isinstance(self.encoder, Mapping):
            numbered = {called: place for place, called in enumerate(self.encoder)}
            return values_per_view(self.argument, numbered, names, shapes)[:towers]
        there = len(self.states)
        check(there in (1, towers), f"init: {self.source} has {there} encoders; expected {towers}, one a view.")
        return [number if there > 1 else 0 for number in range(towers)]

    def _named(self, place: int) -> str | None:
        if isinstance(self.encoder, Mapping):
            name = list(self.encoder.values())[place]
        else:
            names = [self.encoder] if isinstance(self.encoder, str) or self.encoder is None else self.encoder
            name = names[place if len(names) > 1 else 0]
        return None if name is None else str(name)


def together(
    parts: Sequence[InitialWeights | None], encoder: list[Any] | Mapping[str, Any], *, source: str, argument: str
) -> InitialWeights:
    """Return several encoders, of which each part has one, as those of several views.

    Args:
        parts: one of each; None where weights are drawn.
        encoder: what each is called, in their order, or by what the views are called.
        source: what messages call them.
        argument: what they call what names the views.
    """
    there = [part for part in parts if part is not None]
    sizes = {part.image_size for part in there if part.image_size is not None}
    return InitialWeights(
        source,
        encoder,
        [None if part is None else part.states[0] for part in parts],
        [None if part is None else part.standardized[0] for part in parts],
        sizes.pop() if len(sizes) == 1 else None,
        any(part.low_resolution for part in there),
        argument,
        [None if part is None else part.folders[0] for part in parts],
    )


def of_views(parts: Mapping[str, InitialWeights]) -> InitialWeights:
    """Return the encoders of some views, one of each, as one.

    Args:
        parts: by what the views are called.
    """
    called = {view: part.encoder[0] if isinstance(part.encoder, list) else part.encoder for view, part in parts.items()}
    source = ", ".join(dict.fromkeys(part.source for part in parts.values()))
    return together(list(parts.values()), called, source=source, argument="init")
