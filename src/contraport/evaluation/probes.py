"""How well labels can be read from frozen features: a linear probe and nearest neighbours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor

from contraport.errors import check, check_positive

SIMILARITIES_AT_ONCE = 1 << 24
"""How many cosines `knn` holds at a time: 64 MiB."""


def linear_probe(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    """Return the test accuracy of a logistic regression on standardised features.

    Features are `(n, F)`, labels `(n,)` integers. The fit is deterministic: L-BFGS from zero with scikit-learn's
    default L2 penalty, stopped at a gradient of 1e-3 (a tighter stop takes several times as long and moved the accuracy
    on Fashion-MNIST by less than half a point). A test label that is not among the training labels counts as an error.

    Raises:
        UsageError: shapes disagree, a feature is not finite, or the training labels are of one class only.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> linear_probe(x, torch.tensor([0, 0, 1, 1]), x + 0.5, torch.tensor([0, 0, 1, 0]))
    0.75
    """
    _check_labelled(train_x, train_y, test_x, test_y)
    classes = train_y.unique()
    check(len(classes) > 1, f"labels: a linear probe needs two classes or more; all are of class {classes[0].item()}.")
    scaler = StandardScaler().fit(train_x.cpu().numpy())
    classifier = LogisticRegression(tol=1e-3, max_iter=2000)
    # The products are small: on a busy machine threads that wait for one another make the fit 50 times slower.
    with threadpool_limits(1):
        classifier.fit(scaler.transform(train_x.cpu().numpy()), train_y.cpu().numpy())
    predicted = classifier.predict(scaler.transform(test_x.cpu().numpy()))
    return float((predicted == test_y.cpu().numpy()).mean())


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
    _check_labelled(train_x, train_y, test_x, test_y)
    check_positive("temperature", temperature)
    check_neighbors(neighbors, len(train_x))
    train_y, test_y = train_y.to(train_x.device).long(), test_y.to(train_x.device)
    memory = F.normalize(train_x.float(), dim=1).T
    queries = F.normalize(test_x.float(), dim=1)
    classes = int(train_y.max()) + 1
    correct = 0
    step = max(1, SIMILARITIES_AT_ONCE // len(train_x))
    for start in range(0, len(queries), step):
        cosines, nearest = (queries[start : start + step] @ memory).topk(neighbors, dim=1)
        # Less the largest: the same winner, and no overflow at a low temperature.
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        votes = torch.zeros(len(weights), classes, device=weights.device)
        votes.scatter_add_(1, train_y[nearest], weights)
        correct += int((votes.argmax(dim=1) == test_y[start : start + step]).sum())
    return correct / len(queries)


def check_neighbors(neighbors: int, items: int) -> None:
    """Raise `UsageError` unless there are that many training items."""
    check(
        1 <= neighbors <= items,
        f"neighbors: expected a number from 1 to {items}, the number of training items, got {neighbors}.",
    )


def _check_labelled(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> None:
    for name, x, y in (("train", train_x, train_y), ("test", test_x, test_y)):
        check(x.ndim == 2, f"{name}_x: expected (items, features), got shape {tuple(x.shape)}.")
        check(len(x) > 0, f"{name}_x: expected one item or more, got none.")
        check(y.shape == x.shape[:1], f"{name}_y: expected {len(x)} labels, got shape {tuple(y.shape)}.")
        check(bool(x.isfinite().all()), f"{name}_x: a feature is NaN or infinite.")
    check(
        train_x.shape[1] == test_x.shape[1],
        f"test_x: expected {train_x.shape[1]} features as in train_x, got {test_x.shape[1]}.",
    )
