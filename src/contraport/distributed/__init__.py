"""Many processes: who takes part, what they exchange, and how they start, agree and fail together."""

from contraport.distributed.launching import (
    anyones,
    anywhere,
    from_first,
    is_first,
    joined,
    machines,
    raise_once,
    together,
)
from contraport.distributed.processes import Processes, gather, local, world

__all__ = [
    "Processes",
    "anyones",
    "anywhere",
    "from_first",
    "gather",
    "is_first",
    "joined",
    "local",
    "machines",
    "raise_once",
    "together",
    "world",
]
