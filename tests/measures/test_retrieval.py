import numpy as np
import pytest
import torch
import torch.nn.functional as F

from contraport import info_nce
from contraport.errors import UsageError
from contraport.measures import retrieval
from contraport.measures.retrieval import log_shares, nearest, ranks


def two_views(items: int = 60, noise: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(items, 8, generator=generator)
    return z0, z0 + noise * torch.randn(items, 8, generator=generator)


@pytest.mark.parametrize("at_once", [1 << 24, 100])
def test_ranks_are_places_in_the_sorted_cosines(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(retrieval, "COSINES_AT_ONCE", at_once)
    z0, z1 = two_views()
    cosines = F.normalize(z0.double(), dim=1) @ F.normalize(z1.double(), dim=1).T
    found = ranks(z0, z1)
    for column, scores in enumerate((cosines, cosines.T)):
        order = scores.argsort(dim=1, descending=True)
        places = [order[i].tolist().index(i) + 1 for i in range(len(z0))]
        assert found[:, column].tolist() == places


def test_embeddings_that_are_all_the_same_find_nothing() -> None:
    assert (ranks(torch.ones(9, 3), torch.ones(9, 3)) == 9).all()


def test_the_shares_are_the_info_nce_loss_of_all_items() -> None:
    z0, z1 = two_views()
    assert -log_shares(z0, z1, 0.2).mean() == pytest.approx(float(info_nce(0.2)(z0.double(), z1.double())))


def test_the_bound_is_at_most_the_logarithm_of_the_items() -> None:
    z0, _ = two_views()
    bound = np.log(len(z0)) + log_shares(z0, z0, 0.01).mean()
    assert bound == pytest.approx(np.log(len(z0)), abs=1e-3)


def test_an_item_is_no_neighbour_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "COSINES_AT_ONCE", 100)
    z, _ = two_views()
    found = nearest(z, 3)
    cosines = F.cosine_similarity(z[:, None], z, dim=2).fill_diagonal_(-2)
    assert torch.equal(found, cosines.topk(3, dim=1).indices)


def test_views_of_unequal_numbers_are_told() -> None:
    with pytest.raises(UsageError, match="z1: expected shape"):
        ranks(torch.ones(3, 2), torch.ones(4, 2))
