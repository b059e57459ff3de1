"""Functions that run in the processes of some tests, in a module that these can import."""

from __future__ import annotations

import copy
import importlib
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d  # type: ignore[attr-defined]
from torch import Tensor, nn

from contraport.auditing.pairs import mismatch_dropping_callback
from contraport.auditing.pairs.mismatch_dropping_callback import AuditCallback
from contraport.data import build_loader, from_arrays, from_stream, local_batch_offset
from contraport.data.streams import StreamReadError
from contraport.distributed import (
    any_across_processes,
    broadcast_object,
    first_non_none_across_ranks,
    is_main_process,
    stop_all_on_error,
)
from contraport.errors import UsageError
from contraport.metrics.registry import Metric
from contraport.runs.writable_run import WritableRun
from contraport.training import train
from contraport.training.data_parallelism import install_sync_batch_norm_on_any_device
from contraport.training.step.batch_embedding import embed_in_chunks
from tests import TIMEOUT
from tests.processes import Report

train_module = importlib.import_module(
    "contraport.training.train"
)  # the attribute `train` of the package is the function
SIZES = (5, 2)
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "vectors": (nn.BatchNorm1d(3), (3,)),
    "images": (nn.BatchNorm2d(3, momentum=0.3, eps=0.1), (3, 4, 2)),
    "cumulative": (nn.BatchNorm1d(3, momentum=None), (3, 4)),
    "bare": (nn.BatchNorm1d(3, affine=False, track_running_stats=False), (3,)),
    "with activation": (BatchNormAct2d(3), (3, 2, 2)),
}


def copy_in_container(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Sequential(copy.deepcopy(layer))).double()


def run_two_passes(module: nn.Module, inputs: Tensor, weights: Tensor) -> list[Tensor]:
    """Run two passes in training mode and one in evaluation mode; return outputs and the gradient of the inputs."""
    leaf = inputs.clone().requires_grad_()
    outputs = module(leaf)
    (weights * module(outputs.square())).sum().backward()
    assert leaf.grad is not None
    return [outputs.detach(), leaf.grad, module.eval()(inputs).detach()]


def compare_batch_norm(rank: int, report: Report) -> None:
    own = slice(sum(SIZES[:rank]), sum(SIZES[: rank + 1]))
    for name, (layer, shape) in CASES.items():
        generator = torch.Generator().manual_seed(0)
        inputs, weights = (torch.randn(sum(SIZES), *shape, dtype=torch.float64, generator=generator) for _ in range(2))
        single, shared = copy_in_container(layer), copy_in_container(layer)
        install_sync_batch_norm_on_any_device(shared, torch.device("cpu"))
        expected = [value[own] for value in run_two_passes(single, inputs + 100, weights)]
        actual = run_two_passes(shared, inputs[own] + 100, weights[own])
        for parameter in shared.parameters():
            dist.all_reduce(parameter.grad)
        expected += [parameter.grad for parameter in single.parameters()] + list(single.state_dict().values())
        actual += [parameter.grad for parameter in shared.parameters()] + list(shared.state_dict().values())
        if shared.state_dict().keys() != single.state_dict().keys():
            report((name, "keys"))
        for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
            if not torch.allclose(left, right, rtol=1e-9, atol=1e-9):
                report((name, rank, number, float((left - right).abs().max())))


def compare_chunks(rank: int, report: Report) -> None:
    """Report where chunks of a shared batch differ from one process in outputs, gradients or running statistics."""
    for items, size in ((8, 4), (23, 5), (11, 4)):
        share = local_batch_offset(items)
        own = slice(share.start, (rank + 1) * items // 2)
        generator = torch.Generator().manual_seed(items)
        inputs, weights = (torch.randn(items, 3, dtype=torch.float64, generator=generator) for _ in range(2))
        result = []
        for share_or_none, part in ((None, slice(None)), (share, own)):
            norm = copy_in_container(nn.BatchNorm1d(3))
            if share_or_none is not None:
                install_sync_batch_norm_on_any_device(norm, torch.device("cpu"))
            leaf = inputs[part].clone().requires_grad_()
            (embedded,) = embed_in_chunks(
                lambda views, norm=norm: (norm(*views).square(),), norm, [leaf], size, share_or_none
            )
            (weights[part] * embedded).sum().backward()
            assert leaf.grad is not None
            result.append([embedded.detach(), leaf.grad, *norm.buffers(), *(p.grad for p in norm.parameters())])
        (single, gradient, *rest), (shared, share_gradient, *others) = result
        for parameter in others[-2:]:
            dist.all_reduce(parameter)
        for number, (expected, actual) in enumerate(
            zip([single[own], gradient[own], *rest], [shared, share_gradient, *others], strict=True)
        ):
            if not torch.allclose(actual.double(), expected.double(), rtol=1e-9, atol=1e-9):
                report((items, size, rank, number))


def wait_for_slow_process(rank: int, report: Report) -> None:
    """Report the rank if the process waits for the first one longer than the timeout of an exchange."""
    with stop_all_on_error():  # as at the start of a training
        pass
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5), dist.group.WORLD)
    with stop_all_on_error():
        if is_main_process():
            time.sleep(1.5)
    report(rank)


def train_on_different_items(rank: int, report: Report, folder: str) -> None:
    """Report how a training ends if the second process finds fewer items."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT), dist.group.WORLD)
    vectors = torch.randn(100 - 30 * rank, 4, generator=torch.Generator().manual_seed(0))
    try:
        train(data=vectors.numpy(), epochs=1, batch_size=16, out=folder, device="cpu", progress=False)
    except (UsageError, SystemExit) as error:
        report((rank, str(error)))


def train_with_unreadable_image(rank: int, report: Report, photos: str, folder: str) -> None:
    """Report the log messages of each process for a training on a folder with an unreadable image."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("contraport").addHandler(handler)
    train(data=photos, encoder="mlp", epochs=1, batch_size=4, out=folder, device="cpu", progress=False)
    report((rank, messages))


class FailingStream(torch.utils.data.IterableDataset[Tensor]):
    """Stream of vectors that fails in the second process during the second pass."""

    def __init__(self, rank: int) -> None:
        self.rank, self.epoch = rank, 0

    def set_epoch(self, number: int) -> None:
        self.epoch = number

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(10):
            if (self.rank, self.epoch, number) == (1, 1, 4):
                raise ConnectionError("connection lost")
            yield torch.full((2,), float(number))


def iterate_failing_stream(rank: int, report: Report) -> None:
    """Report the number of batches of a stream that fails in one process, and the error."""
    num_batches = 0
    try:
        for _ in build_loader(from_stream(FailingStream(rank)), 4, batches_per_epoch=6, split_over_processes=True):
            num_batches += 1
    except StreamReadError as error:
        report((num_batches, str(error)))


def check_collectives(rank: int, report: Report) -> None:
    """Report collective operations and joint failures that give a wrong result."""
    result = {
        "is_main_process": is_main_process() == (rank == 0),
        "broadcast_object": broadcast_object(f"rank {rank}") == "rank 0",
        "first_non_none_across_ranks": (
            first_non_none_across_ranks("mine" if rank == 1 else None),
            first_non_none_across_ranks(None),
        )
        == ("mine", None),
        "any_across_processes": any_across_processes(rank == 1, False, True) == (True, False, True),
    }
    for failing in ([], [0], [2], [1, 2]):
        outcome = "nothing"
        try:
            with stop_all_on_error():
                if rank in failing:
                    raise ValueError("mine")
        except ValueError:
            outcome = "the error"
        except SystemExit as stop:
            outcome = f"exit {stop.code}"
        expected = "nothing" if not failing else "the error" if rank == failing[0] else "exit 2"
        result[f"together, {failing} fail"] = outcome == expected
    for name, is_correct in result.items():
        if not is_correct:
            report((rank, name))


def fail_in_first_process(rank: int, report: Report, where: str, folder: str) -> None:
    """Report how a training ends in each process if only the first one fails, and whether a process waits for it."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("mine")

    def broadcast(state: object) -> object:
        report((rank, "waits for the scores"))
        return state

    owners = {"_compute_audit_state": AuditCallback, "append_metrics": WritableRun}
    owners |= {"__call__": Metric, "open_loggers": train_module}
    setattr(owners[where], where, fail)
    mismatch_dropping_callback.broadcast_object = broadcast  # type: ignore[assignment]
    views = torch.randn(2, 100, 4, generator=torch.Generator().manual_seed(0)).numpy()
    audit, metrics = where == "_compute_audit_state", ["uniformity"] if where == "__call__" else []
    try:
        train(
            data=(views[0], views[1]), epochs=2, batch_size=16, out=folder, device="cpu", progress=False,
            audit=audit, online_metrics=metrics,
        )  # fmt: skip
    except (ValueError, SystemExit) as error:
        report((rank, repr(error)))


def train_in_double_precision(
    rank: int, report: Report, arrays: list[np.ndarray], out: str, options: dict[str, Any]
) -> None:
    torch.set_default_dtype(torch.float64)
    data = from_arrays(tuple(arrays), name="pairs")
    train(
        data=data, epochs=2, batch_size=15, optimizer="sgd", lr=0.1, out=out, progress=False, device="cpu", threads=1,
        **options,
    )  # fmt: skip
