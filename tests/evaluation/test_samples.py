"""Sample arrays of the report page: points, cosines, suspicion of pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.evaluation.builders import build_vector_model, build_vectors, build_views

from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import PairedFeatures
from contraport.data import Dataset, Views, from_arrays
from contraport.embedding import LoaderConfig
from contraport.encoders import Model
from contraport.evaluation.report_arrays import (
    collect_cosine_matrix_and_labels,
    collect_feature_plot_arrays,
    collect_test_figure_arrays,
    project_to_2d_with_method,
)
from contraport.metrics.embedding_geometry import centered_singular_values
from contraport.metrics.eval_context import EvalContext


def build_context(model: Model, test: Dataset) -> EvalContext:
    return EvalContext(model.eval(), test, test, Views(test, augment="none"), LoaderConfig())


def test_points_are_of_chosen_items_and_the_spectrum_of_all() -> None:
    features, chosen = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 7, 19])
    names = [f"site {number % 4}" for number in range(20)]
    arrays = collect_feature_plot_arrays(from_arrays(features, domains=names), features, chosen)
    assert [arrays["domain_names"][domain] for domain in arrays["domains"]] == [names[item] for item in chosen]
    np.testing.assert_allclose(arrays["spectrum"], centered_singular_values(features), rtol=1e-5)
    assert arrays["neighbors"].shape == (3, 2)
    assert not {"labels", "class_names", "thumbnails", "texts"} & arrays.keys()


def test_thumbnails_show_the_first_view() -> None:
    first, second = (np.full((3, 1, 8, 8), value, dtype=np.uint8) for value in (50, 200))
    arrays = collect_feature_plot_arrays(from_arrays((first, second)), torch.eye(3), torch.arange(3))
    assert (arrays["thumbnails"] == 50).all()


@pytest.mark.parametrize(
    ("rows", "method"),
    [(torch.ones(120, 3), "PCA"), (torch.arange(120.0)[:, None], "PCA"), (torch.randn(90, 3), "PCA"), (None, "t-SNE")],
    ids=["all alike", "one number each", "few", "many"],
)
def test_projection_to_2d_accepts_any_features(rows: torch.Tensor | None, method: str) -> None:
    rows = torch.randn(91, 3, generator=torch.Generator().manual_seed(0)) if rows is None else rows
    plane, name = project_to_2d_with_method(rows)
    assert (name, plane.shape, plane.dtype) == (method, (len(rows), 2), np.float32)
    assert np.isfinite(plane).all()


def test_cosines_of_a_fixed_number_of_items_sorted_by_class() -> None:
    dataset = build_vectors(400, 3)
    arrays = collect_cosine_matrix_and_labels(dataset, torch.randn(400, 4, generator=torch.Generator().manual_seed(0)))
    assert arrays["cosines"].shape == (160, 160)
    assert arrays["cosine_labels"].tolist() == sorted(arrays["cosine_labels"])
    assert "cosine_labels" not in collect_cosine_matrix_and_labels(build_vectors(5, None), torch.eye(5))


def test_suspicion_uses_features_of_a_shared_encoder() -> None:
    context = build_context(Model(shapes=[(5,), (5,)], shared=True), build_views(60, (5,), (5,)))
    result = collect_test_figure_arrays(context, has_probe=False)["suspicion"]
    np.testing.assert_allclose(
        result, (-score_pairs(PairedFeatures(context.test_random_view_features))).exp(), rtol=1e-5
    )
    assert not np.allclose(result, (-score_pairs(PairedFeatures(context.test_random_view_projector_outputs))).exp())


def test_no_suspicion_for_incomparable_views_or_few_items() -> None:
    incomparable = Model(shapes=[(5,), (2, 20)], encoder=["mlp", "small-tcn"], projection=0)
    assert "suspicion" not in collect_test_figure_arrays(
        build_context(incomparable, build_views(60, (5,), (2, 20))), has_probe=False
    )
    few_items = Model(shapes=[(5,), (4,)])
    assert "suspicion" not in collect_test_figure_arrays(
        build_context(few_items, build_views(30, (5,), (4,))), has_probe=False
    )


def test_no_losses_without_an_objective() -> None:
    assert "losses" not in collect_test_figure_arrays(
        build_context(build_vector_model(), build_vectors(9, 3)), has_probe=False
    )
