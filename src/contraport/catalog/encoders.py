"""Table of named encoders, and the formats of encoder names from other libraries."""

from __future__ import annotations

from typing import NamedTuple

TIMM = "any timm name"
TRANSFORMERS = "any transformers name or folder"
OWN = "module:attribute"


class EncoderEntry(NamedTuple):
    """Table entry of a named encoder.

    Attributes:
        name: Name of the encoder.
        description: Description of the encoder in one line.
        network: Location of the network class, ``module:class``; empty for encoders of other libraries. The class
            takes the shape of an item.
        fixed: Whether the encoder has no trainable weights.
    """

    name: str
    description: str
    network: str = ""
    fixed: bool = False


ENCODERS = {
    encoder.name: encoder
    for encoder in (
        EncoderEntry(
            "small-cnn",
            "a few convolutions for small images, trains on a processor",
            "contraport.encoders.networks:SmallCNN",
        ),
        EncoderEntry(
            "gradients",
            "edges (HOG) and hues of each part of an image; nothing of it learns, which suits a few hundred",
            "contraport.encoders.networks:GradientHistograms",
            fixed=True,
        ),
        EncoderEntry(
            "mlp",
            "two hidden layers, for vectors or the pixels of images",
            "contraport.encoders.networks:MLP",
        ),
        EncoderEntry(
            "small-tcn",
            "residual blocks of dilated convolutions, for time series",
            "contraport.encoders.networks:SmallTCN",
        ),
        EncoderEntry(
            "small-text",
            "hashed words and pieces of words, for texts in any language; needs no vocabulary",
            "contraport.encoders.small_text:SmallText",
        ),
    )
}
"""The encoders of this package, by name."""


def list_encoders() -> tuple[EncoderEntry, ...]:
    """Return the entries of all named encoders, and one for each name format of another library.

    >>> [encoder.name for encoder in list_encoders()][:4]
    ['small-cnn', 'gradients', 'mlp', 'small-tcn']
    """
    return (
        *ENCODERS.values(),
        EncoderEntry(
            TIMM,
            "a model of timm, such as resnet18 or vit_tiny_patch16_224; untrained, or as timm trained it with "
            "--pretrained; timm.list_models() has all",
        ),
        EncoderEntry(
            TRANSFORMERS,
            "for texts, a model over the tokens of its tokenizer, such as sentence-transformers/all-MiniLM-L6-v2; "
            "NAME@first or NAME@last takes the features of that token rather than the mean; untrained, or as it was "
            "trained with --pretrained",
        ),
        EncoderEntry(OWN, "your own: a callable that takes the shape of an item and returns an nn.Module"),
    )
