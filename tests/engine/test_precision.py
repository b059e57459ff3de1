"""Products of embeddings in bfloat16 on CPUs with hardware support."""

import warnings

import pytest
import torch
from tests.compiling import COMPILES_AS_ONE_GRAPH

import contraport
from contraport.engine import Geometry, Gibbs, backend, choose_backend_name, explain_backend, operations, precision
from contraport.engine.backends import choose_backend_config, tiled


def gradient(loss, z, dtype, name, backend_name):
    z = z.to(dtype, copy=True).requires_grad_()
    with precision(name), backend(backend_name):
        loss(*z.unbind()).backward()
    return z.grad


@pytest.mark.parametrize("backend_name", ["stored", "streamed"])
@pytest.mark.parametrize(
    "loss",
    [
        contraport.nt_xent(),
        contraport.gca_ince(iterations=3),
        contraport.gca_uot(),
        contraport.info_nce(),
        contraport.t_simclr(),
    ],
    ids=repr,
)
def test_gradient_in_bfloat16_is_close(monkeypatch, loss, backend_name):
    monkeypatch.setattr(tiled, "has_fast_cpu_bfloat16", lambda device: device.type == "cpu")
    monkeypatch.setattr(tiled, "TILE_SHAPE", (64, 64))
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(300, 64, generator=generator)
    z = torch.stack([z, z + torch.randn(300, 64, generator=generator)])
    exact, single, rounded = (
        gradient(loss, z, dtype, name, backend_name)
        for dtype, name in (
            (torch.float64, "float32"),
            (torch.float32, "float32"),
            (torch.float32, "bfloat16"),
        )
    )
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, single)
    error = float((rounded - exact).norm() / exact.norm())
    # A CPU rounds log K too, by at most 1/512 of its size, which is at most 1/temperature.
    assert error <= max(5e-3, 1 / (512 * loss.temperature))


def expect_warning(name, dtype):
    z = torch.randn(2, 300, 4, dtype=dtype)
    with pytest.warns(UserWarning, match="gains nothing"), precision(name):
        contraport.nt_xent()(*z)


def test_warns_if_the_precision_gains_nothing(monkeypatch):
    expect_warning("float16", torch.float32)
    expect_warning("bfloat16", torch.float64)
    monkeypatch.setattr(tiled, "has_fast_cpu_bfloat16", lambda device: False)
    expect_warning("bfloat16", torch.float32)


def test_few_rows_are_multiplied_in_single_precision_with_a_warning(monkeypatch):
    monkeypatch.setattr(tiled, "has_fast_cpu_bfloat16", lambda device: True)
    z = torch.randn(2, 8, 4)
    with pytest.warns(UserWarning, match="'bfloat16' .*'dense'.* float32"), precision("bfloat16"):
        value = contraport.nt_xent()(*z)
    assert torch.equal(value, contraport.nt_xent()(*z))


def test_explains_the_precision(monkeypatch):
    monkeypatch.setattr(tiled, "has_fast_cpu_bfloat16", lambda device: True)
    x = torch.randn(1024, 4)
    with precision("bfloat16"):
        assert explain_backend(Geometry(Gibbs()(x, x))).endswith("Embeddings are multiplied in bfloat16.")


def test_bfloat16_products_are_recomputed_instead_of_storing_many_tiles(monkeypatch):
    monkeypatch.setattr(tiled, "has_fast_cpu_bfloat16", lambda device: True)
    x, y, z = *torch.randn(2, 4096, 4), torch.randn(4000, 4)
    few, many, symmetric = (Geometry(Gibbs()(*pair)) for pair in ((x, y[:2048]), (x, y), (z, z)))
    assert choose_backend_name(many) == "stored"
    with precision("bfloat16"):
        assert choose_backend_name(few) == choose_backend_name(symmetric) == "stored"
        assert choose_backend_name(many) == choose_backend_name(many, 2, num_passes=1) == "streamed"
        assert choose_backend_name(many, 2) == choose_backend_name(many, num_passes=20) == "stored"


@pytest.mark.parametrize(("loss", "passes"), [(contraport.info_nce(), 1), (contraport.gca_ince(iterations=3), 6)])
def test_counts_the_passes_of_half_steps(monkeypatch, loss, passes):
    counts = []

    def record(geometry, num_half_steps=1, num_passes=None):
        counts.append(num_passes)
        return choose_backend_config(geometry, num_half_steps, num_passes)

    monkeypatch.setattr(operations, "choose_backend_config", record)
    loss(*torch.randn(2, 8, 4))
    assert counts == [passes]


@pytest.mark.skipif(not COMPILES_AS_ONE_GRAPH, reason="this torch compiles no objective whole")
def test_compiles_as_one_graph():
    loss, z = contraport.nt_xent(), torch.randn(2, 300, 4)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    with warnings.catch_warnings(), precision("bfloat16"):
        warnings.simplefilter("ignore")  # of other processors
        torch.testing.assert_close(compiled(*z), loss(*z))
