"""Adapter to lightly: values and gradients of losses, with and without a memory bank."""

import pytest
import torch
import torch.nn.functional as F

import contraport
from contraport.integrations import MemoryBankLoss
from tests.errors import raises_usage_error
from tests.objectives.comparing import assert_same, outcome, views


def lightly():
    return pytest.importorskip("lightly.loss", reason="lightly is not installed")


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_matches_lightly(temperature):
    reference = lightly().NTXentLoss(temperature=temperature)
    assert_same(outcome(contraport.nt_xent(temperature=temperature), *views()), outcome(reference, *views()), rtol=1e-6)


def test_memory_bank_loss_matches_lightly():
    """Two calls fill both banks with the same keys, in any order; the third compares with them."""
    reference, loss_with_bank = (
        lightly().NTXentLoss(temperature=0.5, memory_bank_size=(14, 5)),
        MemoryBankLoss((14, 5)).double(),
    )
    reference.memory_bank.bank = reference.memory_bank.bank.double()
    for seed in (1, 2):
        for loss in (reference, loss_with_bank):
            query, key = views(seed=seed)
            loss(query.requires_grad_(), key)
    z = views()
    assert_same(outcome(lambda *z: loss_with_bank(*z), *z), outcome(lambda *z: reference(*z), *z), rtol=1e-6)


def test_bank_keeps_the_last_keys_as_the_only_negatives():
    loss = MemoryBankLoss((5, 5)).double()
    query, key = views(3, seed=1)
    assert loss(query.requires_grad_(), key).item() == pytest.approx(0)  # no negatives yet
    loss(query, key)
    loss(query.detach(), key)  # without a gradient the bank is not updated
    unit = F.normalize(key)
    assert loss.num_stored_keys == 5
    assert torch.cdist(loss.bank, unit).amin(dim=1).max() < 1e-12
    assert torch.cdist(unit, loss.bank).amin(dim=1).max() < 1e-12
    loss(query, key * torch.nan)  # as from overflows in half precision, after which a trainer skips the step
    loss(query, key.double() * 1e200)
    assert torch.isfinite(loss.bank).all()
    z0, z1 = (F.normalize(z) for z in views(3))
    bank = loss.bank.clone()
    logits = torch.cat([(z0 * z1).sum(1, keepdim=True), z0 @ bank.T], 1) / 0.5
    torch.testing.assert_close(loss(z0, z1), F.cross_entropy(logits, torch.zeros(3, dtype=torch.long)))
    with_batch = MemoryBankLoss((5, 5), in_batch_negatives=True).double()
    with_batch.load_state_dict(loss.state_dict())
    expected = contraport.info_nce(temperature=0.5, symmetric=False)(z0, z1, negatives=bank)
    torch.testing.assert_close(with_batch(z0, z1), expected)


@pytest.mark.parametrize("size", [0, 4096, (4096,), (4, -1), (4.0, 2)])
def test_rejects_invalid_bank_sizes(size):
    with raises_usage_error("memory_bank_size.invalid"):
        MemoryBankLoss(size)


def test_memory_bank_accepts_the_deprecated_keyword_and_attribute_with_one_warning_each():
    with pytest.warns(FutureWarning, match="in.batch.negatives") as caught:
        loss = MemoryBankLoss((5, 5), others=True)
    assert loss.in_batch_negatives
    assert len(caught) == 1
    with pytest.warns(FutureWarning, match="num_stored_keys") as caught:
        assert loss.size == 0
    assert len(caught) == 1
