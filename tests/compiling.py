"""Capabilities of the installed torch.compile."""

import torch

COMPILES_AS_ONE_GRAPH = torch.__version__ >= "2.14"
"""Whether torch.compile traces a ContextVar, such as that of `engine.backend`; older versions break the graph there."""
