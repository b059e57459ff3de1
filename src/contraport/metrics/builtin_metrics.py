"""Built-in metrics, each a short function registered by a decorator.

The modules that compute are imported on first use, so that metrics are listed without torch.
"""

from __future__ import annotations

import math
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import LazyModule
from contraport.metrics.registry import Requirement, register_metric
from contraport.options import keep_deprecated_module_names

if TYPE_CHECKING:
    from contraport.metrics import (
        clustering,
        embedding_geometry,
        fine_tuning,
        intervals,
        probes,
        pseudovalues,
        retrieval_ranks,
        zero_shot,
    )
    from contraport.metrics.eval_context import EvalContext
    from contraport.metrics.intervals import ItemValueArray, MetricResult
else:
    clustering = LazyModule("contraport.metrics.clustering")
    embedding_geometry = LazyModule("contraport.metrics.embedding_geometry")
    fine_tuning = LazyModule("contraport.metrics.fine_tuning")
    pseudovalues = LazyModule("contraport.metrics.pseudovalues")
    intervals = LazyModule("contraport.metrics.intervals")
    probes = LazyModule("contraport.metrics.probes")
    retrieval_ranks = LazyModule("contraport.metrics.retrieval_ranks")
    zero_shot = LazyModule("contraport.metrics.zero_shot")

__getattr__ = keep_deprecated_module_names(__name__, LABELS="REQUIRES_LABELS")

# Requirements: the text is the reason that is printed if the condition fails.
REQUIRES_LABELS = Requirement(
    lambda context: context.train.labels is not None and context.test.labels is not None, "there are no labels"
)
REQUIRES_TWO_CLASSES = Requirement(lambda context: context.num_train_classes > 1, "all labels are of one class")
REQUIRES_TWO_TRAIN_DOMAIN_LABELS = Requirement(
    lambda context: (
        context.train.domains is not None
        and context.test.domains is not None
        and len(context.train_domains.unique()) > 1
    ),
    "there are fewer than two domains",
    is_rarely_met=True,
)
REQUIRES_STORED_AUGMENTATION = Requirement(
    lambda context: context.views.missing_transform_name is None,
    "the augmentation was an object, which the run folder does not store",
    is_rarely_met=True,
)
REQUIRES_COMPARABLE_VIEWS = Requirement(
    attrgetter("has_comparable_views"), "the views have embeddings of different sizes"
)
REQUIRES_ZERO_SHOT_SUPPORT = Requirement(
    attrgetter("supports_zero_shot"),
    "it requires named classes, a text and a view of another kind, such as an image",
    is_rarely_met=True,
)
REQUIRES_ENTITY_PAIRS = Requirement(
    attrgetter("items_are_entity_pairs"), "the items are not pairs between two sets", is_rarely_met=True
)
REQUIRES_NO_ENTITY_PAIRS = Requirement(
    lambda context: not context.items_are_entity_pairs, "a row of a coupling has several partners; see the group links"
)

# Decorators: `register_metric` with the settings that a group of metrics shares.
register_share_metric = partial(register_metric, better="higher", unit="share of test items", value_format="{:.1%}")
register_accuracy_metric = partial(
    register_share_metric, group="accuracy", requires=(REQUIRES_LABELS, REQUIRES_TWO_CLASSES)
)
register_few_label_metric = partial(
    register_share_metric, group="few-labels", requires=(REQUIRES_LABELS, REQUIRES_TWO_CLASSES), default=False
)
register_link_metric = partial(
    register_metric, group="links", requires=(REQUIRES_ENTITY_PAIRS, REQUIRES_COMPARABLE_VIEWS)
)
register_geometry_metric = partial(register_metric, group="geometry", value_format="{:.3f}")
register_clustering_metric = partial(
    register_metric,
    group="clustering",
    better="higher",
    value_format="{:.3f}",
    requires=(
        REQUIRES_LABELS,
        REQUIRES_TWO_CLASSES,
        Requirement(
            lambda context: len(context.test) >= context.num_train_classes, "there are fewer test items than classes"
        ),
    ),
)


@register_accuracy_metric("Linear probe")
def linear_probe_accuracy_per_item(context: EvalContext) -> ItemValueArray:
    """Accuracy of a logistic regression on the features.
    Its penalty is selected on held-out training items.
    """
    return probes.probe_correctness(context.fitted_probe, context.test_features, context.test_labels)


@register_accuracy_metric("kNN")
def knn_hits_result(context: EvalContext) -> MetricResult:
    """Accuracy of a weighted vote among the nearest training items."""
    positions = context.find_test_sample_positions(probes.NUM_SAMPLED_KNN_TEST_ITEMS, len(context.train))
    at = slice(None) if positions is None else positions
    train_features, test_features = (
        features.to(context.encoder_device) for features in (context.train_features, context.test_features[at])
    )
    hits = probes.knn_correctness(
        train_features, context.train_labels, test_features, context.test_labels[at], neighbors=context.neighbors
    )
    return intervals.MetricResult(hits, positions=positions)


@register_metric(
    "Calibration error",
    group="calibration",
    better="lower",
    unit="distance of confidence from accuracy",
    value_format="{:.3f}",
    requires=(REQUIRES_LABELS, REQUIRES_TWO_CLASSES),
)
def rms_calibration_result(context: EvalContext) -> MetricResult:
    """Root mean square gap between probe confidence and accuracy in 15 bins, beyond that expected by chance."""
    pairs = probes.probe_confidence_correctness_pairs(context.fitted_probe, context.test_features, context.test_labels)
    return intervals.MetricResult(probes.squared_calibration_pseudovalues(pairs), intervals.sqrt_bootstrap_means)


@register_few_label_metric("Few-shot@{}", numbers=(1, 5, 10))
def mean_few_shot_accuracy_per_item(context: EvalContext, labels_per_class: int) -> ItemValueArray:
    """Mean accuracy of 5 linear probes, each trained on k random items per class."""
    items = context.train_features, context.train_labels, context.test_features, context.test_labels
    return probes.mean_few_label_accuracy_per_item(*items, lambda size: labels_per_class)


@register_few_label_metric("Few-percent@{}", numbers=(1, 10))
def mean_few_percent_accuracy_per_item(context: EvalContext, percent: int) -> ItemValueArray:
    """Mean accuracy of 5 linear probes, each trained on a random k % of every class.
    At least one item of each class is drawn.
    """
    items = context.train_features, context.train_labels, context.test_features, context.test_labels
    return probes.mean_few_label_accuracy_per_item(*items, lambda size: round(size * percent / 100))


@register_share_metric(
    "Fine-tuning",
    group="fine-tuning",
    requires=(
        REQUIRES_LABELS,
        REQUIRES_TWO_CLASSES,
        Requirement(
            lambda context: any(True for _ in context.encoder.parameters()),
            "there are no weights to train",
            is_rarely_met=True,
        ),
    ),
    default=False,
)
def fine_tuning_accuracy_per_item(context: EvalContext) -> ItemValueArray:
    """Share of test items that an encoder copy, fine-tuned on the labels, classifies correctly."""
    return fine_tuning.fine_tuning_correctness(
        context.model, context.train, context.test, context.views, context.loader_config, name=context.name
    )


@register_metric(
    "Regression",
    group="regression",
    better="higher",
    unit="share of the variance",
    value_format="{:.3f}",
    requires=(
        Requirement(
            lambda context: (
                context.train.regression_targets is not None and context.test.regression_targets is not None
            ),
            "there are no numbers to predict",
            is_rarely_met=True,
        ),
        Requirement(
            lambda context: len(context.regression_targets[1].unique()) > 1, "all test items have the same number"
        ),
    ),
)
def r_squared_result(context: EvalContext) -> MetricResult:
    """R^2 of a ridge regression from the features to numbers such as ages."""
    train, test = context.regression_targets
    predictions = probes.ridge_prediction_target_pairs(context.train_features, train, context.test_features, test)
    return intervals.MetricResult(predictions, probes.bootstrap_r_squared)


@register_share_metric(
    "Domain probe",
    group="domains",
    requires=(
        REQUIRES_TWO_TRAIN_DOMAIN_LABELS,
        Requirement(
            lambda context: set(context.train_domains.tolist()) & set(context.test_domains.tolist()),
            "training and test items share no domain",
            is_rarely_met=True,
        ),
    ),
    better="neither",
)
def domain_probe_accuracy_per_item(context: EvalContext) -> ItemValueArray:
    """Accuracy of a linear probe that predicts the domain from the features."""
    probe = probes.fit_linear_probe(context.train_features, context.train_domains)
    return probes.probe_correctness(probe, context.test_features, context.test_domains)


@register_share_metric(
    "Unseen domain",
    group="domains",
    requires=(
        REQUIRES_LABELS,
        REQUIRES_TWO_CLASSES,
        REQUIRES_TWO_TRAIN_DOMAIN_LABELS,
        Requirement(
            lambda context: all(
                len(context.train_labels[context.train_domains != domain].unique()) > 1
                for domain in context.test_domains.unique()
            ),
            "domains share fewer than two classes",
            is_rarely_met=True,
        ),
    ),
)
def held_out_domain_accuracy_per_item(context: EvalContext) -> ItemValueArray:
    """Accuracy of linear probes, each tested on a domain left out of training."""
    return probes.held_out_domain_correctness(
        context.train_features,
        context.train_labels,
        context.train_domains,
        context.test_features,
        context.test_labels,
        context.test_domains,
    )


@register_link_metric(
    "Link recall@{}",
    better="higher",
    unit="share of test pairs",
    value_format="{:.1%}",
    numbers=(1, 10, 50),
    headline=(10,),  # few rows have one partner only, so that recall@1 is bounded; 50 may be most of the columns
)
def link_recall_result(context: EvalContext, k: int) -> MetricResult:
    """Share of test pairs whose column is among the row's k nearest columns.
    Columns of the row's training pairs are left out.
    """
    values = context.columns_ranked_per_row.pair_recall_row_pseudovalues_at(k)
    return intervals.MetricResult(values, intervals.bootstrap_means_limited_to_0_1)


@register_link_metric(
    "Link NDCG@{}", better="higher", unit="share of the ideal gain", value_format="{:.3f}", numbers=(10,)
)
def link_ndcg_result(context: EvalContext, k: int) -> MetricResult:
    """Normalized discounted cumulative gain of each row's k nearest columns.
    The columns of the row's test pairs are relevant.
    """
    return intervals.MetricResult(context.columns_ranked_per_row.row_ndcg_at(k))


@register_link_metric(
    "Link coverage@{}", better="higher", unit="share of columns", value_format="{:.1%}", numbers=(10,), headline=False
)
def link_share_of_columns_in_any_top_k(context: EvalContext, k: int) -> float:
    """Share of all columns that are among some row's k nearest columns."""
    return context.columns_ranked_per_row.share_of_columns_in_any_top_k(k)


@register_link_metric(
    "Link hubness@{}", better="lower", unit="skewness", value_format="{:.2f}", numbers=(10,), headline=False
)
def link_hubness(context: EvalContext, k: int) -> float:
    """Skewness of how often columns are among a row's k nearest.
    Columns with many true partners raise it.
    """
    return context.columns_ranked_per_row.column_hubness(k)


@register_link_metric(
    "Link popularity@{}", better="neither", unit="relative to training pairs", value_format="{:.2f}", numbers=(10,)
)
def nearest_to_paired_popularity_ratio(context: EvalContext, k: int) -> float:
    """Mean popularity of each row's k nearest columns, relative to the mean over training pairs.
    The popularity of a column is its number of training pairs.
    """
    return context.columns_ranked_per_row.nearest_to_paired_popularity_ratio(k)


@register_metric(
    "New row recall@{}",
    group="links",
    better="higher",
    unit="share of test pairs",
    value_format="{:.1%}",
    requires=(
        REQUIRES_ENTITY_PAIRS,
        REQUIRES_COMPARABLE_VIEWS,
        Requirement(
            attrgetter("has_test_rows_without_training_pairs"), "each row of the test pairs has training pairs", True
        ),
    ),
    numbers=(10,),
    headline=False,
)
def new_row_recall(context: EvalContext, k: int) -> float:
    """Recall@k of the test pairs whose row has no training pair (cold start)."""
    ranking = context.columns_ranked_per_row
    return float(ranking.pair_hits_at(k)[ranking.pair_has_unseen_row].mean())


@register_share_metric(
    "Recall@{}",
    group="retrieval",
    requires=(REQUIRES_NO_ENTITY_PAIRS, REQUIRES_COMPARABLE_VIEWS, REQUIRES_STORED_AUGMENTATION),
    numbers=(1, 5, 10),
)
def retrieval_hits_result(context: EvalContext, k: int) -> MetricResult:
    """Share of test items whose other view is among the k nearest of all test items.
    It is the mean over both directions; two augmentations serve as the views of data with one view.
    """
    return intervals.MetricResult(
        context.retrieval_rank_table <= k,
        column_names=context.retrieval_direction_names,
        positions=context.retrieval_sample_positions,
    )


@register_metric(
    "Median rank",
    group="retrieval",
    better="lower",
    unit="position among the candidates",
    value_format="{:.1f}",
    requires=(REQUIRES_NO_ENTITY_PAIRS, REQUIRES_COMPARABLE_VIEWS, REQUIRES_STORED_AUGMENTATION),
)
def median_rank_result(context: EvalContext) -> MetricResult:
    """Median rank of an item's other view among all test items; 1 is best.
    It is averaged over both directions, like the recall.
    """
    return intervals.MetricResult(
        context.retrieval_rank_table,
        intervals.bootstrap_medians,
        column_names=context.retrieval_direction_names,
        positions=context.retrieval_sample_positions,
    )


@register_share_metric("Zero-shot", group="zero-shot", requires=(REQUIRES_LABELS, REQUIRES_ZERO_SHOT_SUPPORT))
def zero_shot_accuracy_per_item(context: EvalContext) -> ItemValueArray:
    """Accuracy of classifying each test item by its nearest class text.
    No label is used for training.
    """
    items, classes = context.embed_items_and_class_texts()
    return zero_shot.zero_shot_correctness(items, context.test_labels, classes)


@register_metric(
    "Mutual information",
    group="retrieval",
    better="higher",
    unit="nats",
    value_format="{:.3f}",
    requires=(
        REQUIRES_COMPARABLE_VIEWS,
        REQUIRES_STORED_AUGMENTATION,
        Requirement(
            lambda context: context.temperature_if_trained_by_cosine_info_nce is not None,
            "the objective is not InfoNCE",
            is_rarely_met=True,
        ),
    ),
    headline=False,
)
def mutual_information_bound_result(context: EvalContext) -> MetricResult:
    """InfoNCE lower bound on the mutual information of the projections of two views.
    It is log n minus the InfoNCE loss on all n test items. Only for InfoNCE losses, such as nt-xent.
    """
    assert context.temperature_if_trained_by_cosine_info_nce is not None
    positions = context.retrieval_sample_positions
    values = retrieval_ranks.symmetric_log_match_probability(
        *context.test_random_view_projector_outputs,
        context.temperature_if_trained_by_cosine_info_nce,
        positions=positions,
    )
    return intervals.MetricResult(math.log(len(context.test)) + values, positions=positions)


@register_geometry_metric(
    "Alignment",
    better="lower",
    unit="squared distance",
    requires=(
        Requirement(attrgetter("has_shared_encoder"), "each view has its own encoder"),
        REQUIRES_STORED_AUGMENTATION,
    ),
)
def alignment_per_item(context: EvalContext) -> ItemValueArray:
    """Squared distance on the unit sphere between two random views of each item.
    The metric is the mean over items.
    """
    return embedding_geometry.squared_unit_view_distances(*context.test_random_view_features)


@register_geometry_metric("Uniformity", better="lower", unit="logarithm")
def uniformity_result(context: EvalContext) -> MetricResult:
    """Log of the mean of exp(-2 |zi - zj|^2) over pairs of items.
    Embeddings are on the unit sphere; lower is more even.
    """
    return intervals.MetricResult(pseudovalues.compute_uniformity_pseudovalues(context.test_features))


@register_geometry_metric(
    "Tolerance",
    better="neither",
    unit="cosine",
    requires=(
        REQUIRES_LABELS,
        Requirement(lambda context: context.test_labels.bincount().max() > 1, "no class has two test items"),
    ),
)
def same_class_cosine_result(context: EvalContext) -> MetricResult:
    """Mean cosine between items of the same class.
    Better uniformity usually lowers it.
    """
    values = pseudovalues.compute_tolerance_pseudovalues(context.test_features, context.test_labels)
    return intervals.MetricResult(values)


@register_geometry_metric("Effective rank", better="neither", unit="directions", value_format="{:.1f}")
def effective_rank_result(context: EvalContext) -> MetricResult:
    """Effective number of dimensions of the features.
    It is exp of the entropy of the singular values.
    """
    return intervals.MetricResult(pseudovalues.compute_effective_rank_pseudovalues(context.test_features))


@register_geometry_metric(
    "Hubness",
    better="lower",
    unit="skewness",
    value_format="{:.2f}",
    requires=(Requirement(lambda context: len(context.test) > 10, "there are only 10 test items or fewer"),),
)
def hubness_result(context: EvalContext) -> MetricResult:
    """Skewness of how often items are among the 10 nearest neighbors of others.
    It is large if a few items are near everything.
    """
    return intervals.MetricResult(pseudovalues.compute_hubness_pseudovalues(context.test_features))


@register_clustering_metric("NMI", unit="share of information")
def nmi_result(context: EvalContext) -> MetricResult:
    """Normalized mutual information between classes and the same number of k-means clusters."""
    values = clustering.nmi_pseudovalues(context.test_labels, context.test_clusters)
    return intervals.MetricResult(values, intervals.bootstrap_means_limited_to_0_1)


@register_clustering_metric("ARI", unit="share of pairs above chance")
def ari_result(context: EvalContext) -> MetricResult:
    """Adjusted Rand index between classes and the same number of k-means clusters."""
    values = clustering.ari_pseudovalues(context.test_labels, context.test_clusters)
    return intervals.MetricResult(values, intervals.bootstrap_means_kept_below_1)


def _register_corruption_metric(kind: str, title: str, images_phrase: str, *requirements: Requirement) -> None:
    """Register the accuracy of the linear probe under one kind of corruption."""

    def accuracy(context: EvalContext, severity: int) -> ItemValueArray:
        features = context.corrupted_features(kind, severity)
        return probes.probe_correctness(context.fitted_probe, features, context.test_labels)

    accuracy.__doc__ = f"Accuracy of the linear probe on {images_phrase}, with severity k from 1 to 5."
    all_requirements = (
        REQUIRES_LABELS,
        REQUIRES_TWO_CLASSES,
        Requirement(
            attrgetter("has_only_unit_range_images"),
            "the items are not images with pixels in [0, 1]",
            is_rarely_met=True,
        ),
        *requirements,
    )
    numbers = (1, 2, 3, 4, 5)
    register_share_metric(title, group="robustness", numbers=numbers, requires=all_requirements, default=False)(
        accuracy
    )


_register_corruption_metric("noise", "Noise@{}", "test images with Gaussian noise")
_register_corruption_metric("blur", "Blur@{}", "blurred test images")
_register_corruption_metric("brightness", "Brightness@{}", "brightened test images")
_register_corruption_metric("contrast", "Contrast@{}", "test images with reduced contrast")
_register_corruption_metric("occlusion", "Occlusion@{}", "test images with a gray square at a random position")
_register_corruption_metric(
    "jpeg",
    "JPEG@{}",
    "test images after strong JPEG compression",
    Requirement(
        lambda context: {shape[0] for shape in context.test.shapes} <= {1, 3},
        "JPEG needs 1 or 3 channels",
        is_rarely_met=True,
    ),
)
