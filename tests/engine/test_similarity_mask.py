"""Similarity masks against a loop over all pairs."""

import pytest
import torch

from contraport.engine import (
    Geometry,
    Gibbs,
    SimilarityExclusion,
    backend,
    choose_backend_name,
    explain_backend,
    row_log_sums,
)


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mask():
    rows, columns = torch.arange(9), torch.arange(13)
    limits = numbers(9, seed=3).abs(), 0.1 * numbers(13, seed=4)
    return SimilarityExclusion((numbers(9, 2, seed=1), numbers(13, 2, seed=2)), limits, (rows, columns))


def excluded_pairs():
    """Return the excluded pairs by a loop."""
    x, y = numbers(9, 2, seed=1), numbers(13, 2, seed=2)
    r, c = numbers(9, seed=3).abs(), 0.1 * numbers(13, seed=4)
    return torch.tensor([[bool(x[i] @ y[j] > r[i] + c[j]) and i != j for j in range(13)] for i in range(9)])


def test_matches_a_loop_over_pairs():
    expected = excluded_pairs()
    assert expected.any()
    assert not expected.all()
    assert (mask().dense() == expected).all()
    assert (mask().T.dense() == expected.T).all()
    assert (mask().take_rows(slice(2, 7)).tile(slice(1, 4), slice(3, 11)) == expected[3:6, 3:11]).all()
    rows, columns = torch.tensor([0, 4, 8]), torch.tensor([12, 4, 1])
    assert (mask().gather_entries(rows, columns) == expected[rows, columns]).all()
    wider = mask().append_columns(3).dense()
    assert (wider[:, :13] == expected).all()
    assert not wider[:, 13:].any()


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("temperature", [0.5, 0.001])
def test_log_sums_exclude_masked_pairs(monkeypatch, name, temperature):
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
    x, y = numbers(9, 3, seed=5).requires_grad_(), numbers(13, 3, seed=6)
    kernel = Gibbs("cosine", temperature)
    with backend(name):
        sums = row_log_sums(Geometry(kernel(x, y), (mask(),)), torch.zeros(13, dtype=torch.float64))
    expected = kernel(x, y).dense().masked_fill(excluded_pairs(), -torch.inf).logsumexp(1)
    torch.testing.assert_close(sums, expected)
    slopes = [torch.autograd.grad(v.sum(), x, retain_graph=True)[0] for v in (sums, expected)]
    torch.testing.assert_close(*slopes)


def test_cuda_kernels_do_not_take_a_similarity_mask():
    x, y = numbers(9, 3).float(), numbers(13, 3).float()
    with backend("cuda"):
        assert choose_backend_name(Geometry(Gibbs()(x, y), (mask(),))) == "dense"
        assert "Not cuda" in explain_backend(Geometry(Gibbs()(x, y), (mask(),)))


def test_large_sizes_are_written_without_powers_of_ten():
    x = torch.zeros(100_000, 1)
    assert explain_backend(Geometry(Gibbs()(x, x))).startswith("100000 x 100000 pairs, 38,100 MiB")
