"""Similarity heatmap against cosines of scikit-learn and means by loops."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from tests.errors import raises_usage_error

from contraport.metrics.embedding_geometry import tolerance
from contraport.theory import compute_item_cosines_by_class


def items():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 5, generator=generator), torch.tensor([3, 1, 3, 7, 1, 1, 7, 3, 3, 1, 7, 1])


def test_cosines_are_sorted_by_label():
    features, labels = items()
    result = compute_item_cosines_by_class(features, labels)
    order = np.argsort(labels.numpy(), kind="stable")
    np.testing.assert_allclose(result.cosines, cosine_similarity(features.double().numpy()[order]), atol=1e-12)
    assert result.labels.tolist() == sorted(labels.tolist())
    assert result.class_names == ("1", "3", "7")


def test_means_exclude_pairs_of_an_item_with_itself():
    features, labels = items()
    result = compute_item_cosines_by_class(features, labels)
    cosines = cosine_similarity(features.double().numpy())
    pairs = [(i, j) for i, j in product(range(12), repeat=2) if i != j]
    for (r, one), (c, other) in product(enumerate((1, 3, 7)), repeat=2):
        of_both = [cosines[i, j] for i, j in pairs if labels[i] == one and labels[j] == other]
        assert result.class_mean_cosines[r, c].item() == pytest.approx(np.mean(of_both))
    assert result.within == pytest.approx(np.mean([cosines[i, j] for i, j in pairs if labels[i] == labels[j]]))
    assert result.between == pytest.approx(np.mean([cosines[i, j] for i, j in pairs if labels[i] != labels[j]]))
    assert result.within == pytest.approx(tolerance(features, labels))


def test_class_of_one_item_has_no_mean_within(tmp_path):
    result = compute_item_cosines_by_class(torch.eye(3) + 0.1, torch.tensor([0, 0, 1]))
    assert result.class_mean_cosines.isnan().tolist() == [[False, False], [False, True]]
    result.figure().savefig(tmp_path / "figure.png")


def test_figure_is_drawn(tmp_path):
    features, labels = items()
    figure = compute_item_cosines_by_class(features, labels, ["a", "b", "c"]).figure()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b", "c"]
    assert len(figure.axes[1].texts) == 9
    figure.savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda x, y: compute_item_cosines_by_class(x[:1], y[:1]), "features.shape"),
        (lambda x, y: compute_item_cosines_by_class(x, y[:3]), "labels.shape"),
        (lambda x, y: compute_item_cosines_by_class(x, y * 0), "labels.one_class"),
        (lambda x, y: compute_item_cosines_by_class(x, torch.arange(12)), "labels.no_pairs"),
        (lambda x, y: compute_item_cosines_by_class(x, y, ["a"]), "names.shape"),
    ],
)
def test_rejects_invalid_arguments(call, code):
    with raises_usage_error(code):
        call(*items())
