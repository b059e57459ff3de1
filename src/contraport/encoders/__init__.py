"""Networks that map items to embeddings."""

from contraport.encoders.build import (
    build,
    check_trusted,
    default_encoder,
    described,
    is_described,
)
from contraport.encoders.finding import initial, pretrained
from contraport.encoders.initial import Initial
from contraport.encoders.model import Model, Represented
from contraport.encoders.networks import Decoder, Projector
from contraport.encoders.tower import Tower
from contraport.encoders.view_names import kind_of, view_called

__all__ = [
    "Decoder",
    "Initial",
    "Model",
    "Projector",
    "Represented",
    "Tower",
    "build",
    "check_trusted",
    "default_encoder",
    "described",
    "initial",
    "is_described",
    "kind_of",
    "pretrained",
    "view_called",
]
