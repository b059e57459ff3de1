"""Capabilities of the installed torch.compile."""

import os
import shutil

import pytest
import torch

requires_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="the default backend of torch.compile needs g++"
)
COMPILES_AS_ONE_GRAPH = torch.__version__ >= "2.14"
"""Whether torch.compile traces a ContextVar, such as that of `engine.backend`; older versions break the graph there."""
