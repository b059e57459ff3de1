"""Evaluation context of an encoder, with cached features for all metrics."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.data import Dataset, Views, from_arrays
from contraport.data.duplicate_groups import first_index_by_group
from contraport.data.mismatches_and_corruptions import corrupt_images
from contraport.embedding import LoaderConfig, RawInputEncoder, embed_views, extract_item_features, fixed_seed
from contraport.encoders import Model
from contraport.metrics.clustering import assign_kmeans_clusters
from contraport.metrics.column_item_ranking import ColumnRanking, rank_columns
from contraport.metrics.probes import fit_linear_probe
from contraport.metrics.retrieval_ranks import (
    MAX_PAIRS_WITHOUT_SAMPLING,
    NUM_SAMPLED_RETRIEVAL_TEST_ITEMS,
    retrieval_ranks_by_view_pair,
)
from contraport.metrics.zero_shot import CLASS_PROMPT_TEMPLATES, build_class_prompts, compute_unit_class_embeddings
from contraport.objectives import Loss, Objective
from contraport.options import keep_deprecated_attributes
from contraport.seeding import torch_generator

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


@keep_deprecated_attributes(
    device="encoder_device",
    temperature_if_info_nce="temperature_if_trained_by_cosine_info_nce",
    num_classes="num_train_classes",
    truncate="with_truncated_features",
    train_x="train_features",
    test_x="test_features",
    train_y="train_labels",
    test_y="test_labels",
    is_coupling="items_are_entity_pairs",
    has_new_rows="has_test_rows_without_training_pairs",
    retrieval_embeddings="test_view_embeddings_for_retrieval",
    retrieval_view_embeddings="test_view_embeddings_for_retrieval",
    column_ranking="columns_ranked_per_row",
)
class EvalContext:
    """Frozen encoder with training and test items, and their cached features.

    Features are computed once, on first use, and shared by all metrics.

    Args:
        encoder: the encoder to evaluate; its weights and buffers are not changed.
        train: items that probes are trained on.
        test: items that metrics are computed on.
        views: makes views of an item.
        loader_config: batch size, device and workers for loading items.
        name: name of the encoder in progress bars.
        neighbors: number of neighbors of kNN.
        objective: training objective of the encoder, if known.
        classes: names of the classes in texts, in the order of their numbers; default: those of the data.
        templates: texts with ``{}`` in the place of a class name.
    """

    def __init__(
        self,
        encoder: Model | RawInputEncoder,
        train: Dataset,
        test: Dataset,
        views: Views,
        loader_config: LoaderConfig,
        *,
        name: str = "encoder",
        neighbors: int = 20,
        objective: Loss | None = None,
        classes: Sequence[str] | None = None,
        templates: Sequence[str] = CLASS_PROMPT_TEMPLATES,
    ) -> None:
        self.encoder: Model | RawInputEncoder = encoder
        self.loader_config = loader_config
        self.views: Views = views
        self.train: Dataset = train
        self.test: Dataset = test
        self.name, self.neighbors, self.objective = name, neighbors, objective
        self.class_names, self.templates = classes or test.class_names, tuple(templates)
        self._untruncated: EvalContext | None = None

    def with_truncated_features(self, dims: int) -> EvalContext:
        """Return a copy whose representations are truncated to their first `dims` coordinates.

        Its name is ``dims 64`` or alike. Items are not embedded again for metrics on the representation.
        """
        context = copy.copy(self)
        context.__dict__ = {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(EvalContext, name, None), cached_property)
        }
        context.encoder, context.name, context._untruncated = self.model.truncate(dims), f"dims {dims}", self
        return context

    def _extract_features(self, dataset: Dataset, full_width_features: Tensor | None) -> Tensor:
        """Compute a dataset's features, `(n, F)`, or obtain them by truncating wider ones."""
        if full_width_features is None:
            return extract_item_features(self.encoder, dataset, self.views, self.loader_config, self.name)
        parts = full_width_features.split(self.model.untruncated_representation_sizes, dim=1)
        return torch.cat([part[:, : self.model.dims] for part in parts], dim=1)

    @property
    def model(self) -> Model:
        """Encoder, which must be a `Model` and not a raw-input baseline."""
        assert isinstance(self.encoder, Model)
        return self.encoder

    @property
    def encoder_device(self) -> torch.device:
        """Device on which the encoder computes features."""
        return self.loader_config.device

    @cached_property
    def num_train_classes(self) -> int:
        """Number of classes of the training items, 0 without labels."""
        return 0 if self.train.labels is None else len(self.train.labels.unique())

    @property
    def has_only_unit_range_images(self) -> bool:
        """True if all views are images with pixels in [0, 1]."""
        shapes = self.test.shapes
        are_images = all(len(shape) == 3 for shape in shapes)
        return are_images and all(self.test.non_unit_channel_range(view) is None for view in range(len(shapes)))

    @cached_property
    def has_shared_encoder(self) -> bool:
        """True if one encoder embeds all views."""
        if isinstance(self.encoder, RawInputEncoder):
            return len(set(self.encoder.shapes)) == 1
        return len(self.encoder.towers) == 1

    @cached_property
    def has_comparable_views(self) -> bool:
        """True if embeddings of different views can be compared with each other."""
        if self.has_shared_encoder or isinstance(self.encoder, RawInputEncoder):
            return self.has_shared_encoder
        sizes = {self.encoder.tower(view).projection_width for view in range(len(self.encoder.towers))}
        return len(sizes) == 1

    @property
    def supports_zero_shot(self) -> bool:
        """True if class texts can be compared with a non-text view."""
        if isinstance(self.encoder, RawInputEncoder) or self.class_names is None or not self.has_comparable_views:
            return False
        return {True, False} <= {shape == TEXT_SHAPE for shape in self.encoder.shapes} and len(self.encoder.towers) > 1

    @property
    def temperature_if_trained_by_cosine_info_nce(self) -> float | None:
        """Temperature of the objective if it is InfoNCE on cosines, otherwise None."""
        loss, is_trained = self.objective, not isinstance(self.encoder, RawInputEncoder)
        if isinstance(loss, Objective) and loss.is_info_nce and loss.kernel.cost == "cosine":
            return loss.temperature if is_trained and self.has_comparable_views else None
        return None

    @cached_property
    def train_labels(self) -> Tensor:
        """Class of each training item, `(n,)`."""
        return _get_required_tensor(self.train.labels)

    @cached_property
    def test_labels(self) -> Tensor:
        """Class of each test item, `(m,)`."""
        return _get_required_tensor(self.test.labels)

    @property
    def train_domains(self) -> Tensor:
        """Domain of each training item, `(n,)`."""
        return _get_required_tensor(self.train.domains)

    @property
    def test_domains(self) -> Tensor:
        """Domain of each test item, `(m,)`."""
        return _get_required_tensor(self.test.domains)

    @property
    def regression_targets(self) -> tuple[Tensor, Tensor]:
        """Regression targets of the training items `(n,)` and test items `(m,)`."""
        return _get_required_tensor(self.train.regression_targets), _get_required_tensor(self.test.regression_targets)

    @cached_property
    def train_features(self) -> Tensor:
        """Features of the training items, `(n, F)` on the CPU."""
        return self._extract_features(
            self.train, None if self._untruncated is None else self._untruncated.train_features
        )

    @cached_property
    def test_features(self) -> Tensor:
        """Features of the test items, `(m, F)` on the CPU."""
        return self._extract_features(self.test, None if self._untruncated is None else self._untruncated.test_features)

    @cached_property
    def test_random_view_features(self) -> tuple[Tensor, Tensor]:
        """Features of two random views of each test item, each `(m, F)`."""
        first, second = self._embed_views(self.test)
        return first, second

    @cached_property
    def test_random_view_projector_outputs(self) -> tuple[Tensor, Tensor]:
        """Outputs of the projector for two random views of each test item, each `(m, d)`."""
        first, second = self._embed_views(self.test, project=True)
        return first, second

    def _embed_views(
        self, items: Dataset, *, project: bool = False, view_kind: Literal["two random", "unaugmented"] = "two random"
    ) -> tuple[Tensor, ...]:
        """Embed each item's views, random or unaugmented as `view_kind` selects."""
        return embed_views(
            self.encoder, items, self.views, self.loader_config, self.name, project=project, view_kind=view_kind
        )

    @cached_property
    def retrieval_direction_names(self) -> tuple[str, ...]:
        """Retrieval directions such as "image to caption", empty for a single view."""
        return tuple(f"{query} to {candidate}" for query, candidate in permutations(self.test.view_names, 2))

    @cached_property
    def test_view_embeddings_for_retrieval(self) -> tuple[Tensor, ...]:
        """Embeddings of all test items for retrieval, `(m, d)` for each view.

        The views are those of the data, or two augmentations. Features if the views share an encoder; otherwise
        projections, since only those are trained to be comparable.
        """
        if not self.retrieval_direction_names and self.has_shared_encoder:
            return self.test_random_view_features
        kind: Literal["two random", "unaugmented"] = "unaugmented" if self.retrieval_direction_names else "two random"
        return self._embed_views(self.test, project=not self.has_shared_encoder, view_kind=kind)

    @cached_property
    def retrieval_rank_table(self) -> np.ndarray[Any, Any]:
        """Each test item's retrieval rank for each ordered pair of views, `(m, k)`.

        Rank 1 is the nearest. Of a sample of many items, those of `retrieval_sample_positions`.
        """
        return retrieval_ranks_by_view_pair(
            *self.test_view_embeddings_for_retrieval,
            content_ids=self.test.view_content_ids_if_repeated if self.retrieval_direction_names else None,
            positions=self.retrieval_sample_positions,
        )

    @cached_property
    def retrieval_sample_positions(self) -> np.ndarray[Any, Any] | None:
        """Positions of the test items whose retrieval ranks are computed, None for all."""
        return self.find_test_sample_positions(NUM_SAMPLED_RETRIEVAL_TEST_ITEMS, len(self.test))

    def find_test_sample_positions(self, sample_size: int, candidates_per_item: int) -> np.ndarray[Any, Any] | None:
        """Return positions of a random subset of test items, or None for all.

        All are used if there are no more, or if all pairs of a test item and a candidate are at most
        `MAX_PAIRS_WITHOUT_SAMPLING`. Samples are the same for every encoder; a smaller one is part of a larger one.
        """
        items = len(self.test)
        if items <= sample_size or items * candidates_per_item <= MAX_PAIRS_WITHOUT_SAMPLING:
            return None
        return torch.randperm(items, generator=torch_generator("metrics.test_sample", items))[:sample_size].numpy()

    @property
    def items_are_entity_pairs(self) -> bool:
        """True if each item is a pair of two kinds of entities, such as user and product."""
        return self.train.entity_ids is not None and self.test.entity_ids is not None

    @property
    def has_test_rows_without_training_pairs(self) -> bool:
        """True if some row has test pairs but no training pairs."""
        train, test = (_get_required_tensor(part.entity_ids)[:, 0] for part in (self.train, self.test))
        return not bool(torch.isin(test, train).all())

    @cached_property
    def columns_ranked_per_row(self) -> ColumnRanking:
        """Ranking of the column entities by similarity, for each row entity in a test pair."""
        splits = [_get_required_tensor(part.entity_ids) for part in (self.train, self.test)]
        used, columns = torch.cat(splits)[:, 1].unique(return_inverse=True)
        pairs = torch.stack([torch.cat(splits)[:, 0], columns], dim=1)
        rows, used_columns = self._embed_entities_by_id(0), self._embed_entities_by_id(1)[used]
        return rank_columns(rows, used_columns, *pairs.split(list(map(len, splits))))

    def _embed_entities_by_id(self, view: int) -> Tensor:
        """Return the embedding of each entity of one view, such as each user, `(num_ids, d)`.

        Rows are by entity id, and zero for unpaired ids. Each is embedded once, in the first of its pairs; a test pair
        is used only for what training pairs lack.
        """
        train_ids, test_ids = (_get_required_tensor(part.entity_ids)[:, view] for part in (self.train, self.test))
        new = (~torch.isin(test_ids, train_ids)).nonzero()[:, 0]
        project = not self.has_shared_encoder
        size, side = int(torch.cat([train_ids, test_ids]).amax()) + 1, torch.empty(0)
        for dataset, ids, pairs in ((self.train, train_ids, torch.arange(len(train_ids))), (self.test, test_ids, new)):
            if len(pairs):
                first = pairs[first_index_by_group(torch.unique(ids[pairs], return_inverse=True)[1])]
                views = self._embed_views(dataset.subset(first), project=project, view_kind="unaugmented")
                embedded = views[view].cpu()
                side = embedded.new_zeros(size, embedded.shape[1]) if len(side) == 0 else side
                side[ids[first]] = embedded
        return side

    def embed_items_and_class_texts(self) -> tuple[Tensor, Tensor]:
        """Embed a non-text view of test items `(m, d)`, and class texts `(classes, d)`."""
        assert self.class_names is not None
        is_text = [shape == TEXT_SHAPE for shape in self.model.shapes]
        other_view = is_text.index(False)
        prompts = from_arrays(build_class_prompts(self.class_names, self.templates), name="class names")
        items, texts = (
            extract_item_features(
                self.model.to_single_view(str(view)), part, Views(part, augment="none"), self.loader_config, self.name
            )
            for view, part in ((other_view, self.test.select_views([other_view])), (is_text.index(True), prompts))
        )
        return items, compute_unit_class_embeddings(texts, len(self.templates))

    @cached_property
    def fitted_probe(self) -> Pipeline:
        """Linear probe, fitted on the features of the training items."""
        return fit_linear_probe(self.train_features, self.train_labels)

    @cached_property
    def test_clusters(self) -> np.ndarray[Any, Any]:
        """k-means cluster of each test item, `(m,)`, with as many clusters as classes."""
        return assign_kmeans_clusters(self.test_features, self.num_train_classes)

    def corrupted_features(self, kind: str, severity: int) -> Tensor:
        """Return the features of the corrupted test items, `(m, F)`."""

        def prepare(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return self.views.make_unaugmented(tuple(corrupt_images(view, kind, severity) for view in views))

        with fixed_seed(0, self.encoder_device):
            name = f"{self.name}: {kind}, severity {severity}"
            return extract_item_features(self.encoder, self.test, self.views, self.loader_config, name, prepare=prepare)


def _get_required_tensor(values: Tensor | None) -> Tensor:
    """Return an optional tensor of the context, asserting that it is present."""
    assert values is not None
    return values
