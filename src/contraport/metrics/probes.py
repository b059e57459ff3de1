"""How well labels can be read from frozen features: linear probes, nearest neighbours, a regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor

from contraport.data.splits import split_positions
from contraport.errors import UsageError, check, check_all_values, check_positive
from contraport.metrics.influence import by_item
from contraport.seeding import generator, torch_generator

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""The penalties that a probe may have, strongest first."""

PENALTY_ITEMS = 5_000
"""On at most so many training items the penalty is chosen."""

DRAWS = 5
"""How many times few labelled items are drawn."""

_BINS = 15

SIMILARITIES_AT_ONCE = 1 << 24
"""How many cosines `knn` holds at a time: 64 MiB."""

Hits = np.ndarray[tuple[int], np.dtype[np.bool_]]


def linear_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, *, penalty: float | None = None
) -> float:
    """Return the test accuracy of a logistic regression on standardised features.

    Features are `(n, F)`, labels `(n,)` integers. The fit is deterministic: L-BFGS from zero, stopped at a gradient of
    1e-3 (a tighter stop takes several times as long and moved the accuracy on Fashion-MNIST by less than half a point).
    A test label that is not among the training labels counts as an error. `penalty` is that of the squared weights,
    beside the mean loss of an item; default: the one of `PENALTIES` that is best on a part of the training items
    (`select_penalty`).

    Raises:
        UsageError: shapes disagree, a feature is not finite, or the training labels are of one class only.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> linear_probe(x, torch.tensor([0, 0, 1, 1]), x + 0.5, torch.tensor([0, 0, 1, 0]))
    0.75
    """
    _check_labelled(train_x, train_y, test_x, test_y)
    return float(probe_hits(fit_linear_probe(train_x, train_y, penalty=penalty), test_x, test_y).mean())


def fit_linear_probe(train_x: Tensor, train_y: Tensor, *, penalty: float | None = None) -> Pipeline:
    """Return the fitted classifier of `linear_probe`.

    Raises:
        UsageError: the labels are of one class only.
    """
    classes = train_y.unique()
    if len(classes) < 2:
        raise UsageError(f"labels: a linear probe needs two classes or more; all are of class {classes[0].item()}.")
    penalty = select_penalty(train_x, train_y) if penalty is None else penalty
    # What scikit-learn calls C weighs the sum of the losses against half of the squared weights.
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (penalty * len(train_x)), tol=1e-3, max_iter=2000))
    # The products are small: on a busy machine threads that wait for one another make the fit 50 times slower.
    with threadpool_limits(1):
        probe.fit(train_x.cpu().numpy(), train_y.cpu().numpy())
    return probe


def select_penalty(train_x: Tensor, train_y: Tensor) -> float:
    """Return that of `PENALTIES` under which a probe is best on a fifth of each class that it did not see.

    Of more than 5,000 items a fixed random choice of so many is taken; of penalties that are equally good the
    strongest. An item that is the only one of its class tells nothing here. Where no class has items enough to spare
    one, or only one class is left, it is 1/n for n items, as scikit-learn's is by default.
    """
    order = torch.randperm(len(train_x), generator=torch_generator("metrics.probe_penalty"))
    chosen = order[:PENALTY_ITEMS].sort().values
    x, y = train_x[chosen.to(train_x.device)], train_y[chosen.to(train_y.device)]
    seen, unseen = (
        torch.from_numpy(split_positions(y.cpu().numpy(), split, purpose="metrics.probe_split"))
        for split in ("train", "test")
    )
    unseen = unseen[torch.isin(y[unseen], y[seen]).cpu()]
    if len(unseen) == 0 or len(y[seen].unique()) < 2:
        return 1 / len(train_x)
    hits = {
        penalty: probe_hits(fit_linear_probe(x[seen], y[seen], penalty=penalty), x[unseen], y[unseen]).mean()
        for penalty in PENALTIES
    }
    return max(PENALTIES, key=lambda penalty: float(hits[penalty]))


def probe_hits(probe: Pipeline, test_x: Tensor, test_y: Tensor) -> Hits:
    """Return for each test item whether a fitted probe tells its class, `(m,)`."""
    return np.asarray(probe.predict(test_x.cpu().numpy()) == test_y.cpu().numpy())


def confusion_matrix(probe: Pipeline, test_x: Tensor, test_y: Tensor) -> np.ndarray[Any, Any]:
    """Return of how many test items of each class (rows) a fitted probe tells each class (columns), `(C, C)` int64.

    >>> x, y = torch.tensor([[0.0], [1.0], [10.0], [11.0]]), torch.tensor([0, 0, 1, 1])
    >>> confusion_matrix(fit_linear_probe(x, y), x, torch.tensor([0, 1, 1, 1])).tolist()
    [[1, 0], [1, 2]]
    """
    told = torch.from_numpy(probe.predict(test_x.cpu().numpy())).long()
    classes = int(max(told.max(), test_y.max())) + 1
    return torch.bincount(test_y.cpu() * classes + told, minlength=classes**2).reshape(classes, classes).numpy()


def few_labels_hits(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, choose: Callable[[np.random.Generator], Tensor]
) -> np.ndarray[Any, Any]:
    """Return for each test item how often a probe on few training items tells its class, `(m,)`.

    `choose` draws their positions; the mean is over `DRAWS` draws. The penalty is chosen on a part of the few
    (`select_penalty`), so that no label counts that is not among them.
    """
    hits = []
    for seed in range(DRAWS):
        few = choose(generator("metrics.few_labels", seed))
        hits.append(probe_hits(fit_linear_probe(train_x[few], train_y[few]), test_x, test_y))
    return np.asarray(np.mean(hits, axis=0))


def sample_per_class(labels: Tensor, count: Callable[[int], int], random: np.random.Generator) -> Tensor:
    """Return positions of items drawn from each class: as many as `count` says of the class's size, one at least.

    >>> labels = torch.tensor([0, 0, 0, 1, 1])
    >>> labels[sample_per_class(labels, lambda size: size - 1, np.random.default_rng(0))].tolist()
    [0, 0, 1]
    """
    found = []
    for label in labels.unique():
        members = (labels == label).nonzero().flatten().numpy()
        found.append(random.permutation(members)[: max(1, count(len(members)))])
    return torch.from_numpy(np.sort(np.concatenate(found)))


def confidences(probe: Pipeline, test_x: Tensor, test_y: Tensor) -> np.ndarray[Any, Any]:
    """Return for each test item the probability of the class that a probe tells, and whether it is right, `(m, 2)`."""
    probabilities = probe.predict_proba(test_x.cpu().numpy())
    return np.stack([probabilities.max(axis=1), probe_hits(probe, test_x, test_y)], axis=1)


def squared_calibration_terms(confident: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers of the `confidences` of items `(m, 2)`, `(m,)`, whose mean is the squared calibration error.

    The items are put into 15 bins of equal width by their confidence. The error squared is the mean over items of the
    squared distance of their bin's accuracy from its confidence, less what chance makes of it: it is the mean product
    of (right - confidence) of two different items of a bin. So it is 0 on average where all is calibrated, and may be
    below; the plain distance grows with fewer items in a bin. Kumar, Liang and Ma, "Verified uncertainty
    calibration" (NeurIPS 2019), section 4. A bin of one item says nothing. How the mean moves with other items is as in
    `influence`.

    >>> confident = np.array([[0.9, 1], [0.9, 0], [0.6, 0], [0.6, 0]])
    >>> round(float(squared_calibration_terms(confident).mean()), 3)  # of (.1)(-.9) and (-.6)(-.6)
    0.135
    """
    confidence, hit = torch.from_numpy(np.asarray(confident, dtype=np.float64)).T
    bins = (confidence * _BINS).long().clamp_max(_BINS - 1)

    def summed(of_items: Tensor) -> Tensor:
        return of_items.new_zeros(_BINS).index_add(0, bins, of_items)

    def squared(counts: Tensor) -> Tensor:
        size, alone = summed(counts), summed(counts.square())
        gap, own = summed(counts * (hit - confidence)), summed((counts * (hit - confidence)).square())
        some = size.square() > alone  # two items or more
        products = (gap.square() - own)[some] / (size.square() - alone)[some]
        return (size[some] * products).sum() / counts.sum()

    with torch.no_grad():
        value = float(squared(torch.ones_like(hit)))
    return by_item(value, squared, len(hit))


_Labelled = tuple[Tensor, Tensor, Tensor]
"""Features `(n, F)`, labels and domains `(n,)` of items."""


def unseen_domain_hits(train: _Labelled, test: _Labelled) -> Hits:
    """Return for each test item whether a probe on the training items of the other domains tells its class, `(m,)`.

    Raises:
        UsageError: without one of the domains only one class is left.
    """
    train_x, train_y, train_domains = train
    test_x, test_y, test_domains = test
    hits = np.zeros(len(test_x), dtype=np.bool_)
    for domain in test_domains.unique():
        seen, judged = train_domains != domain, test_domains == domain
        hits[judged.numpy()] = probe_hits(
            fit_linear_probe(train_x[seen], train_y[seen]), test_x[judged], test_y[judged]
        )
    return hits


def ridge_predictions(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> np.ndarray[Any, Any]:
    """Return the number that a ridge regression on standardised features tells of each test item, and the true one.

    `(m, 2)`. The penalty is chosen by leaving out one training item at a time.
    """
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 5, 15)))
    with threadpool_limits(1):
        ridge.fit(train_x.cpu().numpy(), train_y.cpu().numpy())
    return np.stack([ridge.predict(test_x.cpu().numpy()), test_y.cpu().numpy()], axis=1)


def r_squared(items: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the coefficient of determination of predictions and truths `(m, 2)` under each row of counts `(b, m)`.

    Where the truths that count are all the same there is none: NaN.

    >>> r_squared(np.array([[1.0, 1.0], [2.0, 3.0]]), np.ones((1, 2))).tolist()
    [0.5]
    """
    predicted, true = items.T
    missed = counts @ (predicted - true) ** 2
    apart = true - true.mean()  # about a near mean, as those of seconds since 1970 lose all their digits about zero
    squares = counts @ apart**2
    spread = squares - (counts @ apart) ** 2 / counts.sum(axis=1)
    return np.asarray(1 - missed / np.where(spread > 1e-9 * squares, spread, np.nan))


def knn(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, *, neighbors: int = 20, temperature: float = 0.07
) -> float:
    """Return the test accuracy of a vote among the nearest training items.

    Nearness is the cosine; a neighbour's vote weighs exp(cosine / temperature), as in Wu et al., "Unsupervised feature
    learning via non-parametric instance discrimination" (CVPR 2018). Features are `(n, F)` on any one device, labels
    `(n,)` integers from 0. The memory is bounded however many items there are.

    Raises:
        UsageError: shapes disagree, a feature is not finite, `temperature` is not positive, or `neighbors` is not
            between 1 and the number of training items.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> knn(x, torch.tensor([0, 0, 1, 1]), x, torch.tensor([0, 0, 1, 0]), neighbors=2)
    0.75
    """
    hits = knn_hits(train_x, train_y, test_x, test_y, neighbors=neighbors, temperature=temperature)
    return float(hits.mean())


def knn_hits(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, *, neighbors: int = 20, temperature: float = 0.07
) -> Hits:
    """Return for each test item whether `knn` tells its class, `(m,)`."""
    _check_labelled(train_x, train_y, test_x, test_y)
    check_positive("temperature", temperature)
    check_neighbors(neighbors, len(train_x))
    train_y, test_y = train_y.to(train_x.device).long(), test_y.to(train_x.device)
    memory = F.normalize(train_x.float(), dim=1).T
    queries = F.normalize(test_x.float(), dim=1)
    classes = int(train_y.max()) + 1
    hits = []
    step = max(1, SIMILARITIES_AT_ONCE // len(train_x))
    for start in range(0, len(queries), step):
        cosines, nearest = (queries[start : start + step] @ memory).topk(neighbors, dim=1)
        # Less the largest: the same winner, and no overflow at a low temperature.
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        votes = torch.zeros(len(weights), classes, device=weights.device)
        votes.scatter_add_(1, train_y[nearest], weights)
        hits.append(votes.argmax(dim=1) == test_y[start : start + step])
    return torch.cat(hits).cpu().numpy()


def check_neighbors(neighbors: int, items: int) -> None:
    """Raise `UsageError` unless there are that many training items."""
    check(
        1 <= neighbors <= items,
        f"neighbors: expected a number from 1 to {items}, the number of training items, got {neighbors}.",
    )


def _check_labelled(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> None:
    for name, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        if x.ndim != 2:
            raise UsageError(f"{name}_x: expected (items, features), got shape {tuple(x.shape)}.")
        if len(x) == 0:
            raise UsageError(f"{name}_x: expected one item or more, got none.")
        if y.shape != x.shape[:1]:
            raise UsageError(f"{name}_y: expected {len(x)} labels, got shape {tuple(y.shape)}.")
        check_all_values(f"{name}_x", x, x.isfinite(), "finite features")
    check(
        train_x.shape[1] == test_x.shape[1],
        f"test_x: expected {train_x.shape[1]} features as in train_x, got {test_x.shape[1]}.",
    )
