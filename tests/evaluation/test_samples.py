"""What the page draws of an encoder: points in the plane, cosines, pairs that may be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.evaluation.making import several, vector_model, vectors

from contraport.auditing.pairs import PairedFeatures, score_pairs
from contraport.data import Dataset, Views, from_arrays
from contraport.embedding import LoaderConfig
from contraport.encoders import Model
from contraport.evaluation.page_samples import collect_samples, cosines, points, project_to_2d
from contraport.metrics.embedding_geometry import spectrum
from contraport.metrics.eval_context import EvalContext


def subject_of(model: Model, test: Dataset) -> EvalContext:
    return EvalContext(model.eval(), test, test, Views(test, augment="none"), LoaderConfig())


def test_some_points_have_what_is_theirs_and_the_spectrum_is_of_all() -> None:
    features, chosen = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 7, 19])
    names = [f"site {number % 4}" for number in range(20)]
    kept = points(from_arrays(features, domains=names), features, chosen)
    assert [kept["domain_names"][domain] for domain in kept["domains"]] == [names[item] for item in chosen]
    np.testing.assert_allclose(kept["spectrum"], spectrum(features), rtol=1e-5)
    assert kept["neighbors"].shape == (3, 2)
    assert not {"labels", "class_names", "thumbnails", "texts"} & kept.keys()


def test_the_thumbnail_is_of_the_first_view() -> None:
    first, second = (np.full((3, 1, 8, 8), value, dtype=np.uint8) for value in (50, 200))
    assert (points(from_arrays((first, second)), torch.eye(3), torch.arange(3))["thumbnails"] == 50).all()


@pytest.mark.parametrize(
    ("rows", "method"),
    [(torch.ones(120, 3), "PCA"), (torch.arange(120.0)[:, None], "PCA"), (torch.randn(90, 3), "PCA"), (None, "t-SNE")],
    ids=["all alike", "one number each", "few", "many"],
)
def test_every_kind_of_features_has_a_plane(rows: torch.Tensor | None, method: str) -> None:
    rows = torch.randn(91, 3, generator=torch.Generator().manual_seed(0)) if rows is None else rows
    name, plane = project_to_2d(rows)
    assert (name, plane.shape, plane.dtype) == (method, (len(rows), 2), np.float32)
    assert np.isfinite(plane).all()


def test_cosines_are_class_by_class_of_as_many_items_as_there_is_room_for() -> None:
    dataset = vectors(400, 3)
    kept = cosines(dataset, torch.randn(400, 4, generator=torch.Generator().manual_seed(0)))
    assert kept["cosines"].shape == (160, 160)
    assert kept["cosine_labels"].tolist() == sorted(kept["cosine_labels"])
    assert "cosine_labels" not in cosines(vectors(5, None), torch.eye(5))


def test_views_of_one_encoder_belong_together_by_their_features() -> None:
    subject = subject_of(Model(shapes=[(5,), (5,)], shared=True), several(60, (5,), (5,)))
    found = collect_samples(subject, probed=False)["suspicion"]
    np.testing.assert_allclose(found, (-score_pairs(PairedFeatures(subject.random_view_features))).exp(), rtol=1e-5)
    assert not np.allclose(found, (-score_pairs(PairedFeatures(subject.projections))).exp())


def test_whether_pairs_belong_together_is_not_said_of_views_that_cannot_be_compared_or_of_few() -> None:
    apart = Model(shapes=[(5,), (2, 20)], encoder=["mlp", "small-tcn"], projection=0)
    assert "suspicion" not in collect_samples(subject_of(apart, several(60, (5,), (2, 20))), probed=False)
    few = Model(shapes=[(5,), (4,)])
    assert "suspicion" not in collect_samples(subject_of(few, several(30, (5,), (4,))), probed=False)


def test_without_an_objective_no_loss_is_told() -> None:
    assert "losses" not in collect_samples(subject_of(vector_model(), vectors(9, 3)), probed=False)
