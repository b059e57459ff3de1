"""Groups of processes for tests of distributed code, forked from a server with the imports done."""

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
"""Context whose server imports the package once, instead of for some seconds in each process."""

FORKS.set_forkserver_preload(["contraport.training.resumable_fit"])

Report = Callable[[object], None]


def run_in_processes(function: Callable[..., None], processes: int, *args: Any) -> list[Any]:
    """Run ``function(rank, report, *args)`` in each of some processes, and return their reports."""
    queue: SimpleQueue[Any] = FORKS.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{Path(folder) / 'rendezvous'}"
        arguments = (init_method, processes, function, queue, args)
        mp.start_processes(_run_in_group, arguments, nprocs=processes, start_method="forkserver")
    result = []
    while not queue.empty():
        result.append(queue.get())
    return result


def _run_in_group(
    rank: int,
    init_method: str,
    processes: int,
    function: Callable[..., None],
    queue: SimpleQueue[Any],
    args: tuple[Any, ...],
) -> None:
    options = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ |= {name: str(number) for name, number in options.items()}  # as set by a launcher
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=processes)
    function(rank, queue.put, *args)
    dist.destroy_process_group()
    os._exit(0)  # as torch sometimes aborts in its own teardown
