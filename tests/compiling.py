"""What the torch at hand can compile."""

import torch

WHOLE = torch.__version__ >= "2.14"
"""Whether torch.compile follows a ContextVar, such as that of `engine.backend`; before, the graph breaks there."""
