"""`DuplicateGroups`: positives by shared content, such as several captions of one image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error

import contraport
from contraport.objectives import Cross, DuplicateGroups, Joint

NUMBERS = torch.tensor([[0, 0], [0, 1], [1, 1], [2, 2], [3, 3], [4, 2]])
SAME = (NUMBERS[:, None] == NUMBERS).any(2).double()


def embeddings() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 5, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)]


def test_info_nce_is_cross_entropy_with_several_positives() -> None:
    z0, z1 = embeddings()
    logits = F.normalize(z0, dim=1) @ F.normalize(z1, dim=1).T / 0.3
    target = SAME / SAME.sum(1, keepdim=True)
    both = [-(target * scores.log_softmax(1)).sum(1).mean() for scores in (logits, logits.T)]
    entropy = -torch.special.xlogy(target, target).sum(1).mean()
    value = contraport.info_nce(temperature=0.3)(z0, z1, target=DuplicateGroups(NUMBERS))
    assert float(value.detach()) == pytest.approx(float(((both[0] + both[1]) / 2 - entropy).detach()))
    gradients = [torch.autograd.grad(loss, (z0, z1)) for loss in (value, (both[0] + both[1]) / 2)]
    for gradient, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_sigmoid_labels_are_the_shares_of_pairs() -> None:
    z0, z1 = embeddings()
    scores = F.normalize(z0, dim=1) @ F.normalize(z1, dim=1).T / 0.1 - 10
    target = SAME / SAME.sum(1, keepdim=True)
    expected = F.binary_cross_entropy_with_logits(scores, target, reduction="none").sum(1).mean()
    value = contraport.sigmoid()(z0, z1, target=DuplicateGroups(NUMBERS))
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize("layout", [Cross(), Joint()], ids=["cross", "joint"])
def test_distinct_items_are_pairs(layout: contraport.objectives.Layout) -> None:
    block = layout(*(z.detach() for z in embeddings()))[0]
    torch.testing.assert_close(
        DuplicateGroups(torch.arange(6))(block, {}).dense().double(), contraport.Pairs()(block, {}).dense().double()
    )


def test_items_match_if_one_of_three_views_matches() -> None:
    block = Cross()(*(z.detach() for z in embeddings()))[0]
    numbers = torch.cat([NUMBERS, torch.tensor([[0], [1], [2], [3], [0], [4]])], 1)
    same = (numbers[:, None] == numbers).any(2).float()
    torch.testing.assert_close(
        DuplicateGroups(numbers)(block, {}).dense().float(), same / same.sum(1, keepdim=True) / 6
    )


@pytest.mark.parametrize("numbers", [torch.zeros(6), [0, 1], torch.zeros(6, 1, 1, dtype=torch.long)])
def test_rejects_numbers_that_are_not_integers(numbers: object) -> None:
    with raises_usage_error("target.type"):
        DuplicateGroups(numbers)


def test_rejects_a_wrong_number_of_rows() -> None:
    with raises_usage_error("target.shape", "5"):
        contraport.info_nce()(*embeddings(), target=DuplicateGroups(NUMBERS[:5]))


def test_deprecated_keyword_and_attribute_warn() -> None:
    with pytest.warns(FutureWarning, match="content_ids"):
        target = DuplicateGroups(numbers=NUMBERS)
    with pytest.warns(FutureWarning, match="DuplicateGroups.content_ids"):
        assert target.numbers is target.content_ids is NUMBERS
