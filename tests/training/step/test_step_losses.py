"""Step losses compared with explicit formulas."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import contraport
from contraport.data import Batch
from contraport.encoders import Model
from contraport.training.step.embedding_memory import MovingAverageBank, Queue
from contraport.training.step.step_losses import (
    AllViewsOrPairwiseLoss,
    CrossViewInputReconstructionLoss,
    EmbeddedBatch,
    ObjectiveStepLoss,
    PrototypeLoss,
    QueryKeyLoss,
)

N, D = 6, 4


def build_embedded_batch(views: int, keys: int | None = None, *, same: bool = False) -> EmbeddedBatch:
    torch.manual_seed(0)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    batch = Batch((), labels=labels, domains=labels.flip(0), ids=torch.arange(10, 10 + N))
    queries = tuple(torch.randn(N, D, requires_grad=True) for _ in range(views))
    key_projections = queries if same else tuple(torch.randn(N, D) for _ in range(keys or views))
    return EmbeddedBatch(batch, tuple(torch.randn(N, 5) for _ in range(views)), queries, queries, key_projections)


def test_two_views_are_compared_once() -> None:
    args = build_embedded_batch(2)
    assert torch.equal(AllViewsOrPairwiseLoss(contraport.gca_uot())(args), contraport.gca_uot()(*args.queries))


def test_two_view_objective_averages_over_pairs() -> None:
    batch, loss = build_embedded_batch(4), contraport.nt_xent()
    pairs = [loss(a, b) for a, b in combinations(batch.queries, 2)]
    torch.testing.assert_close(AllViewsOrPairwiseLoss(loss)(batch), torch.stack(pairs).mean())


def test_small_crops_are_not_compared_with_each_other() -> None:
    batch, loss = build_embedded_batch(5, keys=2), contraport.nt_xent()
    pairs = [loss(batch.queries[v], batch.queries[w]) for v, w in combinations(range(5), 2) if v < 2]
    assert len(pairs) == 7
    torch.testing.assert_close(AllViewsOrPairwiseLoss(loss)(batch), torch.stack(pairs).mean())


def test_multi_view_objective_receives_all_views() -> None:
    args = build_embedded_batch(3)
    assert torch.equal(AllViewsOrPairwiseLoss(contraport.cmc())(args), contraport.cmc()(*args.queries))

    class ViewCounter(nn.Module):
        def forward(self, *views: Tensor) -> Tensor:
            return torch.tensor(float(len(views)))

    assert AllViewsOrPairwiseLoss(ViewCounter())(args) == 3


@pytest.mark.parametrize(("batch_size", "can_grow"), [(20, True), (30, False)])
def test_suggests_larger_batches_only_below_the_number_of_items(batch_size, can_grow):
    warning = AllViewsOrPairwiseLoss(contraport.nt_xent()).small_batch_warning(batch_size, num_items=30)
    assert ("batch_size" in warning) == can_grow


def test_each_view_is_the_query_once() -> None:
    batch, loss = build_embedded_batch(3, keys=2), contraport.info_nce(symmetric=False)
    pair_losses = [loss(batch.queries[v], batch.key_projections[w]) for v, w in permutations(range(3), 2) if w < 2]
    assert len(pair_losses) == 4
    torch.testing.assert_close(QueryKeyLoss(loss)(batch), torch.stack(pair_losses).mean())


def test_queue_entries_are_extra_negatives() -> None:
    """Dense MoCo loss: negatives are the keys of the batch and of the queue, except the item's own old key."""
    batch, queue = build_embedded_batch(2), Queue(5, views=2, dimensions=D)
    old = torch.randn(3, 2, D)
    queue.write(old, torch.tensor([99, 10, 98]))  # item 10 is the first of the batch
    result = QueryKeyLoss(contraport.info_nce(temperature=0.2, symmetric=False), queue)(batch)
    values = []
    for v, w in ((0, 1), (1, 0)):
        columns = F.normalize(torch.cat([batch.key_projections[w], old[:, w]]), dim=1)
        logits = F.normalize(batch.queries[v], dim=1) @ columns.T / 0.2
        logits[0, N + 1] = -torch.inf
        values.append(F.cross_entropy(logits, torch.arange(N)))
    torch.testing.assert_close(result, torch.stack(values).mean())


def test_partly_filled_queue_gives_its_entries() -> None:
    batch, queue = build_embedded_batch(2), Queue(4 * N, views=2, dimensions=D)
    comparison, without_queue = QueryKeyLoss(contraport.nt_xent(), queue), QueryKeyLoss(contraport.nt_xent())
    assert torch.equal(comparison(batch), without_queue(batch))  # an empty queue has no effect
    comparison.after_step()
    assert comparison(batch) > without_queue(batch)  # more negatives increase the loss
    assert queue.written == N


def test_bank_entries_are_positives_and_negatives() -> None:
    batch, bank = build_embedded_batch(2), MovingAverageBank(items=20, views=2, dimensions=D, num_negatives=7)
    torch.manual_seed(3)
    result = QueryKeyLoss(contraport.info_nce(temperature=0.5, symmetric=False), bank)(batch)
    torch.manual_seed(3)
    values = []
    for v, w in ((0, 1), (1, 0)):
        negative_positions = torch.randint(20, (7,))
        columns = torch.cat([bank.embeddings[10 : 10 + N, w], bank.embeddings[negative_positions, w]])
        logits = F.normalize(batch.queries[v], dim=1) @ columns.T / 0.5
        logits[:, N:][batch.batch.ids[:, None] == negative_positions] = -torch.inf
        values.append(F.cross_entropy(logits, torch.arange(N)))
    torch.testing.assert_close(result, torch.stack(values).mean())


def test_each_ordered_pair_of_views_has_its_own_normalizer() -> None:
    """The first call initializes each average with its batch, so the loss equals that of new objectives."""
    batch = build_embedded_batch(3)
    comparison = QueryKeyLoss(contraport.cmc_nce(), views=3)
    new_losses = [
        contraport.cmc_nce()(batch.queries[v], batch.key_projections[w]) for v, w in batch.list_query_key_view_pairs()
    ]
    torch.testing.assert_close(comparison(batch), torch.stack(new_losses).mean())
    state = comparison.state_dict()
    log_normalizers = state["each_divergence_log_normalizer"]
    assert torch.equal(log_normalizers.isnan(), torch.eye(3, dtype=torch.bool))  # no view is compared with itself
    assert len(log_normalizers[~log_normalizers.isnan()].unique()) == 6
    restored = QueryKeyLoss(contraport.cmc_nce(), views=3)
    restored.load_state_dict(state)
    torch.testing.assert_close(restored(build_embedded_batch(3)), comparison(batch), rtol=0, atol=0)


@pytest.mark.parametrize("comparison", [QueryKeyLoss, AllViewsOrPairwiseLoss])
def test_core_graph_pairs_include_the_first_view(comparison: type[ObjectiveStepLoss]) -> None:
    batch = build_embedded_batch(4)
    pair_losses = [
        (v, w) for v, w in batch.list_query_key_view_pairs() if 0 in (v, w) and (comparison is QueryKeyLoss or v < w)
    ]
    assert len(pair_losses) == (6 if comparison is QueryKeyLoss else 3)
    others = batch.key_projections if comparison is QueryKeyLoss else batch.queries
    expected = [contraport.cmc_nce()(batch.queries[v], others[w]) for v, w in pair_losses]
    result = comparison(contraport.cmc_nce(graph="core"), views=4)(batch)
    torch.testing.assert_close(result, torch.stack(expected).mean())


def test_learned_temperature_is_shared_by_all_pairs() -> None:
    comparison = QueryKeyLoss(contraport.sigmoid(), views=3)
    comparison(build_embedded_batch(3)).backward()
    assert {name for name, _ in comparison.named_parameters()} == {
        "objective.kernel.log_temperature",
        "objective.divergence.bias",
    }
    assert all(parameter.grad is not None for parameter in comparison.parameters())


def compute_sinkhorn_codes(scores: Tensor) -> Tensor:
    """Compute SwAV's code assignment as in its paper: three rounds of normalization over prototypes and items."""
    q = (scores.double() / 0.05).exp().T
    for _ in range(3):
        q = q / q.sum(1, keepdim=True) / len(q)
        q = q / q.sum(0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


def test_prototype_loss_swaps_assignments() -> None:
    batch = build_embedded_batch(3, keys=2)
    comparison = PrototypeLoss(contraport.info_nce(temperature=0.1), 5, D)
    centres = F.normalize(comparison.prototypes.detach(), dim=1)
    values = []
    for w in range(2):
        codes = compute_sinkhorn_codes(F.normalize(batch.key_projections[w], dim=1) @ centres.T)
        for v in range(3):
            if v != w:
                log_match_probability_per_item = (
                    F.normalize(batch.queries[v].double(), dim=1) @ centres.double().T / 0.1
                ).log_softmax(1)
                cross = -(codes * log_match_probability_per_item).sum(1).mean()
                values.append(
                    cross + torch.xlogy(codes, codes).sum(1).mean()
                )  # the KL divergence subtracts the entropy of the codes
    torch.testing.assert_close(comparison(batch).double(), torch.stack(values).mean(), rtol=1e-4, atol=1e-4)


def test_prototypes_stay_on_the_sphere_and_learn() -> None:
    batch, comparison = build_embedded_batch(2), PrototypeLoss(contraport.gca_uot(), 5, D)
    optimizer = torch.optim.SGD([comparison.prototypes], lr=10.0)
    before = comparison.prototypes.detach().clone()
    comparison(batch).backward()
    optimizer.step()
    comparison.after_step()
    torch.testing.assert_close(comparison.prototypes.norm(dim=1), torch.ones(5))
    assert not torch.allclose(comparison.prototypes, before)


@pytest.mark.parametrize(("name", "error"), [("l1", F.l1_loss), ("l2", F.mse_loss)])
def test_each_view_is_decoded_from_each_other(name: str, error: Any) -> None:
    model = Model("mlp", [(5,), (5,)], mean=[[1.0] * 5] * 2, std=[[2.0] * 5] * 2)
    batch = build_embedded_batch(2)._replace(features=tuple(torch.randn(N, 256) for _ in range(2)))
    comparison = CrossViewInputReconstructionLoss(model, [(5,), (5,)], name).eval()
    expected = [
        error(comparison.decoders[f"{v}-{w}"](batch.features[v]), (batch.input_views[w] - 1) / 2)
        for v, w in ((0, 1), (1, 0))
    ]
    torch.testing.assert_close(comparison(batch), torch.stack(expected).mean())


def test_objective_receives_the_attributes_it_requires() -> None:
    class DomainRecorder(nn.Module):
        def forward(self, z0: Tensor, z1: Tensor, domains: Tensor) -> Tensor:
            self.domains = domains
            return z0.sum()

    objective = DomainRecorder()
    AllViewsOrPairwiseLoss(objective)(build_embedded_batch(2))
    assert objective.domains.tolist() == [2, 2, 1, 1, 0, 0]
