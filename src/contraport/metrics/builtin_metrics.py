"""Every measure: a row, and the few lines that say how it is found of a subject.

What computes is imported within each function, so that the names are known without torch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from contraport.metrics.registry import (
    AS_MANY_AS_CLASSES,
    CHANGES,
    CLASSES,
    COMPARABLE,
    DIFFERENT_NUMBERS,
    DOMAINS,
    ENOUGH,
    GREY_OR_RGB,
    IMAGES,
    INFO_NCE,
    LABELS,
    NUMBERS,
    ONE_TOWER,
    SEEN_DOMAINS,
    SEVERAL_OF_A_CLASS,
    SHARED_CLASSES,
    TEXTS,
    WEIGHTS,
    measure,
)

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext
    from contraport.metrics.intervals import ItemValues, MetricResult

share = partial(measure, better="higher", unit="share of test items", pattern="{:.1%}")
accuracy = partial(share, group="accuracy", needs=(LABELS, CLASSES))
few_labels = partial(share, group="few-labels", needs=(LABELS, CLASSES), usual=False)
domains = partial(share, group="domains")
retrieval = partial(share, group="retrieval", needs=(COMPARABLE, CHANGES))
geometry = partial(measure, group="geometry", pattern="{:.3f}")
clustering = partial(
    measure, group="clustering", better="higher", pattern="{:.3f}", needs=(LABELS, CLASSES, AS_MANY_AS_CLASSES)
)
robustness = partial(share, group="robustness", numbers=(1, 2, 3, 4, 5), usual=False)


@accuracy("Linear probe")
def linear_probe(subject: EvalContext) -> ItemValues:
    """Accuracy of a logistic regression on the features; its penalty is chosen on a part of the training items."""
    from contraport.metrics.probes import probe_hits

    return probe_hits(subject.probe, subject.test_x, subject.test_y)


@accuracy("kNN")
def knn(subject: EvalContext) -> ItemValues:
    """Accuracy of a vote among the nearest training items."""
    from contraport.metrics.probes import knn_hits

    train_x, test_x = (features.to(subject.device) for features in (subject.train_x, subject.test_x))
    return knn_hits(train_x, subject.train_y, test_x, subject.test_y, neighbors=subject.neighbors)


@measure(
    "Calibration error",
    group="calibration",
    better="lower",
    unit="distance of confidence from accuracy",
    pattern="{:.3f}",
    needs=(LABELS, CLASSES),
)
def calibration_error(subject: EvalContext) -> MetricResult:
    """How far the linear probe's confidence is from its accuracy: the root mean square over 15 bins."""
    from contraport.metrics.intervals import MetricResult, root_mean
    from contraport.metrics.probes import confidences, squared_calibration_terms

    return MetricResult(
        squared_calibration_terms(confidences(subject.probe, subject.test_x, subject.test_y)), root_mean
    )


@few_labels("Few-shot@{}", numbers=(1, 5, 10))
def few_shot(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of a linear probe trained on this many items of each class: the mean over 5 random draws."""
    from contraport.metrics.probes import few_labels_hits, sample_per_class

    labels = subject.train_y
    draw = partial(sample_per_class, labels, lambda size: number)
    return few_labels_hits(subject.train_x, labels, subject.test_x, subject.test_y, draw)


@few_labels("Few-percent@{}", numbers=(1, 10))
def few_percent(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of a linear probe trained on this share of each class (at least one item): the mean over 5 draws."""
    from contraport.metrics.probes import few_labels_hits, sample_per_class

    labels = subject.train_y
    draw = partial(sample_per_class, labels, lambda size: round(size * number / 100))
    return few_labels_hits(subject.train_x, labels, subject.test_x, subject.test_y, draw)


@share("Fine-tuning", group="fine-tuning", needs=(LABELS, CLASSES, WEIGHTS), usual=False)
def fine_tuning(subject: EvalContext) -> ItemValues:
    """Accuracy after training all weights of a copy of the encoder on the labels: no probe, nothing frozen."""
    from contraport.encoders import Model
    from contraport.metrics.fine_tuning import fine_tuned_hits

    assert isinstance(subject.encoder, Model)
    return fine_tuned_hits(
        subject.encoder, subject.train, subject.test, subject.views, subject.reader, name=subject.name
    )


@measure(
    "Regression",
    group="regression",
    better="higher",
    unit="share of the variance",
    pattern="{:.3f}",
    needs=(NUMBERS, DIFFERENT_NUMBERS),
)
def regression(subject: EvalContext) -> MetricResult:
    """Share of the variance of the items' numbers, such as ages, that a ridge regression on the features explains."""
    from contraport.metrics.intervals import MetricResult
    from contraport.metrics.probes import r_squared, ridge_predictions

    train, test = subject.numbers
    return MetricResult(ridge_predictions(subject.train_x, train, subject.test_x, test), r_squared)


@domains("Domain probe", needs=(DOMAINS, SEEN_DOMAINS), better="neither")
def domain_probe(subject: EvalContext) -> ItemValues:
    """Accuracy of a linear probe that predicts the domain: how much the features tell about it."""
    from contraport.metrics.probes import fit_linear_probe, probe_hits

    return probe_hits(fit_linear_probe(subject.train_x, subject.train_domains), subject.test_x, subject.test_domains)


@domains("Unseen domain", needs=(LABELS, CLASSES, DOMAINS, SHARED_CLASSES))
def unseen_domain(subject: EvalContext) -> ItemValues:
    """Accuracy of a linear probe in each domain, trained on the other domains only."""
    from contraport.metrics.probes import unseen_domain_hits

    return unseen_domain_hits(
        (subject.train_x, subject.train_y, subject.train_domains),
        (subject.test_x, subject.test_y, subject.test_domains),
    )


@retrieval("Recall@{}", numbers=(1, 5, 10))
def recall(subject: EvalContext, number: int) -> MetricResult:
    """Share of test items whose other view is among this many nearest of all other views: the mean over directions."""
    from contraport.metrics.intervals import MetricResult

    return MetricResult(subject.ranks <= number, parts=subject.directions)


@measure("Median rank", group="retrieval", better="lower", unit="place", pattern="{:.1f}", needs=(COMPARABLE, CHANGES))
def median_rank(subject: EvalContext) -> MetricResult:
    """Median rank of an item's other view among the other views of all items, over directions; 1 is the nearest."""
    from contraport.metrics.intervals import MetricResult, median

    return MetricResult(subject.ranks, median, parts=subject.directions)


@share("Zero-shot", group="zero-shot", needs=(LABELS, TEXTS))
def zero_shot(subject: EvalContext) -> ItemValues:
    """Share of test items whose nearest class text names their own class; no label is used for training."""
    from contraport.metrics.zero_shot import zero_shot_hits

    return zero_shot_hits(subject.judged, subject.test_y, subject.class_embeddings)


@measure(
    "Mutual information",
    group="retrieval",
    better="higher",
    unit="nats",
    pattern="{:.3f}",
    needs=(COMPARABLE, CHANGES, INFO_NCE),
)
def mutual_information(subject: EvalContext) -> ItemValues:
    """Lower bound on the mutual information of two views: log n minus the InfoNCE loss on all n test items."""
    import math

    from contraport.metrics.retrieval import log_match_probabilities

    assert subject.temperature is not None
    return math.log(len(subject.test)) + log_match_probabilities(*subject.projections, subject.temperature)


@geometry("Alignment", better="lower", unit="squared distance", needs=(ONE_TOWER, CHANGES))
def alignment(subject: EvalContext) -> ItemValues:
    """Squared distance between two random views of an item, on the sphere."""
    from contraport.metrics.embedding_geometry import distances

    return distances(*subject.random_view_features)


@geometry("Uniformity", better="lower", unit="logarithm")
def uniformity(subject: EvalContext) -> ItemValues:
    """How evenly items spread over the sphere: log mean exp(-2 |zi - zj|^2) over all pairs."""
    from contraport.metrics.influence import uniformity_influence

    return uniformity_influence(subject.test_x)


@geometry("Tolerance", better="neither", unit="cosine", needs=(LABELS, SEVERAL_OF_A_CLASS))
def tolerance(subject: EvalContext) -> ItemValues:
    """Mean cosine of two items of the same class; more uniformity usually costs tolerance."""
    from contraport.metrics.influence import tolerance_influence

    return tolerance_influence(subject.test_x, subject.test_y)


@geometry("Effective rank", better="neither", unit="directions", pattern="{:.1f}")
def effective_rank(subject: EvalContext) -> ItemValues:
    """How many directions the features use: exp of the entropy of the singular values."""
    from contraport.metrics.influence import effective_rank_influence

    return effective_rank_influence(subject.test_x)


@geometry("Hubness", better="lower", unit="skewness", pattern="{:.2f}", needs=(ENOUGH,))
def hubness(subject: EvalContext) -> ItemValues:
    """Skewness of how often an item is among the 10 nearest of others: large if a few items are near everything."""
    from contraport.metrics.influence import hubness_influence

    return hubness_influence(subject.test_x)


@clustering("NMI", unit="share of information")
def nmi(subject: EvalContext) -> MetricResult:
    """Normalised mutual information between k-means clusters (as many as classes) and the classes."""
    from contraport.metrics.clustering import shared_information
    from contraport.metrics.influence import nmi_influence
    from contraport.metrics.intervals import MetricResult, clipped_bootstrap_mean

    found = subject.clusters
    by_item = nmi_influence(shared_information(subject.test_y, found), subject.test_y, found)
    return MetricResult(by_item, clipped_bootstrap_mean)


@clustering("ARI", unit="share of pairs above chance")
def ari(subject: EvalContext) -> MetricResult:
    """Adjusted Rand index between k-means clusters (as many as classes) and the classes."""
    from contraport.metrics.clustering import agreement
    from contraport.metrics.influence import ari_influence
    from contraport.metrics.intervals import MetricResult, bounded_bootstrap_mean

    found = subject.clusters
    return MetricResult(ari_influence(agreement(subject.test_y, found), subject.test_y, found), bounded_bootstrap_mean)


def _corrupted_hits(subject: EvalContext, kind: str, severity: int) -> ItemValues:
    from contraport.metrics.probes import probe_hits

    return probe_hits(subject.probe, subject.corrupted(kind, severity), subject.test_y)


@robustness("Noise@{}", needs=(LABELS, CLASSES, IMAGES))
def noise(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of the linear probe on test images with Gaussian noise of severity 1 to 5."""
    return _corrupted_hits(subject, "noise", number)


@robustness("Blur@{}", needs=(LABELS, CLASSES, IMAGES))
def blur(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of the linear probe on test images with blur of severity 1 to 5."""
    return _corrupted_hits(subject, "blur", number)


@robustness("Brightness@{}", needs=(LABELS, CLASSES, IMAGES))
def brightness(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of the linear probe on test images that are made brighter, with severity 1 to 5."""
    return _corrupted_hits(subject, "brightness", number)


@robustness("Contrast@{}", needs=(LABELS, CLASSES, IMAGES))
def contrast(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of the linear probe on test images with less contrast, with severity 1 to 5."""
    return _corrupted_hits(subject, "contrast", number)


@robustness("Occlusion@{}", needs=(LABELS, CLASSES, IMAGES))
def occlusion(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of the linear probe on test images with a grey square somewhere, with severity 1 to 5."""
    return _corrupted_hits(subject, "occlusion", number)


@robustness("JPEG@{}", needs=(LABELS, CLASSES, IMAGES, GREY_OR_RGB))
def jpeg(subject: EvalContext, number: int) -> ItemValues:
    """Accuracy of the linear probe on test images after strong JPEG compression, with severity 1 to 5."""
    return _corrupted_hits(subject, "jpeg", number)
