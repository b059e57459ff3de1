"""Encoders of texts of transformers: any model by its name or its folder, over the tokens of its tokenizer."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contraport.catalog.encoders import ENCODERS, TRANSFORMERS
from contraport.errors import UsageError, check, reason, require, unknown_name
from contraport.texts import decoded, is_text

EXTRA = "text"
POOLINGS = ("mean", "first")
LONGEST_TOKENS = 512
"""Tokens at most of a text, where a model does not say how many it takes."""

_POOLING_FILE = Path("1_Pooling", "config.json")
_LENGTH_FILE = "sentence_bert_config.json"
_FIRST, _MEAN = "pooling_mode_cls_token", "pooling_mode_mean_tokens"


class TextTransformer(nn.Module):
    """A model of transformers: the mean of what it gives of a text's tokens, or what it gives of the first.

    Texts are cut after `length` tokens.

    Args:
        network: the model, which returns ``last_hidden_state``.
        tokenizer: makes the tokens of texts.
        pooling: "mean" or "first".
        length: tokens at most of a text; default: as many as the tokenizer and the network take, at most 512.

    Shape: texts uint8 ``(b, bytes)`` to ``(b, num_features)``.
    """

    def __init__(self, network: nn.Module, tokenizer: Any, pooling: str = "mean", length: int | None = None) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise unknown_name("encoder: pooling", pooling, POOLINGS)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        self.network = network
        self.tokenizer = tokenizer
        self.pooling = pooling
        places = getattr(network.config, "max_position_embeddings", None) or LONGEST_TOKENS
        self.length = length or min(tokenizer.model_max_length, places, LONGEST_TOKENS)
        self.num_features = int(network.config.hidden_size)  # type: ignore[union-attr,arg-type]

    def forward(self, texts: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        device = next(self.parameters()).device
        tokens, there = self.tokens(decoded(texts), device)
        states = self.network(input_ids=tokens, attention_mask=there).last_hidden_state
        if self.pooling == "first":
            return states[:, 0]  # type: ignore[no-any-return]
        weights = there.to(states.dtype)[:, :, None]
        pooled: Tensor = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return pooled

    def tokens(self, texts: list[str], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the tokens of texts ``(b, T)``, and which of them there are."""
        found = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.length, return_tensors="pt", padding_side="right"
        )
        tokens, there = found["input_ids"], found["attention_mask"]
        if tokens.shape[1] == 0:  # of empty texts, by a tokenizer that puts nothing around them
            tokens = torch.full((len(texts), 1), self.tokenizer.pad_token_id)
            there = torch.zeros_like(tokens)
        return tokens.long().to(device), there.to(device)

    def keep(self, folder: Path) -> None:
        """Write what it takes to build it again, but for its weights: JSON, and what the tokenizer has."""
        self.network.config.save_pretrained(folder)  # type: ignore[union-attr,operator]
        self.tokenizer.save_pretrained(folder)
        (folder / _POOLING_FILE).parent.mkdir(exist_ok=True)
        pooling = {_FIRST: self.pooling == "first", _MEAN: self.pooling == "mean"}
        (folder / _POOLING_FILE).write_text(json.dumps(pooling), encoding="utf-8")
        (folder / _LENGTH_FILE).write_text(json.dumps({"max_seq_length": self.length}), encoding="utf-8")


def is_kept(folder: Path) -> bool:
    """Return whether a folder has what it takes to build a model of transformers."""
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def build_tokenized(name: str, shape: tuple[int, ...], *, pretrained: bool = False) -> TextTransformer:
    """Return a model of transformers with its tokenizer.

    Args:
        name: a folder, or a name on the Hugging Face hub; ``@first`` or ``@mean`` behind it says how tokens are pooled,
            by default as a folder of sentence-transformers says, else the mean. No code of theirs is run.
        shape: of the items, which are to be texts.
        pretrained: whether it begins with its weights; else they are drawn.

    Raises:
        UsageError: transformers is not installed, or there is no such model, tokenizer or weights.
    """
    check(is_text(shape), f"encoder: {name!r} takes texts, got items of shape {shape}.")
    where, pooling = _split(name)
    if importlib.util.find_spec("transformers") is None and not Path(where).exists():
        install = f"Or {TRANSFORMERS}, with pip install 'contraport[{EXTRA}]'."
        raise UsageError(f"{unknown_name('encoder', name, ENCODERS)} {install}")
    transformers = require("transformers", EXTRA, f"encoder: {name!r}")
    with _quiet(transformers):
        config = _had("model", where, transformers.AutoConfig)
        tokenizer = _had("tokenizer", where, transformers.AutoTokenizer)
        _check_vocabulary(tokenizer, where, transformers)
        network = _had("weights", where, transformers.AutoModel) if pretrained else _made(where, config, transformers)
    check(
        hasattr(config, "hidden_size") and not getattr(config, "is_encoder_decoder", False),
        f"encoder: {where!r} is a {config.model_type}; expected a model that gives one vector of each token, such as "
        "bert or roberta.",
    )
    folder = Path(where)
    return TextTransformer(network, tokenizer, pooling or _pooling_of(folder), _length_of(folder))


def _split(name: str) -> tuple[str, str | None]:
    """Return where a model is, and how its tokens are pooled where the name says so.

    >>> _split("bert-base-uncased@first"), _split("models/mine")
    (('bert-base-uncased', 'first'), ('models/mine', None))
    """
    where, at, pooling = name.rpartition("@")
    if not at or Path(name).exists():
        return name, None
    return where, pooling


def _had(what: str, where: str, kind: Any) -> Any:
    """Return a part of a model, of a folder or of the hub."""
    try:
        return kind.from_pretrained(where, trust_remote_code=False)
    except Exception as error:  # no such folder or file, no network, damaged: each has an error of its own
        raise UsageError(f"{_lacking(what, where)}: {reason(error)}") from error


def _lacking(what: str, where: str) -> str:
    there = Path(where).is_dir()
    looked = "in that folder" if there else "on the Hugging Face hub and in what was downloaded before"
    return f"encoder: the {what} of {where!r} was looked for {looked}, and cannot be had"


def _check_vocabulary(tokenizer: Any, where: str, transformers: Any) -> None:
    """Raise `UsageError` where a tokenizer has no vocabulary; transformers makes up an empty one for it."""
    files = sorted(set(tokenizer.vocab_files_names.values()))

    def is_there(file: str) -> bool:
        try:
            return transformers.utils.cached_file(where, file) is not None
        except OSError:
            return False

    check(
        not files or any(map(is_there, files)),
        f"{_lacking('tokenizer', where)}: it has none of the files {', '.join(files)}.",
    )


def _made(where: str, config: Any, transformers: Any) -> nn.Module:
    try:
        network: nn.Module = transformers.AutoModel.from_config(config)
    except Exception as error:
        raise UsageError(f"encoder: the model of {where!r} cannot be made: {reason(error)}") from error
    return network


def _pooling_of(folder: Path) -> str:
    return "first" if _told(folder / _POOLING_FILE).get(_FIRST) else "mean"


def _length_of(folder: Path) -> int | None:
    length = _told(folder / _LENGTH_FILE).get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def _told(file: Path) -> dict[str, Any]:
    """Return what a file of JSON says, nothing where there is none."""
    if not file.is_file():
        return {}
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"encoder: {file} cannot be read: {reason(error)}") from error
    return told if isinstance(told, dict) else {}


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Let transformers say nothing of what it loads; what goes wrong is raised."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
