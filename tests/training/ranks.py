"""What the processes of some tests do: in a module that they can import."""

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

from contraport.auditing.pairs import audit_callback
from contraport.auditing.pairs.audit_callback import AuditCallback
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
from contraport.runs.run_folder import RunFolder
from contraport.training import train
from contraport.training.callbacks.meter import Meter
from contraport.training.parallelism import install_sync_batch_norm
from contraport.training.step.batch_embedding import embed_in_chunks
from tests import TIMEOUT
from tests.processes import Report

train_module = importlib.import_module("contraport.training.train")  # the package names the function so
SIZES = (5, 2)
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "vectors": (nn.BatchNorm1d(3), (3,)),
    "images": (nn.BatchNorm2d(3, momentum=0.3, eps=0.1), (3, 4, 2)),
    "cumulative": (nn.BatchNorm1d(3, momentum=None), (3, 4)),
    "bare": (nn.BatchNorm1d(3, affine=False, track_running_stats=False), (3,)),
    "with activation": (BatchNormAct2d(3), (3, 2, 2)),
}


def network(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Sequential(copy.deepcopy(layer))).double()


def outcome(module: nn.Module, inputs: Tensor, weights: Tensor) -> list[Tensor]:
    """Two steps in training and a look in evaluation mode: outputs and gradients, those of the weights last."""
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
        one, shared = network(layer), network(layer)
        install_sync_batch_norm(shared, torch.device("cpu"))
        expected = [value[own] for value in outcome(one, inputs + 100, weights)]
        got = outcome(shared, inputs[own] + 100, weights[own])
        for parameter in shared.parameters():
            dist.all_reduce(parameter.grad)
        expected += [parameter.grad for parameter in one.parameters()] + list(one.state_dict().values())
        got += [parameter.grad for parameter in shared.parameters()] + list(shared.state_dict().values())
        if shared.state_dict().keys() != one.state_dict().keys():
            report((name, "keys"))
        for number, (left, right) in enumerate(zip(got, expected, strict=True)):
            if not torch.allclose(left, right, rtol=1e-9, atol=1e-9):
                report((name, rank, number, float((left - right).abs().max())))


def compare_chunks(rank: int, report: Report) -> None:
    """Whether the chunks of shared batches are those of one process, and give its gradient and running statistics."""
    for items, size in ((8, 4), (23, 5), (11, 4)):
        share = local_batch_offset(items)
        own = slice(share.start, (rank + 1) * items // 2)
        generator = torch.Generator().manual_seed(items)
        inputs, weights = (torch.randn(items, 3, dtype=torch.float64, generator=generator) for _ in range(2))
        result = []
        for share_or_none, part in ((None, slice(None)), (share, own)):
            norm = network(nn.BatchNorm1d(3))
            if share_or_none is not None:
                install_sync_batch_norm(norm, torch.device("cpu"))
            leaf = inputs[part].clone().requires_grad_()
            (embedded,) = embed_in_chunks(
                lambda views, norm=norm: (norm(*views).square(),), norm, [leaf], size, share_or_none
            )
            (weights[part] * embedded).sum().backward()
            assert leaf.grad is not None
            result.append([embedded.detach(), leaf.grad, *norm.buffers(), *(p.grad for p in norm.parameters())])
        (one, gradient, *rest), (shared, of_share, *theirs) = result
        for parameter in theirs[-2:]:
            dist.all_reduce(parameter)
        for number, (expected, got) in enumerate(
            zip([one[own], gradient[own], *rest], [shared, of_share, *theirs], strict=True)
        ):
            if not torch.allclose(got.double(), expected.double(), rtol=1e-9, atol=1e-9):
                report((items, size, rank, number))


def wait_long(rank: int, report: Report) -> None:
    """Whether the others wait for the first process for longer than any exchange may take."""
    with stop_all_on_error():  # as at the beginning of a training
        pass
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5), dist.group.WORLD)
    with stop_all_on_error():
        if is_main_process():
            time.sleep(1.5)
    report(rank)


def take_other_items(rank: int, report: Report, folder: str) -> None:
    """Report how a training ends for which the second process finds fewer items."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT), dist.group.WORLD)
    vectors = torch.randn(100 - 30 * rank, 4, generator=torch.Generator().manual_seed(0))
    try:
        train(data=vectors.numpy(), epochs=1, batch_size=16, out=folder, device="cpu", progress=False)
    except (UsageError, SystemExit) as ended:
        report((rank, str(ended)))


def leave_out_an_image(rank: int, report: Report, photos: str, folder: str) -> None:
    """Report what each process says, beside the console, of a training on a folder with an image that is none."""
    said: list[str] = []
    listening = logging.Handler()
    listening.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("contraport").addHandler(listening)
    train(data=photos, encoder="mlp", epochs=1, batch_size=4, out=folder, device="cpu", progress=False)
    report((rank, said))


class Breaking(torch.utils.data.IterableDataset[Tensor]):
    """Vectors, where after some of the second pass the line goes dead in the second process alone."""

    def __init__(self, rank: int) -> None:
        self.rank, self.epoch = rank, 0

    def set_epoch(self, number: int) -> None:
        self.epoch = number

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(10):
            if (self.rank, self.epoch, number) == (1, 1, 4):
                raise ConnectionError("the line went dead")
            yield torch.full((2,), float(number))


def break_a_stream(rank: int, report: Report) -> None:
    """Report how many batches came of a stream that breaks in one process, and what was raised then."""
    came = 0
    try:
        for _ in build_loader(from_stream(Breaking(rank)), 4, batches_per_epoch=6, split_over_processes=True):
            came += 1
    except StreamReadError as broke:
        report((came, str(broke)))


def agree_and_fail(rank: int, report: Report) -> None:
    """Whether processes hear of each other what they should; what is wrong is reported."""
    result = {
        "the first": is_main_process() == (rank == 0),
        "from the first": broadcast_object(f"rank {rank}") == "rank 0",
        "anyone's": (first_non_none_across_ranks("mine" if rank == 1 else None), first_non_none_across_ranks(None))
        == ("mine", None),
        "anywhere": any_across_processes(rank == 1, False, True) == (True, False, True),
    }
    for failing in ([], [0], [2], [1, 2]):
        met = "nothing"
        try:
            with stop_all_on_error():
                if rank in failing:
                    raise ValueError("mine")
        except ValueError:
            met = "the error"
        except SystemExit as stop:
            met = f"exit {stop.code}"
        expected = "nothing" if not failing else "the error" if rank == failing[0] else "exit 2"
        result[f"together, {failing} fail"] = met == expected
    for name, good in result.items():
        if not good:
            report((rank, name))


def fail_in_the_first(rank: int, report: Report, where: str, folder: str) -> None:
    """Report how a training ends in each process if the first one fails alone, and where a process waits for it."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("mine")

    def hear(state: object) -> object:
        report((rank, "waits for the scores"))
        return state

    owners = {"_compute_next_state": AuditCallback, "append_metrics": RunFolder}
    owners |= {"add_online_values": Meter, "open_loggers": train_module}
    setattr(owners[where], where, fail)
    audit_callback.broadcast_object = hear  # type: ignore[assignment]
    views = torch.randn(2, 100, 4, generator=torch.Generator().manual_seed(0)).numpy()
    audit, metrics = where == "_compute_next_state", ["uniformity"] if where == "add_online_values" else []
    try:
        train(
            data=(views[0], views[1]), epochs=2, batch_size=16, out=folder, device="cpu", progress=False,
            audit=audit, online_metrics=metrics,
        )  # fmt: skip
    except (ValueError, SystemExit) as ended:
        report((rank, repr(ended)))


def train_in_double(rank: int, report: Report, arrays: list[np.ndarray], out: str, options: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float64)
    data = from_arrays(tuple(arrays), name="pairs")
    train(
        data=data, epochs=2, batch_size=15, optimizer="sgd", lr=0.1, out=out, progress=False, device="cpu", threads=1,
        **options,
    )  # fmt: skip
