"""Encoders, networks that map items to features."""

from contraport.encoders.builtin_networks import Decoder, Projector, default_encoder_name
from contraport.encoders.factory import (
    build_encoder,
    check_saved_encoder_trusted,
    is_user_module_placeholder,
    serialize_encoder,
)
from contraport.encoders.initial_weights import InitialWeights, load_pretrained_weights, read_initial_weights
from contraport.encoders.model import FeatureExtractor, Model, kind_from_shape, resolve_view_index
from contraport.encoders.tower import Tower
from contraport.options import keep_deprecated_module_names

__all__ = [
    "Decoder",
    "FeatureExtractor",
    "InitialWeights",
    "Model",
    "Projector",
    "Tower",
    "build_encoder",
    "check_saved_encoder_trusted",
    "default_encoder_name",
    "is_user_module_placeholder",
    "kind_from_shape",
    "load_pretrained_weights",
    "read_initial_weights",
    "resolve_view_index",
    "serialize_encoder",
]

__getattr__ = keep_deprecated_module_names(
    __name__, resolve_view="resolve_view_index", load_pretrained="load_pretrained_weights"
)
