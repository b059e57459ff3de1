"""Gradient caching, compared with the gradient of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest
import torch
from tests.errors import raises_usage_error
from tests.processes import run_in_processes
from tests.training.process_workers import compare_chunks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import contraport
from contraport.training.step.batch_embedding import check_min_items_per_chunk, embed_in_chunks


def build_embed_function(network: nn.Module):
    def embed(views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(network(view) for view in views)

    return embed


def embed_in_explicit_chunks(network: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Embed in five chunks of every fifth item, without checkpointing."""
    outputs = tuple(torch.empty(len(view), 4) for view in views)
    for chunk in (slice(number, None, 5) for number in range(5)):
        for output, embedded in zip(
            outputs, build_embed_function(network)([view[chunk] for view in views]), strict=True
        ):
            output[chunk] = embedded
    return outputs


def compute_gradient(network: nn.Module, views: tuple[Tensor, ...], size: int | None) -> Tensor:
    """Compute the gradient of a loss over all pairs, in chunks of this size or, with None, of the whole batch."""
    network.zero_grad()
    torch.manual_seed(0)
    embed = build_embed_function(network)
    contraport.gca_uot()(*(embed(views) if size is None else embed_in_chunks(embed, network, views, size))).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Double precision, so that the order of summation does not affect the comparison."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def views() -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return torch.randn(23, 6), torch.randn(23, 6)


@pytest.mark.parametrize("size", [2, 5, 22, 23, 100])
def test_chunked_gradient_equals_that_of_the_whole_batch(views: tuple[Tensor, ...], size: int) -> None:
    network = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8))
    torch.testing.assert_close(
        compute_gradient(network, views, size), compute_gradient(network, views, None), rtol=1e-8, atol=1e-10
    )


def test_dropout_masks_are_repeated_in_backward(views: tuple[Tensor, ...]) -> None:
    network = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))

    def compute_explicit_gradient() -> Tensor:
        """Compute the gradient in one graph with the same random numbers."""
        network.zero_grad()
        torch.manual_seed(0)
        contraport.gca_uot()(*embed_in_explicit_chunks(network, views)).backward()
        return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])

    torch.testing.assert_close(compute_gradient(network, views, 5), compute_explicit_gradient(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_counts_each_chunk_once(views: tuple[Tensor, ...], momentum: float | None) -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 4))
    initial_state = {name: value.clone() for name, value in network.state_dict().items()}
    result = compute_gradient(network, views, 5)
    chunked = {name: value.clone() for name, value in network[1].named_buffers()}
    network.load_state_dict(initial_state)
    outputs = embed_in_explicit_chunks(network, views)
    for name, value in network[1].named_buffers():
        assert torch.equal(chunked[name], value), name
    network.zero_grad()
    contraport.gca_uot()(*outputs).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-10)


def test_plain_checkpointing_counts_chunks_twice(views: tuple[Tensor, ...]) -> None:
    """The second pass must freeze the statistics; this test fails once torch does so itself."""
    norm = nn.BatchNorm1d(6)
    checkpoint(norm, views[0], use_reentrant=False).sum().backward()
    assert norm.num_batches_tracked == 2


def test_stores_the_activations_of_one_chunk(views: tuple[Tensor, ...]) -> None:
    network = nn.Sequential(nn.Linear(6, 1000), nn.Tanh(), nn.Linear(1000, 4))
    saved_numbers = {}
    for size in (None, 4):
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            embed = build_embed_function(network)
            outputs = embed(views) if size is None else embed_in_chunks(embed, network, views, size)
        assert all(output.requires_grad for output in outputs)
        saved_numbers[size] = sum(sizes)
    assert saved_numbers[4] < saved_numbers[None] / 10


def test_chunks_do_not_depend_on_the_number_of_processes() -> None:
    assert not run_in_processes(compare_chunks, 2)


@pytest.mark.parametrize(("items", "size", "is_valid"), [(9, 2, False), (9, 3, True), (8, 2, True), (3, 2, False)])
def test_chunks_have_two_items(items: int, size: int, is_valid: bool) -> None:
    with nullcontext() if is_valid else raises_usage_error("cache_chunk.small_chunks", 2, items, size):
        check_min_items_per_chunk(items, size)
