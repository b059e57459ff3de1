"""Encoders of texts of transformers: any model by its name or its folder, over the tokens of its tokenizer."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contraport._utils.formatting import describe_shape
from contraport._utils.text_tensors import is_text_shape, tensor_to_texts
from contraport.catalog.encoders import ENCODERS, TRANSFORMERS
from contraport.errors import UsageError, check, import_optional, one_line_reason, unknown_name_error

EXTRA = "text"
POOLINGS = ("mean", "first", "last")
LONGEST_TOKENS = 512
"""Tokens at most of a text, where a model does not say how many it takes."""

_POOLING_FILE = "1_Pooling/config.json"
_LENGTH_FILE = "sentence_bert_config.json"
_MODULES_FILE = "modules.json"
_POOLING = "pooling_mode"
_THEIR_POOLINGS = {"mean": "mean", "cls": "first", "lasttoken": "last"}
_MARKED_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""What older versions of sentence-transformers mark as true, and what newer ones call it."""

_UNCHANGED = ("Transformer", "Pooling", "Normalize", "Dropout")
"""Modules of sentence-transformers that have no weights but those of the model."""

_UNLIMITED = 10**6
"""Tokenizers that know no limit say a number that is larger."""

_log = logging.getLogger(__name__)


class TextTransformer(nn.Module):
    """A model of transformers: the mean of what it gives of a text's tokens, or what it gives of the first or the last.

    Texts are cut after `length` tokens.

    Args:
        network: the model, which returns ``last_hidden_state``.
        tokenizer: makes the tokens of texts.
        pooling: "mean", "first" or "last".
        length: tokens at most of a text, but never more than the network has places for; default: as many as the
            tokenizer and the network take, at most 512.

    Shape: texts uint8 ``(b, bytes)`` to ``(b, num_features)``.
    """

    def __init__(self, network: nn.Module, tokenizer: Any, pooling: str = "mean", length: int | None = None) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise unknown_name_error("encoder: pooling", pooling, POOLINGS)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        self.network = network
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.length = min(length or min(tokenizer.model_max_length, LONGEST_TOKENS), _places(network))
        self.num_features = int(network.config.hidden_size)  # type: ignore[union-attr,arg-type]

    def forward(self, texts: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        device = next(self.parameters()).device
        tokens, there = self.tokens(tensor_to_texts(texts), device)
        states = self.network(input_ids=tokens, attention_mask=there).last_hidden_state
        if self.pooling == "first":
            return states[:, 0]  # type: ignore[no-any-return]
        if self.pooling == "last":
            ends = (there.sum(1) - 1).clamp(min=0)
            return states[torch.arange(len(states), device=device), ends]  # type: ignore[no-any-return]
        weights = there.to(states.dtype)[:, :, None]
        pooled: Tensor = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return pooled

    def extra_repr(self) -> str:
        """Return what its features depend on beside layers and weights."""
        return f"pooling={self.pooling!r}, length={self.length}, tokenizer={_digest(self.tokenizer)}"

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
        (theirs,) = (name for name, ours in _THEIR_POOLINGS.items() if ours == self.pooling)
        (folder / _POOLING_FILE).write_text(json.dumps({_POOLING: theirs}), encoding="utf-8")
        (folder / _LENGTH_FILE).write_text(json.dumps({"max_seq_length": self.length}), encoding="utf-8")


def _digest(tokenizer: Any) -> str:
    """Return a short digest of what a tokenizer makes of texts."""
    own: dict[str, Any] = {"kind": type(tokenizer).__name__, "special": tokenizer.special_tokens_map}
    if tokenizer.is_fast:
        own |= json.loads(tokenizer.backend_tokenizer.to_str())
        own |= {"truncation": None, "padding": None}  # as the last call had them
    else:
        own["tokens"] = tokenizer.get_vocab()
    return hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:12]


def is_transformers_folder(folder: Path) -> bool:
    """Return whether a folder has what it takes to build a model of transformers."""
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def build_text_transformer(name: str, shape: tuple[int, ...], *, pretrained: bool = False) -> TextTransformer:
    """Return a model of transformers with its tokenizer.

    Args:
        name: a folder, or a name on the Hugging Face hub; ``@first``, ``@last`` or ``@mean`` behind it says how tokens
            are pooled, by default as one of sentence-transformers says itself, else the mean. No code of theirs is run.
        shape: of the items, which are to be texts.
        pretrained: whether it begins with its weights; else they are drawn.

    Raises:
        UsageError: transformers is not installed, there is no such model, tokenizer or weights, or they do not belong
            together.
    """
    check(is_text_shape(shape), f"encoder: {name!r} takes texts, got {describe_shape(shape)}.")
    where, pooling = _split(name)
    if importlib.util.find_spec("transformers") is None and not Path(where).exists():
        install = f"Or {TRANSFORMERS}, with pip install 'contraport[{EXTRA}]'."
        raise UsageError(f"{unknown_name_error('encoder', name, ENCODERS)} {install}")
    transformers = import_optional("transformers", EXTRA, f"encoder: {name!r}")
    with _quiet(transformers):
        config = _had("model", where, transformers.AutoConfig)
        check(
            hasattr(config, "hidden_size") and not getattr(config, "is_encoder_decoder", False),
            f"encoder: {where!r} is a {config.model_type}; expected a model that gives one vector of each token, such "
            "as bert or roberta.",
        )
        tokenizer = _had("tokenizer", where, transformers.AutoTokenizer)
        _check_vocabulary(tokenizer, where, transformers)
        listed = _file(where, _MODULES_FILE, transformers)
        says = listed is not None or Path(where).is_dir()  # on the hub, where each look takes time, no other has more
        pooling = pooling or (_pooling_of(where, transformers) if says else "mean")
        length = _length_of(where, tokenizer, transformers, whole=listed is not None) if says else None
        make = _loaded if pretrained else _drawn
        encoder = TextTransformer(make(where, config, transformers), tokenizer, pooling, length)
        _check_takes(encoder, where)
        if pretrained:
            _tell_others(where, listed)
    return encoder


def _split(name: str) -> tuple[str, str | None]:
    """Return where a model is, and how its tokens are pooled where the name says so.

    >>> _split("bert-base-uncased@first"), _split("models/mine")
    (('bert-base-uncased', 'first'), ('models/mine', None))
    """
    where, at, pooling = name.rpartition("@")
    if not at or Path(name).exists():
        return name, None
    return where, pooling


def _had(what: str, where: str, kind: Any, **more: Any) -> Any:
    """Return a part of a model, of a folder or of the hub."""
    try:
        return kind.from_pretrained(where, trust_remote_code=False, **more)
    except Exception as error:  # no such folder or file, no network, damaged: each has an error of its own
        raise UsageError(f"{_lacking(what, where)}: {one_line_reason(error)}") from error


def _lacking(what: str, where: str) -> str:
    there = Path(where).is_dir()
    looked = "in that folder" if there else "on the Hugging Face hub and in what was downloaded before"
    return f"encoder: the {what} of {where!r} was looked for {looked}, and cannot be had"


def _file(where: str, name: str, transformers: Any) -> Path | None:
    """Return a file of a folder or of the hub, or None where there is none."""
    if Path(where).is_dir():
        return file if (file := Path(where, name)).is_file() else None
    try:
        found = transformers.utils.cached_file(where, name)
    except OSError:
        return None
    return None if found is None else Path(found)


def _check_vocabulary(tokenizer: Any, where: str, transformers: Any) -> None:
    """Raise `UsageError` where a tokenizer has no vocabulary, for which transformers makes up an empty one, or no token
    to make texts equally long.
    """
    files = sorted(set(tokenizer.vocab_files_names.values()))
    check(
        not files or any(_file(where, file, transformers) is not None for file in files),
        f"{_lacking('tokenizer', where)}: it has none of the files {', '.join(files)}.",
    )
    check(
        any(token is not None for token in (tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token)),
        f"encoder: the tokenizer of {where!r} has no token to put behind the shorter texts of a batch; expected a "
        "pad_token in its tokenizer_config.json.",
    )


# Training is in single precision whatever a model was kept in: steps are too small for half, and --amp encodes in it.
def _drawn(where: str, config: Any, transformers: Any) -> nn.Module:
    """Return a model with weights that are drawn."""
    try:
        network: nn.Module = transformers.AutoModel.from_config(config, dtype=torch.float32)
    except Exception as error:
        raise UsageError(f"encoder: the model of {where!r} cannot be made: {one_line_reason(error)}") from error
    return network


def _loaded(where: str, config: Any, transformers: Any) -> nn.Module:
    """Return a model with its weights, all those that its features are made of."""
    network, told = _had("weights", where, transformers.AutoModel, dtype=torch.float32, output_loading_info=True)
    lacking = sorted(set(told["missing_keys"]) & {name for name, _ in network.named_parameters()})
    if lacking:  # transformers draws them; a pooler, which many lack, changes nothing here
        tokens = torch.zeros(1, 1, dtype=torch.long)
        states = network(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
        slopes = torch.autograd.grad(states.sum(), [network.get_parameter(name) for name in lacking], allow_unused=True)
        lacking = [name for name, slope in zip(lacking, slopes, strict=True) if slope is not None]
    check(
        not lacking,
        f"{_lacking('weights', where)}: they lack {len(lacking)} of the {config.model_type} that its config.json tells "
        f"of, such as {next(iter(lacking), None)}.",
    )
    return network  # type: ignore[no-any-return]


def _check_takes(encoder: TextTransformer, where: str) -> None:
    """Raise `UsageError` where a network cannot take what its tokenizer gives."""
    network: Any = encoder.network
    check(
        "attention_mask" in inspect.signature(network.forward).parameters,
        f"encoder: {where!r} is a {network.config.model_type}, which is not told where a text ends: what it gives of a "
        "text would depend on the others of the batch; expected another model, such as bert or roberta.",
    )
    table = network.get_input_embeddings()
    tokens = 1 + max(encoder.tokenizer.get_vocab().values(), default=0)
    check(
        not isinstance(table, nn.Embedding) or tokens <= table.num_embeddings,
        f"encoder: the tokenizer of {where!r} has tokens up to number {tokens - 1}, and the model knows "
        f"{getattr(table, 'num_embeddings', None)}; is the tokenizer another model's?",
    )


def _places(network: nn.Module) -> int:
    """Return of how many tokens a network can take a text."""
    stated = getattr(network.config, "max_position_embeddings", None) or 0
    counted = [
        # RoBERTa and its like count from behind the place of what fills up.
        table.num_embeddings - table.padding_idx - 1
        for name, table in network.named_modules()
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None
    ]
    return min([stated if stated > 0 else _UNLIMITED, *counted])


def _pooling_of(where: str, transformers: Any) -> str:
    """Return how a model of sentence-transformers says that tokens are pooled, the mean where none is said."""
    told = _told(file := _file(where, _POOLING_FILE, transformers))
    said = told.get(_POOLING) or [name for mark, name in _MARKED_POOLINGS.items() if told.get(mark)] or ["mean"]
    names = said if isinstance(said, list) else [said]
    ours = [_THEIR_POOLINGS.get(str(name)) for name in names]
    if len(ours) == 1 and ours[0] is not None:
        return ours[0]
    raise UsageError(
        f"encoder: {file} pools tokens by {' and '.join(map(str, names))}; expected {', '.join(_THEIR_POOLINGS)}, or "
        f"one of {', '.join(f'{where}@{pooling}' for pooling in POOLINGS)} for the encoder."
    )


def _length_of(where: str, tokenizer: Any, transformers: Any, *, whole: bool) -> int | None:
    """Return how many tokens of a text a model takes, None where none is said; a whole one of sentence-transformers may
    say it by its tokenizer.
    """
    length = _told(_file(where, _LENGTH_FILE, transformers)).get("max_seq_length")
    if length is None and whole:
        length = tokenizer.model_max_length
    return length if isinstance(length, int) and 0 < length < _UNLIMITED else None


def _tell_others(where: str, listed: Path | None) -> None:
    """Log which modules of a model of sentence-transformers have weights that no part of the encoder has."""
    modules = _read(listed)
    known = [module for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []
    kinds = [str(module.get("type")).rpartition(".")[2] for module in known]
    if others := [kind for kind in kinds if kind not in _UNCHANGED]:
        told = "encoder: of %r the transformer is taken and its pooling, and not what follows them, %s"
        _log.warning(told, where, ", ".join(others))


def _told(file: Path | None) -> dict[str, Any]:
    """Return the mapping in a file of JSON, nothing where there is none."""
    told = _read(file)
    return told if isinstance(told, dict) else {}


def _read(file: Path | None) -> Any:
    if file is None:
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"encoder: {file} cannot be read: {one_line_reason(error)}") from error


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
