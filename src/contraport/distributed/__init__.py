"""Many processes: who takes part, what they exchange, and how they start, agree and fail together."""

from contraport.distributed.collectives import Processes, gather, local, world
from contraport.distributed.coordination import (
    anywhere,
    broadcast_object,
    first_non_none,
    is_main_process,
    joined,
    machines,
    raise_on_one_rank,
    together,
)

__all__ = [
    "Processes",
    "anywhere",
    "broadcast_object",
    "first_non_none",
    "gather",
    "is_main_process",
    "joined",
    "local",
    "machines",
    "raise_on_one_rank",
    "together",
    "world",
]
