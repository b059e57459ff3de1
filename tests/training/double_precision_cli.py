"""`contraport` in double precision, so that rounding stays below the tolerance of the tests after some steps."""

import torch

from contraport.cli import entry_point

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    entry_point()
