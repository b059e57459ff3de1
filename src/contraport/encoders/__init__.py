"""Networks that map items to embeddings."""

from contraport.encoders.build import (
    build,
    check_trusted,
    default_encoder,
    described,
    is_module_description,
)
from contraport.encoders.initial import InitialWeights
from contraport.encoders.model import FeatureExtractor, Model
from contraport.encoders.networks import Decoder, Projector
from contraport.encoders.pretrained_weights import initial, pretrained
from contraport.encoders.tower import Tower
from contraport.encoders.view_names import kind_from_shape, resolve_view

__all__ = [
    "Decoder",
    "FeatureExtractor",
    "InitialWeights",
    "Model",
    "Projector",
    "Tower",
    "build",
    "check_trusted",
    "default_encoder",
    "described",
    "initial",
    "is_module_description",
    "kind_from_shape",
    "pretrained",
    "resolve_view",
]
