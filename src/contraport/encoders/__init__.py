"""Networks that map items to embeddings."""

from contraport.encoders.build import (
    Encoder,
    build,
    check_trusted,
    default_encoder,
    described,
    is_described,
    list_encoders,
)
from contraport.encoders.model import Model, Represented
from contraport.encoders.networks import Decoder, Projector
from contraport.encoders.tower import Tower

__all__ = [
    "Decoder",
    "Encoder",
    "Model",
    "Projector",
    "Represented",
    "Tower",
    "build",
    "check_trusted",
    "default_encoder",
    "described",
    "is_described",
    "list_encoders",
]
