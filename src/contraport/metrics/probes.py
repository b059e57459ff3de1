"""Linear, k-nearest-neighbor and ridge regression probes on frozen features."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from contraport._utils.vector_search import (
    build_approximate_search_if_faster,
    scale_rows_lazily_if_large,
    top_products_and_indices,
)
from contraport.data.splits import draw_stratified_split
from contraport.errors import UsageError, check, check_all_values, check_positive, format_value, is_integer
from contraport.metrics.pseudovalues import compute_pseudovalues
from contraport.metrics.retrieval_ranks import check_equal_widths, check_labels, check_points, scale_to_unit_length
from contraport.seeding import numpy_generator, torch_generator

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

CANDIDATE_PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Candidate penalties of a linear probe, strongest first."""

_NUM_CALIBRATION_BINS = 15
"""Number of confidence bins, of equal width, of the calibration error."""

MAX_QUERIES_IN_MEMORY = 1_024
"""Number of test items whose votes `knn` holds in memory at a time."""

MAX_EXACT_KNN_PAIRS = 10**9
"""Maximum number of test items times training items for an exact `knn`; beyond it, its search is approximate."""

MIN_KNN_RECALL = 0.99
"""Share of the nearest training items that an approximate search must find on a sample of the test items."""

NUM_SAMPLED_KNN_TEST_ITEMS = 50_000
"""Number of test items that kNN classifies, drawn at random, if all exceed `MAX_PAIRS_WITHOUT_SAMPLING`."""

log = logging.getLogger("contraport.metrics")

ItemCorrectness = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""Correctness of the class of each test item, Booleans `(m,)`."""


def linear_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, *, penalty: float | None = None
) -> float:
    """Return the test accuracy of a logistic regression on standardized features.

    Features are `(n, F)`, labels `(n,)` integers. The fit is deterministic: L-BFGS from zero, stopped at a gradient of
    1e-3 (a tighter stop takes several times as long and moved the accuracy on Fashion-MNIST by less than half a point).
    A test label that is not among the training labels counts as an error. `penalty` multiplies the squared weights and
    is added to the mean loss per item; default: the best of `CANDIDATE_PENALTIES` on held-out training items
    (`select_linear_probe_penalty`).

    Raises:
        UsageError: shapes disagree, a feature is not finite, all training labels are equal, or `penalty` is not
            positive.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> linear_probe(x, torch.tensor([0, 0, 1, 1]), x + 0.5, torch.tensor([0, 0, 1, 0]))
    0.75
    """
    _check_features_and_labels(train_x, train_y, test_x, test_y)
    if penalty is not None:
        check_positive("penalty", penalty)
    # NumPy has neither gradients nor bfloat16.
    train_x, test_x = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (train_x, test_x))
    return float(probe_correctness(fit_linear_probe(train_x, train_y, penalty=penalty), test_x, test_y).mean())


def fit_linear_probe(train_x: Tensor, train_y: Tensor, *, penalty: float | None = None) -> Pipeline:
    """Fit the logistic regression of `linear_probe` on standardized features.

    Raises:
        UsageError: all labels are equal.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = train_y.unique()
    if len(classes) < 2:
        raise UsageError(f"labels: a linear probe needs at least 2 classes, got only class {classes[0].item()}.")
    penalty = select_linear_probe_penalty(train_x, train_y) if penalty is None else penalty
    # scikit-learn's C weighs the sum of the losses against half of the squared weights.
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (penalty * len(train_x)), tol=1e-3, max_iter=2000))
    # The products are small: on a busy machine threads that wait for one another make the fit 50 times slower.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        probe.fit(train_x.cpu().numpy(), train_y.cpu().numpy())
    return probe


def select_linear_probe_penalty(train_x: Tensor, train_y: Tensor) -> float:
    """Select the candidate penalty with the best held-out accuracy.

    A fifth of each class is held out; in a tie the strongest penalty is selected. Beyond 5,000 items a fixed random
    choice of this size is used. Held-out items of classes that the probe was not trained on are ignored. If none are
    left, or one class only, the penalty is 1/n for n items, scikit-learn's default.
    """
    order = torch.randperm(len(train_x), generator=torch_generator("metrics.probe_penalty"))
    subset = order[:5_000].sort().values
    x, y = train_x[subset.to(train_x.device)], train_y[subset.to(train_y.device)]
    train, validation = (
        torch.from_numpy(draw_stratified_split(y.cpu().numpy(), split, purpose="metrics.probe_split"))
        for split in ("train", "test")
    )
    validation = validation[torch.isin(y[validation], y[train]).cpu()]
    if len(validation) == 0 or len(y[train].unique()) < 2:
        return 1 / len(train_x)

    def accuracy(penalty: float) -> float:
        probe = fit_linear_probe(x[train], y[train], penalty=penalty)
        return float(probe_correctness(probe, x[validation], y[validation]).mean())

    return max(CANDIDATE_PENALTIES, key=accuracy)


def probe_correctness(probe: Pipeline, test_x: Tensor, test_y: Tensor) -> ItemCorrectness:
    """Return whether a fitted probe classifies each test item correctly, `(m,)`."""
    return np.asarray(probe.predict(test_x.cpu().numpy()) == test_y.cpu().numpy())


def confusion_matrix(probe: Pipeline, test_x: Tensor, test_y: Tensor) -> np.ndarray[Any, Any]:
    """Return item counts by true class (rows) and predicted class (columns), `(C, C)`.

    >>> x, y = torch.tensor([[0.0], [1.0], [10.0], [11.0]]), torch.tensor([0, 0, 1, 1])
    >>> confusion_matrix(fit_linear_probe(x, y), x, torch.tensor([0, 1, 1, 1])).tolist()
    [[1, 0], [1, 2]]
    """
    predicted = torch.from_numpy(probe.predict(test_x.cpu().numpy())).long()
    classes = int(max(predicted.max(), test_y.max())) + 1
    return torch.bincount(test_y.cpu() * classes + predicted, minlength=classes**2).reshape(classes, classes).numpy()


def mean_few_label_accuracy_per_item(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, count_from_class_size: Callable[[int], int]
) -> np.ndarray[Any, Any]:
    """Return the share of few-label probes that classify each test item correctly, `(m,)`.

    A probe is trained on randomly drawn items of each class: as many as `count_from_class_size` of its size, at least
    1. The mean is over 5 draws. The penalty is selected on the drawn items alone (`select_linear_probe_penalty`), so
    that no other label is used.
    """
    hits = []
    for seed in range(5):
        random, drawn = numpy_generator("metrics.few_labels", seed), []
        for label in train_y.unique():
            members = (train_y == label).nonzero().flatten().numpy()
            drawn.append(random.permutation(members)[: max(1, count_from_class_size(len(members)))])
        few = torch.from_numpy(np.sort(np.concatenate(drawn)))
        hits.append(probe_correctness(fit_linear_probe(train_x[few], train_y[few]), test_x, test_y))
    return np.asarray(np.mean(hits, axis=0))


def probe_confidence_correctness_pairs(probe: Pipeline, test_x: Tensor, test_y: Tensor) -> np.ndarray[Any, Any]:
    """Return confidence and correctness of the probe for each test item, `(m, 2)`."""
    probabilities = probe.predict_proba(test_x.cpu().numpy())
    return np.stack([probabilities.max(axis=1), probe_correctness(probe, test_x, test_y)], axis=1)


def squared_calibration_pseudovalues(confidence_and_correctness: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return each item's jackknife pseudovalue of the squared calibration error, `(m,)`.

    `confidence_and_correctness` has a row for each item, `(m, 2)`, from `probe_confidence_correctness_pairs`.

    Items are binned by confidence into 15 bins of equal width. The squared error is the mean over items of the squared
    gap between their bin's accuracy and confidence, without its bias: the product of (correct - confidence) is averaged
    over pairs of different items. It is 0 on average for calibrated probabilities and may be negative; the plain
    squared gap would grow as bins get smaller. A bin of one item is left out. Kumar, Liang and Ma, "Verified
    uncertainty calibration" (NeurIPS 2019), section 4.

    >>> values = np.array([[0.9, 1], [0.9, 0], [0.6, 0], [0.6, 0]])
    >>> round(float(squared_calibration_pseudovalues(values).mean()), 3)  # of (.1)(-.9) and (-.6)(-.6)
    0.135
    """
    confidence, correct = torch.from_numpy(np.asarray(confidence_and_correctness, dtype=np.float64)).T
    bins = (confidence * _NUM_CALIBRATION_BINS).long().clamp_max(_NUM_CALIBRATION_BINS - 1)

    def bin_sums(values: Tensor) -> Tensor:
        return values.new_zeros(_NUM_CALIBRATION_BINS).index_add(0, bins, values)

    def squared_error(counts: Tensor) -> Tensor:
        size, self_size = bin_sums(counts), bin_sums(counts.square())
        gap, self_gap = bin_sums(counts * (correct - confidence)), bin_sums((counts * (correct - confidence)).square())
        several = size.square() > self_size  # bins of two items or more
        products = (gap.square() - self_gap)[several] / (size.square() - self_size)[several]
        return (size[several] * products).sum() / counts.sum()

    with torch.no_grad():
        value = float(squared_error(torch.ones_like(correct)))
    return compute_pseudovalues(value, squared_error, len(correct))


def held_out_domain_correctness(
    train_x: Tensor, train_y: Tensor, train_domains: Tensor, test_x: Tensor, test_y: Tensor, test_domains: Tensor
) -> ItemCorrectness:
    """Return whether a probe trained on other domains classifies each item correctly.

    Raises:
        UsageError: only one class is left without one of the domains.
    """
    hits = np.zeros(len(test_x), dtype=np.bool_)
    for domain in test_domains.unique():
        others, own = train_domains != domain, test_domains == domain
        hits[own.numpy()] = probe_correctness(
            fit_linear_probe(train_x[others], train_y[others]), test_x[own], test_y[own]
        )
    return hits


def ridge_prediction_target_pairs(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor
) -> np.ndarray[Any, Any]:
    """Return ridge regression predictions beside the true values, `(m, 2)`.

    Features are standardized; the penalty is selected by leave-one-out cross-validation on the training items.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 5, 15)))
    with threadpool_limits(1):
        ridge.fit(train_x.cpu().numpy(), train_y.cpu().numpy())
    return np.stack([ridge.predict(test_x.cpu().numpy()), test_y.cpu().numpy()], axis=1)


def bootstrap_r_squared(
    predictions_and_targets: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return R^2 (coefficient of determination) on each bootstrap resample.

    Resamples are counts of the items, `(b, m)`. R^2 is NaN where all true values of a resample are equal.

    >>> bootstrap_r_squared(np.array([[1.0, 1.0], [2.0, 3.0]]), np.ones((1, 2))).tolist()
    [0.5]
    """
    predicted, true = predictions_and_targets.T
    residuals = counts @ (predicted - true) ** 2
    centered = true - true.mean()  # squares about zero lose all digits of numbers such as seconds since 1970
    squares = counts @ centered**2
    variation = squares - (counts @ centered) ** 2 / counts.sum(axis=1)
    return np.asarray(1 - residuals / np.where(variation > 1e-9 * squares, variation, np.nan))


def knn(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, *, neighbors: int = 20, temperature: float = 0.07
) -> float:
    """Return the test accuracy of a weighted vote among nearest training items.

    A neighbor's vote has the weight exp(cosine / temperature), as in Wu et al., "Unsupervised feature learning via
    non-parametric instance discrimination" (CVPR 2018). Features are `(n, F)` on one device, labels `(n,)` integers
    from 0. Memory is bounded for any number of items. Neighbors are exact for up to a billion pairs of a test and a
    training item. Beyond it 99% of them are found by cells (`CellSearch`) if that is faster; the recall is logged.

    Raises:
        UsageError: shapes disagree, a feature is not finite, `temperature` is not positive, or `neighbors` is not
            between 1 and the number of training items.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> knn(x, torch.tensor([0, 0, 1, 1]), x, torch.tensor([0, 0, 1, 0]), neighbors=2)
    0.75
    """
    hits = knn_correctness(train_x, train_y, test_x, test_y, neighbors=neighbors, temperature=temperature)
    return float(hits.mean())


def knn_correctness(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, *, neighbors: int = 20, temperature: float = 0.07
) -> ItemCorrectness:
    """Return whether a k-nearest-neighbor vote classifies each test item correctly, `(m,)`."""
    _check_features_and_labels(train_x, train_y, test_x, test_y)
    check_positive("temperature", temperature)
    check_neighbor_count(neighbors, len(train_x))
    check_all_values("train_y", train_y, train_y >= 0, "classes from 0")
    train_y, test_y = train_y.to(train_x.device).long(), test_y.to(train_x.device)
    queries, keys = (
        scale_rows_lazily_if_large(test_x, scale_to_unit_length),
        scale_rows_lazily_if_large(train_x, scale_to_unit_length),
    )
    approximate = None
    if len(queries) * len(keys) > MAX_EXACT_KNN_PAIRS and len(queries) > 1:
        # A fixed number of compared keys would bias the vote by an amount that depends on the data. So it is chosen by
        # the exact neighbors of a sample, and the recall is measured on another one.
        generator = torch_generator("metrics.knn_cells", len(queries), len(keys))
        search = build_approximate_search_if_faster(
            queries, keys, neighbors, generator, min_recall=MIN_KNN_RECALL, sample_size=1_000
        )
        if search is not None:  # fewer than half of the keys are compared
            message = (
                "kNN: found neighbors of %s test items among %s of %s training items each, with recall %.3f on %s."
            )
            sizes = [
                f"{number:,}" for number in (len(queries), search.min_compared, len(keys), search.num_recall_queries)
            ]
            log.info(message, *sizes[:3], search.recall, sizes[3])
            approximate = search.top_products_and_indices(queries, neighbors)
    hits = []
    for first in range(0, len(queries), MAX_QUERIES_IN_MEMORY):
        part = slice(first, first + MAX_QUERIES_IN_MEMORY)
        block, labels = queries[part], test_y[part]
        if approximate is None:
            cosines, nearest = top_products_and_indices(block, keys, neighbors)
        else:
            cosines, nearest = approximate[0][part], approximate[1][part]
        # Minus the largest cosine: the same winner, and no overflow at a low temperature.
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(block), int(train_y.max()) + 1)
        hits.append(votes.scatter_add_(1, train_y[nearest], weights).argmax(dim=1) == labels)
    return torch.cat(hits).cpu().numpy()


def check_neighbor_count(neighbors: int, num_items: int) -> None:
    """Raise `UsageError` unless `neighbors` is from 1 to the number of items."""
    check(
        is_integer(neighbors) and 1 <= neighbors <= num_items,
        f"neighbors: must be between 1 and {num_items}, the number of training items, got {format_value(neighbors)}.",
    )


def _check_features_and_labels(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> None:
    """Raise `UsageError` if features or labels are invalid."""
    for name, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        check_points(f"{name}_x", x)
        check_labels(f"{name}_y", y, len(x))
    check_equal_widths("test_x", test_x, "train_x", train_x)
