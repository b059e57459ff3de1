import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error

from contraport import info_nce
from contraport._utils import vector_search
from contraport.metrics.retrieval_ranks import (
    nearest_indices,
    retrieval_ranks_by_view_pair,
    symmetric_log_match_probability,
)


def paired_views(items: int = 60, noise: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(items, 8, generator=generator)
    return z0, z0 + noise * torch.randn(items, 8, generator=generator)


@pytest.mark.parametrize("tile", [1_024, 7])
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_ranks_are_positions_in_the_sorted_cosines(monkeypatch: pytest.MonkeyPatch, tile: int, precision: str) -> None:
    monkeypatch.setattr("contraport.metrics.retrieval_ranks.TILE_SIZE", tile)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    z0, z1 = paired_views()
    cosines = F.normalize(z0.double(), dim=1) @ F.normalize(z1.double(), dim=1).T
    result = retrieval_ranks_by_view_pair(z0, z1)
    for column, scores in enumerate((cosines, cosines.T)):
        order = scores.argsort(dim=1, descending=True)
        places = [order[i].tolist().index(i) + 1 for i in range(len(z0))]
        assert result[:, column].tolist() == places


@pytest.mark.parametrize("tile", [1_024, 5])
def test_repeated_views_count_once(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    """The best of an image's captions counts, and a repeated image or caption is one candidate."""
    monkeypatch.setattr("contraport.metrics.retrieval_ranks.TILE_SIZE", tile)
    generator = torch.Generator().manual_seed(1)
    images, captions = torch.randn(12, 4, generator=generator), torch.randn(20, 4, generator=generator)
    rows = torch.cat([torch.arange(12), torch.randint(12, (28,), generator=generator)])
    columns = torch.cat([torch.arange(20), torch.randint(20, (20,), generator=generator)])
    content_ids = torch.stack([rows * 7 - 3, columns], dim=1)
    result = retrieval_ranks_by_view_pair(images[rows], captions[columns], content_ids=content_ids)
    cosines = F.normalize(images.double(), dim=1) @ F.normalize(captions.double(), dim=1).T
    pairs = set(zip(rows.tolist(), columns.tolist(), strict=True))
    for item, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        own = [j for j in range(20) if (row, j) in pairs]
        best = max(cosines[row, j] for j in own)
        assert result[item, 0] == 1 + sum(cosines[row, j] >= best for j in range(20) if j not in own)
        own = [i for i in range(12) if (i, column) in pairs]
        best = max(cosines[i, column] for i in own)
        assert result[item, 1] == 1 + sum(cosines[i, column] >= best for i in range(12) if i not in own)


@pytest.mark.parametrize("tile", [1_024, 5])
def test_ranks_of_selected_items_equal_those_of_all(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr("contraport.metrics.retrieval_ranks.TILE_SIZE", tile)
    z0, z1 = paired_views()
    ids = torch.stack([torch.arange(60) % 41, torch.arange(60) % 50], dim=1)
    views = [z[ids[:, view]] for view, z in enumerate((z0, z1))]
    at = np.array([50, 3, 44, 9, 59, 0])
    for content_ids in (None, ids):
        of_all = retrieval_ranks_by_view_pair(*views, content_ids=content_ids)
        assert np.array_equal(retrieval_ranks_by_view_pair(*views, content_ids=content_ids, positions=at), of_all[at])
    of_all = symmetric_log_match_probability(*views, 0.2)
    np.testing.assert_allclose(symmetric_log_match_probability(*views, 0.2, positions=at), of_all[at])


def test_ranks_of_three_views_have_a_column_per_ordered_pair() -> None:
    z0, z1 = paired_views()
    result = retrieval_ranks_by_view_pair(z0, z1, -z0)
    assert result.shape == (60, 6)
    assert np.array_equal(result[:, [0, 2]], retrieval_ranks_by_view_pair(z0, z1))
    assert (result[:, 1] == 60).all()
    with raises_usage_error("views.invalid", 1):
        retrieval_ranks_by_view_pair(z0)


def test_collapsed_embeddings_have_the_last_rank() -> None:
    assert (retrieval_ranks_by_view_pair(torch.ones(9, 3), torch.ones(9, 3)) == 9).all()


def perturb_by_rounding(z: torch.Tensor) -> torch.Tensor:
    """Perturb each coordinate by a single-precision rounding error."""
    generator = torch.Generator().manual_seed(2)
    return z * (1 + (torch.rand(z.shape, generator=generator) - 0.5) * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("copies", [2, 60])
def test_items_equal_up_to_rounding_are_tied(copies: int) -> None:
    """Each item has several copies; rounding alone must not rank one copy before another."""
    z0, z1 = (z[: 60 // copies].repeat(copies, 1) for z in paired_views(noise=0.5))
    expected = retrieval_ranks_by_view_pair(z0[: 60 // copies].double(), z1[: 60 // copies].double()) * copies
    assert np.array_equal(
        retrieval_ranks_by_view_pair(perturb_by_rounding(z0), perturb_by_rounding(z1.flip(0)).flip(0)),
        np.tile(expected, (copies, 1)),
    )


def test_nearby_embeddings_are_not_tied() -> None:
    """Embeddings about 0.01 apart are not tied, although their cosines differ by only about 1e-6."""
    z0, z1 = paired_views(noise=0.5)
    cone = [1e-2 * F.normalize(z) + torch.ones(8) for z in (z0, z1)]
    dense = -torch.cdist(F.normalize(cone[0].double()), F.normalize(cone[1].double()))
    expected = (dense >= dense.diagonal()[:, None]).sum(1)
    assert retrieval_ranks_by_view_pair(*cone)[:, 0].tolist() == expected.tolist()


def test_log_probabilities_average_to_the_info_nce_loss() -> None:
    z0, z1 = paired_views()
    assert -symmetric_log_match_probability(z0, z1, 0.2).mean() == pytest.approx(
        float(info_nce(0.2)(z0.double(), z1.double()))
    )


def test_mutual_information_bound_is_at_most_log_n() -> None:
    z0, _ = paired_views()
    bound = np.log(len(z0)) + symmetric_log_match_probability(z0, z0, 0.01).mean()
    assert bound == pytest.approx(np.log(len(z0)), abs=1e-3)


def test_nearest_neighbors_exclude_the_item_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "MAX_TILE_KEYS", 9)
    z, _ = paired_views()
    result = nearest_indices(z, 3)
    cosines = F.cosine_similarity(z[:, None], z, dim=2).fill_diagonal_(-2)
    assert torch.equal(result, cosines.topk(3, dim=1).indices)


def test_ranks_reject_views_with_different_numbers_of_items() -> None:
    with raises_usage_error("z1.shape", (3, 2), (4, 2)):
        retrieval_ranks_by_view_pair(torch.ones(3, 2), torch.ones(4, 2))
