"""What is measured: an encoder and the items it is judged on, embedded when a measure asks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor

from contraport._utils.text_tensors import is_text_shape
from contraport.data import Dataset, Views, from_arrays
from contraport.data.corruptions import corrupt
from contraport.embedding import LoaderConfig, RawInputs, embed_views, represent, seeded
from contraport.encoders import Model
from contraport.metrics.clustering import clusters
from contraport.metrics.probes import fit_linear_probe
from contraport.metrics.retrieval import ordered_view_pairs, ranks
from contraport.metrics.zero_shot import TEMPLATES, class_embeddings, prompts
from contraport.objectives import Loss, Objective


class EvalContext:
    """A frozen encoder beside training and test items; what is asked for is computed once.

    Args:
        encoder: what is measured; no weight and no buffer of it is changed.
        train: the items that a probe learns from.
        test: the items that it is judged on.
        views: how views are made of an item.
        reader: how the items are read.
        name: what progress bars call the encoder.
        neighbors: how many vote in kNN.
        objective: what the encoder was trained by, where it is known.
        classes: what the classes are called in texts, in the order of their numbers; default: as the data call them.
        templates: texts with ``{}`` in the place of a class.
    """

    def __init__(
        self,
        encoder: Model | RawInputs,
        train: Dataset,
        test: Dataset,
        views: Views,
        reader: LoaderConfig,
        *,
        name: str = "encoder",
        neighbors: int = 20,
        objective: Loss | None = None,
        classes: Sequence[str] | None = None,
        templates: Sequence[str] = TEMPLATES,
    ) -> None:
        self.encoder, self.reader = encoder, reader
        self.views: Views = views
        self.train: Dataset = train
        self.test: Dataset = test
        self.name, self.neighbors, self.objective = name, neighbors, objective
        self.class_names, self.templates = classes or test.class_names, tuple(templates)

    @property
    def device(self) -> torch.device:
        """Where the encoder computes."""
        return self.reader.device

    @cached_property
    def labelled(self) -> bool:
        """Whether both splits have labels."""
        return self.train.labels is not None and self.test.labels is not None

    @cached_property
    def classes(self) -> int:
        """How many classes the training items have; 0 without labels."""
        return 0 if self.train.labels is None else len(self.train.labels.unique())

    @cached_property
    def has_several_classes(self) -> bool:
        """True if the training items have two classes or more."""
        return self.classes > 1

    @cached_property
    def largest_class(self) -> int:
        """How many test items the class with the most of them has; only where there are labels."""
        return int(self.test_y.bincount().max())

    @cached_property
    def min_classes_without_a_domain(self) -> int:
        """How many classes the training items of all domains but one have at least; only where there are domains."""
        beside = [self.train_y[self.train_domains != domain] for domain in self.test_domains.unique()]
        return min(len(labels.unique()) for labels in beside)

    @cached_property
    def shares_domains(self) -> bool:
        """Whether test items are of domains that training items are of; only where there are domains."""
        return bool(torch.isin(self.test_domains, self.train_domains).any())

    @cached_property
    def domains(self) -> int:
        """How many domains the training items have; 0 where they, or the test items, are of none."""
        if self.train.domains is None or self.test.domains is None:
            return 0
        return len(self.train.domains.unique())

    @cached_property
    def numbered(self) -> bool:
        """Whether the items of both splits have numbers that are to be told."""
        return self.train.numbers is not None and self.test.numbers is not None

    @cached_property
    def channels(self) -> set[int]:
        """How many channels the images have, each number once; empty where not all views are images in [0, 1]."""
        shapes = self.test.shapes
        known = all(len(shape) == 3 for shape in shapes)
        known = known and all(self.test.pixel_range(view) is None for view in range(len(shapes)))
        return {shape[0] for shape in shapes} if known else set()

    @cached_property
    def has_shared_encoder(self) -> bool:
        """Whether all views go through one encoder, so that the features of two views can be compared."""
        if isinstance(self.encoder, RawInputs):
            return len(set(self.encoder.shapes)) == 1
        return len(self.encoder.towers) == 1

    @cached_property
    def comparable(self) -> bool:
        """Whether the views can be compared: they are features of one encoder, or projections of one size."""
        if self.has_shared_encoder or isinstance(self.encoder, RawInputs):
            return self.has_shared_encoder
        sizes = {self.encoder.tower(view).projection_width for view in range(len(self.encoder.towers))}
        return len(sizes) == 1

    @cached_property
    def supports_zero_shot(self) -> bool:
        """Whether a text that names a class can be compared with another view of an item."""
        if isinstance(self.encoder, RawInputs) or self.class_names is None or not self.comparable:
            return False
        return {True, False} <= set(map(is_text_shape, self.encoder.shapes)) and len(self.encoder.towers) > 1

    @property
    def trainable(self) -> bool:
        """Whether the encoder has weights."""
        return any(True for _ in self.encoder.parameters())

    @property
    def temperature(self) -> float | None:
        """The temperature of the objective where this is InfoNCE, in either layout, and the encoder has projections."""
        loss = self.objective
        if isinstance(self.encoder, RawInputs) or not isinstance(loss, Objective) or not self.comparable:
            return None
        return loss.temperature if loss.is_info_nce and loss.kernel.cost == "cosine" else None

    @cached_property
    def train_y(self) -> Tensor:
        """The class of each training item, `(n,)`; only where there are labels."""
        assert self.train.labels is not None
        return self.train.labels

    @cached_property
    def test_y(self) -> Tensor:
        """The class of each test item, `(m,)`; only where there are labels."""
        assert self.test.labels is not None
        return self.test.labels

    @cached_property
    def train_domains(self) -> Tensor:
        """The domain of each training item, `(n,)`; only where there are domains."""
        assert self.train.domains is not None
        return self.train.domains

    @cached_property
    def test_domains(self) -> Tensor:
        """The domain of each test item, `(m,)`; only where there are domains."""
        assert self.test.domains is not None
        return self.test.domains

    @cached_property
    def numbers(self) -> tuple[Tensor, Tensor]:
        """The number of each training and of each test item, `(n,)` and `(m,)`; only where there are numbers."""
        assert self.train.numbers is not None
        assert self.test.numbers is not None
        return self.train.numbers, self.test.numbers

    @cached_property
    def train_x(self) -> Tensor:
        """The features of the training items, `(n, F)` on the CPU."""
        return represent(self.encoder, self.train, self.views, self.reader, self.name)

    @cached_property
    def test_x(self) -> Tensor:
        """The features of the test items, `(m, F)` on the CPU."""
        return represent(self.encoder, self.test, self.views, self.reader, self.name)

    @cached_property
    def random_view_features(self) -> tuple[Tensor, Tensor]:
        """The features of two random views of each test item, each `(m, F)`; the views are always the same."""
        first, second = embed_views(self.encoder, self.test, self.views, self.reader, self.name)
        return first, second

    @cached_property
    def projections(self) -> tuple[Tensor, Tensor]:
        """What the objective sees of two random views of each test item, each `(m, d)`."""
        first, second = embed_views(self.encoder, self.test, self.views, self.reader, self.name, project=True)
        return first, second

    @cached_property
    def directions(self) -> tuple[str, ...]:
        """From which view which other is looked for, by their names; nothing where views are random changes of one."""
        names = self.test.view_names
        return tuple(f"{names[v]} to {names[w]}" for v, w in ordered_view_pairs(len(names)))

    @cached_property
    def compared(self) -> tuple[Tensor, ...]:
        """The views by which items are found, each `(m, d)`: all that the data give, or two random changes of one.

        Features where the views share an encoder, else projections, which alone are made to be compared.
        """
        if not self.directions and self.has_shared_encoder:
            return self.random_view_features
        given = len(self.directions) > 0
        return embed_views(
            self.encoder,
            self.test,
            self.views,
            self.reader,
            self.name,
            project=not self.has_shared_encoder,
            plain=given,
        )

    @cached_property
    def ranks(self) -> np.ndarray[Any, Any]:
        """Which place an item's other view has among those of all test items, `(m, k)`, one column a direction."""
        return ranks(*self.compared, shown=self.test.content_ids if self.directions else None)

    @cached_property
    def judged(self) -> Tensor:
        """What the loss sees of the first view of each test item that is no text, `(m, d)`."""
        assert isinstance(self.encoder, Model)
        view = next(view for view, shape in enumerate(self.encoder.shapes) if not is_text_shape(shape))
        return self._of_view(view, self.test.of_views([view]))

    @cached_property
    def class_embeddings(self) -> Tensor:
        """Where the texts are that name each class, `(classes, d)`."""
        assert isinstance(self.encoder, Model)
        assert self.class_names is not None
        view = next(view for view, shape in enumerate(self.encoder.shapes) if is_text_shape(shape))
        texts = from_arrays(prompts(self.class_names, self.templates), name="the names of the classes")
        return class_embeddings(self._of_view(view, texts), len(self.templates))

    def _of_view(self, view: int, items: Dataset) -> Tensor:
        assert isinstance(self.encoder, Model)
        one = self.encoder.of_view(str(view))
        return represent(one, items, Views(items, augment="none"), self.reader, self.name)

    @cached_property
    def probe(self) -> Pipeline:
        """The linear probe, fitted to the training items."""
        return fit_linear_probe(self.train_x, self.train_y)

    @cached_property
    def clusters(self) -> np.ndarray[Any, Any]:
        """The cluster of each test item, `(m,)`; there are as many as classes."""
        return clusters(self.test_x, self.classes)

    def corrupted(self, kind: str, severity: int) -> Tensor:
        """Return the features of the corrupted test items, `(m, F)`; the same corruptions for every encoder."""

        def prepare(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return self.views.plain(tuple(corrupt(view, kind, severity) for view in views))

        with seeded(0, self.device):
            name = f"{self.name}: {kind}, severity {severity}"
            return represent(self.encoder, self.test, self.views, self.reader, name, prepare=prepare)
