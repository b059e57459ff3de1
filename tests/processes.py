"""Processes of tests: they have imported already, and those of a group hear of each other."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FORKS = multiprocessing.get_context("forkserver")
"""Its server imports once what would take each process some seconds."""

FORKS.set_forkserver_preload(["contraport.training.resumable_fit"])

Report = Callable[[object], None]


def reports_of(function: Callable[..., None], processes: int, *args: Any) -> list[Any]:
    """Run ``function(rank, report, *given)`` in each of some processes, and return what they reported."""
    reported: SimpleQueue[Any] = FORKS.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        arguments = (meeting, processes, function, reported, args)
        mp.start_processes(_in_group, arguments, nprocs=processes, start_method="forkserver")
    result = []
    while not reported.empty():
        result.append(reported.get())
    return result


def _in_group(
    rank: int,
    meeting: str,
    processes: int,
    function: Callable[..., None],
    reported: SimpleQueue[Any],
    args: tuple[Any, ...],
) -> None:
    options = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ |= {name: str(number) for name, number in options.items()}  # as a launcher does
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    function(rank, reported.put, *args)
    dist.destroy_process_group()
    os._exit(0)  # torch now and then aborts in its own teardown, when all is done
