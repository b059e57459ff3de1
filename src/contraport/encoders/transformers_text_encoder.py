"""Text encoder built from a transformers model and its tokenizer."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from contraport._utils.formatting import format_options
from contraport._utils.text_bytes import tensor_to_texts
from contraport.catalog.encoders import ANY_TRANSFORMERS_LABEL, ENCODERS
from contraport.errors import UsageError, check, check_name, import_optional, one_line_reason, unknown_name_error

POOLINGS = ("mean", "first", "last")
"""Ways to reduce the states of the tokens to one vector: their mean, the first or the last state."""

MAX_TOKENS_PER_PASS_BY_DEVICE = {"cpu": 1_024}
"""Maximum number of tokens, with padding, that pass through a network at a time, by type of device; others: 16,384."""

_POOLING_FILE = "1_Pooling/config.json"  # in a folder of sentence-transformers, like the one below
_MAX_TOKENS_FILE = "sentence_bert_config.json"
_POOLING_KEY = "pooling_mode"  # key of the pooling file
_POOLING_BY_STORED_MODE = {"mean": "mean", "cls": "first", "lasttoken": "last"}
"""Pooling by the mode that sentence-transformers stores."""
_MODE_BY_OLD_POOLING_KEY = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Boolean config keys of older sentence-transformers versions, mapped to the pooling mode of newer ones."""

_MIN_UNLIMITED_TOKENS = 10**6
"""Stated limits from this number on mean no limit: a tokenizer without a limit states a huge number."""

JsonValueT = TypeVar("JsonValueT")
_log = logging.getLogger(__name__)


class TransformersTextEncoder(nn.Module):
    """Transformers model with mean, first-token or last-token pooling.

    Args:
        network: the model, which returns ``last_hidden_state``.
        tokenizer: of the model.
        pooling: "mean", "first" or "last".
        length: maximum number of tokens; texts are truncated. Never more than the network has positions. Default: the
            limit of tokenizer and network, at most 512.

    Shape: texts uint8 ``(b, bytes)`` to ``(b, num_features)``.
    """

    def __init__(self, network: nn.Module, tokenizer: Any, pooling: str = "mean", length: int | None = None) -> None:
        super().__init__()
        check_name("encoder: pooling", pooling, POOLINGS)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        self.network = network
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.length = min(length or min(tokenizer.model_max_length, 512), _get_max_positions(network))
        self.num_features = int(network.config.hidden_size)  # type: ignore[union-attr,arg-type]

    def forward(self, text_bytes: Tensor) -> Tensor:
        """Return the representation of texts, ``(b, num_features)``.

        The network computes groups of texts of similar length, as padding to the longest text takes as long as text.
        """
        device = next(self.parameters()).device
        tokens, mask = self.tokenize_with_mask(tensor_to_texts(text_bytes))
        lengths = mask.sum(1)
        # The kernels of accelerators are only fast on many tokens.
        max_tokens = MAX_TOKENS_PER_PASS_BY_DEVICE.get(device.type, 16_384)
        groups = group_rows_of_similar_length(lengths, max_tokens)
        pooled = []
        for rows in groups:
            width = max(1, int(lengths[rows].max()))
            pooled.append(self._encode_and_pool(tokens[rows, :width].to(device), mask[rows, :width].to(device)))
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled)[torch.cat(groups).argsort().to(device)]

    def _encode_and_pool(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Return the pooled token states of texts, ``(b, num_features)``."""
        states: Tensor = self.network(input_ids=token_ids, attention_mask=mask).last_hidden_state
        if self.pooling == "first":
            return states[:, 0]
        if self.pooling == "last":
            ends = (mask.sum(1) - 1).clamp(min=0)
            return states[torch.arange(len(states), device=states.device), ends]
        weights = mask.to(states.dtype)[:, :, None]
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)

    def forward_tokens(self, text_bytes: Tensor) -> Tensor:
        """Return the state of each token, ``(b, tokens, num_features)``, zeros for padding."""
        device = next(self.parameters()).device
        tokens, mask = (part.to(device) for part in self.tokenize_with_mask(tensor_to_texts(text_bytes)))
        states: Tensor = self.network(input_ids=tokens, attention_mask=mask).last_hidden_state
        return states * mask.to(states.dtype)[:, :, None]

    def extra_repr(self) -> str:
        """Return pooling mode, maximum length and tokenizer digest for a cache key."""
        tokenizer: Any = self.tokenizer
        behavior: dict[str, Any] = {"kind": type(tokenizer).__name__, "special": tokenizer.special_tokens_map}
        if tokenizer.is_fast:
            behavior |= json.loads(tokenizer.backend_tokenizer.to_str())
            behavior |= {"truncation": None, "padding": None}  # state of the last call, not of the tokenizer
        else:
            behavior["tokens"] = tokenizer.get_vocab()
        digest = hashlib.sha256(json.dumps(behavior, sort_keys=True, default=str).encode()).hexdigest()[:12]
        return f"pooling={self.pooling!r}, length={self.length}, tokenizer={digest}"

    def tokenize_with_mask(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return token ids ``(b, T)`` and the attention mask, on the CPU."""
        batch = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.length, return_tensors="pt", padding_side="right"
        )
        tokens, mask = batch["input_ids"], batch["attention_mask"]
        if tokens.shape[1] == 0:  # all texts are empty, and the tokenizer adds no special tokens
            tokens = torch.full((len(texts), 1), self.tokenizer.pad_token_id)
            mask = torch.zeros_like(tokens)
        return tokens.long(), mask

    def save_config_and_tokenizer(self, folder: Path) -> None:
        """Save the config and tokenizer, without weights."""
        self.network.config.save_pretrained(folder)  # type: ignore[union-attr,operator]
        self.tokenizer.save_pretrained(folder)
        (folder / _POOLING_FILE).parent.mkdir(exist_ok=True)
        (mode,) = (mode for mode, pooling in _POOLING_BY_STORED_MODE.items() if pooling == self.pooling)
        (folder / _POOLING_FILE).write_text(json.dumps({_POOLING_KEY: mode}), encoding="utf-8")
        (folder / _MAX_TOKENS_FILE).write_text(json.dumps({"max_seq_length": self.length}), encoding="utf-8")


def group_rows_of_similar_length(lengths: Tensor, max_entries: int) -> list[Tensor]:
    """Split rows into groups of similar length and limited size after padding.

    A row that is longer than `max_entries` is a group by itself. Rows that fit into one group stay in their order.

    Args:
        lengths: number of entries of each row, ``(n,)``, at least one row.
        max_entries: maximum number of entries of a group.

    >>> [group.tolist() for group in group_rows_of_similar_length(torch.tensor([9, 2, 8, 1]), max_entries=20)]
    [[3, 1], [2, 0]]
    """
    if len(lengths) * int(lengths.max()) <= max_entries:
        return [torch.arange(len(lengths))]
    order = lengths.argsort(stable=True)
    starts = [0]
    for place, length in enumerate(lengths[order].tolist()):
        if place > starts[-1] and (place - starts[-1] + 1) * length > max_entries:
            starts.append(place)
    return [order[start:stop] for start, stop in zip(starts, [*starts[1:], len(order)], strict=True)]


def build_transformers_text_encoder(name: str, *, pretrained: bool = False) -> TransformersTextEncoder:
    """Build a text encoder from a transformers model and its tokenizer.

    Args:
        name: folder, or name on the Hugging Face hub, with an optional suffix ``@first``, ``@last`` or ``@mean`` for
            the pooling. Default pooling: that of a sentence-transformers model, else the mean. No remote code is run.
        pretrained: load the weights; otherwise they are random.

    Raises:
        UsageError: transformers is not installed; model, tokenizer or weights cannot be loaded or do not match.
    """
    source, pooling = _split_pooling_suffix(name)
    if importlib.util.find_spec("transformers") is None and not Path(source).exists():
        hint = f"Or {ANY_TRANSFORMERS_LABEL}, with pip install 'contraport[text]'."
        raise UsageError(f"{unknown_name_error('encoder', name, ENCODERS)} {hint}", kind="unknown")
    transformers = import_optional("transformers", "text", f"encoder: {name!r}")
    with _silence_transformers(transformers):
        config = _load_part("model", source, transformers.AutoConfig)
        good = hasattr(config, "hidden_size") and not getattr(config, "is_encoder_decoder", False)
        message = f"encoder: {source!r} must return one vector per token, as bert or roberta; got {config.model_type}."
        check(good, message, "unsupported_model")
        tokenizer = _load_part("tokenizer", source, transformers.AutoTokenizer)
        _check_vocabulary_and_padding(tokenizer, source, transformers)
        modules = _find_model_file(source, "modules.json", transformers)
        # On the hub each look-up takes time, and only sentence-transformers models have further files.
        has_settings = modules is not None or Path(source).is_dir()
        pooling = pooling or (_read_pooling(source, transformers) if has_settings else "mean")
        length = _find_max_tokens(source, tokenizer, transformers, modules is not None) if has_settings else None
        make_network = _load_network if pretrained else _build_untrained_network
        encoder = TransformersTextEncoder(make_network(source, config, transformers), tokenizer, pooling, length)
        _check_attention_mask_and_vocabulary(encoder, source)
        if pretrained:
            parts = [module for module in _read_json_or_empty_if_none(modules, list) if isinstance(module, dict)]
            kinds = [str(part.get("type")).rpartition(".")[2] for part in parts]
            weightless = ("Transformer", "Pooling", "Normalize", "Dropout")  # they add no weights to the transformer
            if dropped := [kind for kind in kinds if kind not in weightless]:
                message = "encoder: %r is used up to its pooling; these modules behind it are dropped: %s"
                _log.warning(message, source, ", ".join(dropped))
    return encoder


def _split_pooling_suffix(name: str) -> tuple[str, str | None]:
    """Split a text encoder's name into model name and pooling mode.

    >>> _split_pooling_suffix("bert-base-uncased@first"), _split_pooling_suffix("models/mine")
    (('bert-base-uncased', 'first'), ('models/mine', None))
    """
    source, at, pooling = name.rpartition("@")
    if not at or Path(name).exists():
        return name, None
    return source, pooling


def _load_part(part: str, source: str, loader: Any, **options: Any) -> Any:
    """Load a model's config, tokenizer or weights from a folder or the hub."""
    try:
        return loader.from_pretrained(source, trust_remote_code=False, **options)
    except Exception as error:  # a missing folder, no network and a corrupt file raise different errors
        message = f"{_load_error_prefix(part, source)}: {one_line_reason(error.__cause__ or error)}"
        if not Path(source).is_dir():
            offline = f"a local folder as encoder, or {format_options(encoder='small-text')}, which starts untrained"
            message = f"{message.removesuffix('.')}. Without a network: {offline}."
        raise UsageError(message, kind="not_loaded") from error


def _load_error_prefix(part: str, source: str) -> str:
    """Return the start of a loading error message that names the places searched."""
    places = "in that folder" if Path(source).is_dir() else "on the Hugging Face hub and in the download cache"
    return f"encoder: the {part} of {source!r} cannot be loaded (searched {places})"


def _find_model_file(source: str, name: str, transformers: ModuleType) -> Path | None:
    """Return the local path of a model's file, downloaded if needed, or None."""
    if Path(source).is_dir():
        return file if (file := Path(source, name)).is_file() else None
    try:
        path = transformers.utils.cached_file(source, name)
    except OSError:
        return None
    return None if path is None else Path(path)


def _check_vocabulary_and_padding(tokenizer: Any, source: str, transformers: ModuleType) -> None:
    """Raise `UsageError` if a tokenizer lacks vocabulary files or a padding token.

    Without the files transformers would silently use an empty vocabulary.
    """
    files = sorted(set(tokenizer.vocab_files_names.values()))
    exists = not files or any(_find_model_file(source, file, transformers) is not None for file in files)
    message = f"{_load_error_prefix('tokenizer', source)}: it has none of the files {', '.join(files)}."
    check(exists, message, "not_loaded")
    good = any(token is not None for token in (tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token))
    message = f"encoder: the tokenizer of {source!r} has no padding token; set pad_token in its tokenizer_config.json."
    check(good, message, "no_padding")


# Both load in float32 whatever the stored type: updates of half-precision weights vanish; --amp casts where it is safe.
def _build_untrained_network(source: str, config: Any, transformers: ModuleType) -> nn.Module:
    """Build the transformers network with random weights."""
    try:
        network: nn.Module = transformers.AutoModel.from_config(config, dtype=torch.float32)
    except Exception as error:
        message = f"encoder: the model of {source!r} cannot be built: {one_line_reason(error)}"
        raise UsageError(message, kind="not_built") from error
    return network


def _load_network(source: str, config: Any, transformers: ModuleType) -> nn.Module:
    """Load the transformers network with all its stored weights."""
    network, info = _load_part("weights", source, transformers.AutoModel, dtype=torch.float32, output_loading_info=True)
    missing = sorted(set(info["missing_keys"]) & {name for name, _ in network.named_parameters()})
    if missing:  # transformers initialized them at random; those without a gradient, such as a pooler's, do not matter
        tokens = torch.zeros(1, 1, dtype=torch.long)
        states = network(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
        parameters = [network.get_parameter(name) for name in missing]
        gradients = torch.autograd.grad(states.sum(), parameters, allow_unused=True)
        missing = [name for name, gradient in zip(missing, gradients, strict=True) if gradient is not None]
    message = (
        f"{_load_error_prefix('weights', source)}: {len(missing)} weights of its {config.model_type} are missing, "
        f"such as {next(iter(missing), None)}."
    )
    check(not missing, message, "missing_weights")
    return network  # type: ignore[no-any-return]


def _check_attention_mask_and_vocabulary(encoder: TransformersTextEncoder, source: str) -> None:
    """Raise `UsageError` if a network takes no mask or lacks token embeddings."""
    network: Any = encoder.network
    kind = network.config.model_type
    # Without a mask the features of a text would depend on the padding, and so on the other texts of the batch.
    good = "attention_mask" in inspect.signature(network.forward).parameters
    message = f"encoder: {source!r} must take an attention mask, as bert or roberta do; got {kind}."
    check(good, message, "unsupported_model")
    table = network.get_input_embeddings()
    tokens = 1 + max(encoder.tokenizer.get_vocab().values(), default=0)
    good = not isinstance(table, nn.Embedding) or tokens <= table.num_embeddings
    limit = getattr(table, "num_embeddings", None)
    message = f"encoder: the tokenizer of {source!r} has {tokens} tokens, but its model has only {limit} embeddings."
    check(good, message, "tokenizer_mismatch")


def _get_max_positions(network: nn.Module) -> int:
    """Return the maximum number of token positions that a network supports."""
    stated = getattr(network.config, "max_position_embeddings", None) or 0
    counted = [
        # RoBERTa and its relatives number positions from padding_idx + 1.
        table.num_embeddings - table.padding_idx - 1
        for name, table in network.named_modules()
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None
    ]
    return min([stated if stated > 0 else _MIN_UNLIMITED_TOKENS, *counted])


def _read_pooling(source: str, transformers: ModuleType) -> str:
    """Return the pooling mode of a sentence-transformers model (default: mean)."""
    config = _read_json_or_empty_if_none(file := _find_model_file(source, _POOLING_FILE, transformers), dict)
    old_modes = [mode for key, mode in _MODE_BY_OLD_POOLING_KEY.items() if config.get(key)]
    stated = config.get(_POOLING_KEY) or old_modes or ["mean"]
    modes = stated if isinstance(stated, list) else [stated]
    poolings = [_POOLING_BY_STORED_MODE.get(str(mode)) for mode in modes]
    if len(poolings) == 1 and poolings[0] is not None:
        return poolings[0]
    raise UsageError(
        f"encoder: {file} must pool by one of {', '.join(_POOLING_BY_STORED_MODE)}, "
        f"got {' and '.join(map(str, modes))}. "
        f"Name the pooling: {', '.join(f'{source}@{pooling}' for pooling in POOLINGS)}.",
        kind="unsupported_pooling",
    )


def _find_max_tokens(source: str, tokenizer: Any, transformers: ModuleType, is_sentence_model: bool) -> int | None:
    """Return the maximum number of tokens that a model specifies, or None."""
    length = _read_json_or_empty_if_none(_find_model_file(source, _MAX_TOKENS_FILE, transformers), dict).get(
        "max_seq_length"
    )
    if length is None and is_sentence_model:
        length = tokenizer.model_max_length
    return length if isinstance(length, int) and 0 < length < _MIN_UNLIMITED_TOKENS else None


def _read_json_or_empty_if_none(file: Path | None, kind: type[JsonValueT]) -> JsonValueT:
    """Read a dict or list from a JSON file, or return an empty one if there is no file."""
    if file is None:
        return kind()
    try:
        content: JsonValueT = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"encoder: {file} cannot be read: {one_line_reason(error)}", kind="unreadable") from error
    check(isinstance(content, kind), f"encoder: {file} must hold a JSON {kind.__name__}, got {content!r:.80}.", "type")
    return content


@contextmanager
def _silence_transformers(transformers: ModuleType) -> Iterator[None]:
    """Context manager that silences the log and progress bars of transformers."""
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
