"""Networks that map items to embeddings."""

from contraport.encoders.build import Encoder, build, list_encoders
from contraport.encoders.model import Model
from contraport.encoders.networks import Projector

__all__ = ["Encoder", "Model", "Projector", "build", "list_encoders"]
