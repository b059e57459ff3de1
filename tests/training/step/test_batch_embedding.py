"""Gradient caching gives the gradient of the big batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest
import torch
from tests.errors import raises_usage_error
from tests.processes import run_in_processes
from tests.training.ranks import compare_chunks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import contraport
from contraport.training.step.batch_embedding import check_chunks_large_enough, embed_in_chunks


def embed_by(network: nn.Module):
    def embed(views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(network(view) for view in views)

    return embed


def by_hand_in_chunks(network: nn.Module, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Five chunks without any checkpoint, items dealt to them in turn."""
    outputs = tuple(torch.empty(len(view), 4) for view in views)
    for chunk in (slice(number, None, 5) for number in range(5)):
        for output, embedded in zip(outputs, embed_by(network)([view[chunk] for view in views]), strict=True):
            output[chunk] = embedded
    return outputs


def gradient(network: nn.Module, views: tuple[Tensor, ...], size: int | None) -> Tensor:
    """The gradient of a loss over all pairs, through chunks of some size or, with None, through the whole batch."""
    network.zero_grad()
    torch.manual_seed(0)
    embed = embed_by(network)
    contraport.gca_uot()(*(embed(views) if size is None else embed_in_chunks(embed, network, views, size))).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Compare gradients to more digits than a processor's order of summation changes."""
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
    torch.testing.assert_close(gradient(network, views, size), gradient(network, views, None), rtol=1e-8, atol=1e-10)


def test_dropout_masks_are_repeated_in_backward(views: tuple[Tensor, ...]) -> None:
    network = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))

    def by_hand() -> Tensor:
        """One graph, the random numbers in the same order."""
        network.zero_grad()
        torch.manual_seed(0)
        contraport.gca_uot()(*by_hand_in_chunks(network, views)).backward()
        return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])

    torch.testing.assert_close(gradient(network, views, 5), by_hand(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_counts_each_chunk_once(views: tuple[Tensor, ...], momentum: float | None) -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 4))
    start = {name: value.clone() for name, value in network.state_dict().items()}
    result = gradient(network, views, 5)
    chunked = {name: value.clone() for name, value in network[1].named_buffers()}
    network.load_state_dict(start)
    outputs = by_hand_in_chunks(network, views)
    for name, value in network[1].named_buffers():
        assert torch.equal(chunked[name], value), name
    network.zero_grad()
    contraport.gca_uot()(*outputs).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-10)


def test_plain_checkpointing_counts_chunks_twice(views: tuple[Tensor, ...]) -> None:
    """The reason for holding the statistics: should torch ever do so by itself, this says it."""
    norm = nn.BatchNorm1d(6)
    checkpoint(norm, views[0], use_reentrant=False).sum().backward()
    assert norm.num_batches_tracked == 2


def test_stores_the_activations_of_one_chunk(views: tuple[Tensor, ...]) -> None:
    network = nn.Sequential(nn.Linear(6, 1000), nn.Tanh(), nn.Linear(1000, 4))
    kept = {}
    for size in (None, 4):
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t):
            embed = embed_by(network)
            outputs = embed(views) if size is None else embed_in_chunks(embed, network, views, size)
        assert all(output.requires_grad for output in outputs)
        kept[size] = sum(saved)
    assert kept[4] < kept[None] / 10


def test_chunks_do_not_depend_on_the_number_of_processes() -> None:
    assert not run_in_processes(compare_chunks, 2)


@pytest.mark.parametrize(("items", "size", "good"), [(9, 2, False), (9, 3, True), (8, 2, True), (3, 2, False)])
def test_chunks_have_two_items(items: int, size: int, good: bool) -> None:
    with nullcontext() if good else raises_usage_error("cache_chunk.small_chunks", 2, items, size):
        check_chunks_large_enough(items, size)
