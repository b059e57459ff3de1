"""From the settings of a training to its networks, and the weights that they begin with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from contraport.data import Views
from contraport.encoders import Initial, Model, initial, pretrained
from contraport.encoders.model import CONFIG_FILE, Encoders
from contraport.errors import UsageError, check, reason
from contraport.runs import Run
from contraport.texts import blank
from contraport.training.loop.optimization import check_layers
from contraport.verbs.train import Settings


@torch.random.fork_rng(devices=[])  # a model that is read has drawn weights first
def build_initial(settings: Settings, run: Run | None = None) -> Initial | None:
    """Return the weights that the encoders of a training begin with, or None where they are drawn.

    Torch's random state stays as it is.

    Args:
        settings: of the training.
        run: the one that goes on, if one does; its folder keeps what it began with.

    Raises:
        UsageError: they cannot be had, or are of other encoders than the settings say.
    """
    if not settings.pretrained and settings.init is None:
        return None
    if run is not None and (run.initial_path / CONFIG_FILE).exists():
        return initial(run.initial_path, settings.encoder, trust=settings.trust)
    if settings.init is None:
        return pretrained(settings.encoder)
    return initial(settings.init, settings.encoder, trust=settings.trust)


def fitted(settings: Settings, begun: Initial | None) -> Settings:
    """Return the settings with the encoders and the size of images of the weights to begin with, unless they say them.

    >>> begun = Initial("runs/a", ["resnet18"], [{}], image_size=64)
    >>> fitted(Settings(image_size=32), begun).encoder, fitted(Settings(), begun).image_size
    (['resnet18'], 64)
    """
    if begun is None:
        return settings
    encoder = begun.encoder if settings.encoder is None else settings.encoder
    return replace(settings, encoder=encoder, image_size=settings.image_size or begun.image_size)


def build_untrained(settings: Settings, model: Model, encoder: Encoders = None) -> Model:
    """Return a model whose weights are drawn as those of a training that begins with none.

    Args:
        settings: of the training.
        model: what it ended with.
        encoder: the module that was given as encoder, or one per view, if some was.
    """
    given = {"encoder": model.built_from if encoder is None else encoder}
    with as_seeded(settings):
        return Model(**model.config | given)


@contextmanager
def as_seeded(settings: Settings) -> Iterator[None]:
    """Draw weights by the seed of the training, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        yield


def build_model(settings: Settings, views: Views, begun: Initial | None) -> Model:
    """Return the encoder of each view, or the one of all, with its projection."""
    shared = settings.shared_encoder
    changes_of_one = len(views.plain_shapes) == 1
    check(
        shared is not False or not changes_of_one,
        "shared_encoder: false needs items of several views, such as an image and a caption, each with an encoder of "
        f"its own; these are of one, {views.plain_names[0]!r}. Random changes of one view share an encoder.",
    )
    one = changes_of_one if shared is None else shared
    statistics = views.statistics()[: 1 if one else None]
    if begun is not None:
        statistics = begun.statistics(statistics, views.plain_names, views.plain_shapes)
    mean, std = ([values[which] for values in statistics] for which in (0, 1))
    model = Model(
        settings.encoder,
        views.plain_shapes,
        settings.projected,
        mean,
        std,
        settings.represented,
        shared=one,
        projection_layers=settings.projection_layers or 2,
        low_resolution=begun is None or begun.low_resolution,
        view_names=views.plain_names,
    )
    if begun is not None:
        begun.give(model)
    if settings.layer_decay is not None:
        for encoder in model.encoders:
            check_layers(encoder)
    return model


def check_encodes(model: Model, views: Views) -> None:
    """Raise `UsageError` where views are of other shapes than the items, and the encoder does not take these."""
    plain = views.plain_shapes[0]
    for shape in dict.fromkeys(views.shapes) if len(model.towers) == 1 else ():
        if shape == plain:
            continue
        was_training = model.training
        try:
            with torch.no_grad():
                model.eval().encode([blank(1, shape)])
        except Exception as error:  # each network refuses in its own way
            told = f"the items are of shape {plain}, and some views of {shape}: {reason(error)}"
            raise UsageError(f"encoder: expected one that takes any size, as {told}") from error
        finally:
            model.train(was_training)


def sizes_of(model: Model) -> list[int]:
    """Return how many numbers the projection of each view has."""
    return [model.tower(view).num_projections for view in range(len(model.towers))]
