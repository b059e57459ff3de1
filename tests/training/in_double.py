"""The command, in double precision: where rounding is too small to grow, in the steps of a test, into a difference."""

import sys

import torch

from contraport.cli import main

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    sys.exit(main())
