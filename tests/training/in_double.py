"""The command, in double precision: where rounding is too small to grow, in the steps of a test, into a difference."""

import torch

from contraport.cli import entry_point

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    entry_point()
