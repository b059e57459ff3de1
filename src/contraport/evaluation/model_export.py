"""Export of a trained model to ONNX, torch.export, TorchScript or safetensors."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from contraport._utils.files import atomic_write, stage_files
from contraport._utils.formatting import format_options, join_names
from contraport._utils.text_bytes import TEXT_SHAPE, is_text_batch
from contraport.encoders import FeatureExtractor, Model, is_user_module_placeholder
from contraport.encoders.model import is_model_folder
from contraport.encoders.transformers_text_encoder import TransformersTextEncoder
from contraport.errors import UsageError, check, check_writable, import_optional, translate_write_errors
from contraport.evaluation.command_options import EXPORT_COMMAND_SPEC, ExportOptions
from contraport.runs import as_run_folder
from contraport.seeding import torch_generator

log = logging.getLogger("contraport.exporting")

MAX_RELATIVE_DIFFERENCE = 1e-5
"""Maximum difference from the model's features, relative to the largest feature or to 1, whichever is larger."""


@EXPORT_COMMAND_SPEC.with_option_parameters
def export(arguments: dict[str, Any]) -> Path:
    """Export a trained model to ONNX, torch.export, TorchScript or safetensors.

    Raises:
        UsageError: a wrong argument, a missing package, a model that cannot be exported or whose features change by
            the export, or a run that is corrupt or not trained to its end; nothing is written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export(Model("mlp", [(4,)]), format="safetensors", out=f"{folder}/model")
    ...     Model.from_pretrained(path).num_features
    256
    """
    options = ExportOptions(**arguments)
    path = Path(options.out)
    implied = _FORMAT_NAME_BY_SUFFIX.get(path.suffix.lower())
    message = f"out: {path} has the suffix of {implied}, not of {options.format}; choose another name or format."
    check(options.format is None or implied in (None, options.format), message, "suffix")
    name = options.format or implied
    if name is None:
        suffixes = join_names(_FORMAT_NAME_BY_SUFFIX, "or")
        message = f"out: must end in {suffixes}, got {path.name!r}; or pass {format_options(format='safetensors')}."
        raise UsageError(message, kind="unknown_suffix")
    format = _FORMAT_BY_NAME[name]
    is_folder = format.atomic_writer is stage_files
    for package in format.packages:
        import_optional(package, "export", f"format: {name}")
    kind = "folder" if is_folder else "file"
    check_writable("out", path)
    check(not path.exists() or path.is_dir() == is_folder, f"out: {path} exists and is not a {kind}.", "type")
    hint = f"pass {format_options(overwrite=True)} to replace it."
    check(options.overwrite or not path.exists(), f"out: {path} exists; {hint}", "exists")
    if is_folder and path.exists() and any(path.iterdir()):
        message = f"out: {path} is not a model of `contraport export`, so it is not replaced. Choose another folder."
        check(is_model_folder(path), message, "not_a_model")
    if isinstance(options.run, Model):
        model = options.run
    else:
        run = as_run_folder(options.run)
        model = run.model(trust_remote_code=options.trust_remote_code)
        if warning := run.outdated_model_warning():
            log.warning("%s", warning)
    model = model if options.view is None else model.to_single_view(options.view)
    model = model if options.dims is None else model.truncate(options.dims)
    has_tokenizer = any(isinstance(encoder, TransformersTextEncoder) for encoder in model.encoders)
    message = f"format: must be safetensors for an encoder with a tokenizer, which {name} cannot contain."
    check(is_folder or not has_tokenizer, message, "tokenizer")
    has_texts = any(model.shapes[view] == TEXT_SHAPE for view in model.representation_views)
    message = "format: must be onnx, torchscript or safetensors for texts; torch.export needs texts of one length."
    check(name != "torch-export" or not has_texts, message, "text")
    _write_verified_model(copy.deepcopy(model).cpu().eval(), path, name)
    return path


def _write_verified_model(model: Model, path: Path, format_name: str) -> None:
    """Write a model file, or raise `UsageError` if the export changes features."""
    format = _FORMAT_BY_NAME[format_name]
    # Warnings: deprecation of TorchScript, and constructs that tracing may miss: the comparison is the real check.
    with (
        translate_write_errors("out", path),
        format.atomic_writer(path) as temporary,
        warnings.catch_warnings(action="ignore"),
        torch.no_grad(),
    ):
        try:
            format.write(model, temporary)
            exported = format.load(temporary, model)
            differences = [_compute_max_relative_difference(model, exported, items) for items in (1, 5)]
        except OSError:  # from the disk
            raise
        except Exception as error:  # exporters raise many kinds of errors on networks that they do not support
            cause: BaseException = error
            while cause.__cause__ is not None:  # outer errors only locate it within the exporter
                cause = cause.__cause__
            reason = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
            message = f"format: the model cannot be exported to {format_name}: {reason}"
            raise UsageError(message, kind="not_exportable") from error
        check(
            max(differences) <= MAX_RELATIVE_DIFFERENCE,
            f"format: {format_name} changes the features of random items by {max(differences):.1e}, more than "
            f"{MAX_RELATIVE_DIFFERENCE}. Does the encoder depend on the batch size, or on random numbers?",
            "changed_features",
        )


def _draw_random_views(model: Model, num_items: int = 3) -> tuple[Tensor, ...]:
    """Draw random inputs with the training data's shape, one tensor for each view."""
    generator, views = torch_generator("export.check", num_items), []
    for view in model.representation_views:
        tower, shape = model.tower(view), model.shapes[view]
        if shape != TEXT_SHAPE:
            views.append(tower.mean + tower.std * torch.randn(num_items, *shape, generator=generator))
            continue
        # Texts of different lengths; the longest is longer in a batch of more items.
        letters = torch.randint(97, 123, (num_items, 30 + num_items), generator=generator)
        letters[torch.rand(letters.shape, generator=generator) < 0.2] = 32
        letters[:, 0] = 97
        ends = letters.shape[1] - torch.arange(num_items)[:, None] * 3
        views.append(torch.where(torch.arange(letters.shape[1]) < ends, letters, 0).byte())
    return tuple(views)


def _compute_max_relative_difference(model: Model, exported: Callable[..., Tensor], num_items: int) -> float:
    """Return the largest relative difference between the features of two models.

    It is relative to the largest feature or to 1, whichever is larger. It is infinite if a difference is NaN.
    """
    views = _draw_random_views(model, num_items)
    expected, actual = FeatureExtractor(model)(*views), exported(*views)
    if actual.shape != expected.shape:
        raise ValueError(f"features have shape {tuple(actual.shape)} in place of {tuple(expected.shape)}")
    difference = float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))
    return difference if difference == difference else float("inf")  # NaN is a difference too


def _write_onnx(model: Model, path: Path) -> None:
    """Write the model as ONNX, for batches and texts of any length."""
    views = _draw_random_views(model)
    batch, letters = torch.export.Dim("batch"), torch.export.Dim("bytes")
    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # warnings of onnxscript about optimizations that it leaves out
    try:
        torch.onnx.export(
            FeatureExtractor(model).eval(),
            views,
            path,
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=[model.view_names[view] for view in model.representation_views],
            output_names=["features"],
            dynamic_shapes=(tuple({0: batch, 1: letters} if is_text_batch(one) else {0: batch} for one in views),),
        )
    finally:
        logging.disable(disabled_level)


def _load_onnx(path: Path, _: Model) -> Callable[..., Tensor]:
    """Load an ONNX file as a function from views to features."""
    onnxruntime = import_optional("onnxruntime", "export", "format: onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def features(*views: Tensor) -> Tensor:
        arrays = {name: view.numpy() for name, view in zip(names, views, strict=True)}
        return torch.from_numpy(session.run(["features"], arrays)[0])

    return features


def _write_torch_export(model: Model, path: Path) -> None:
    """Export the model with `torch.export`, for batches of any size."""
    views, batch = _draw_random_views(model), torch.export.Dim("batch")
    shapes = (tuple({0: batch} for _ in views),)
    program = torch.export.export(FeatureExtractor(model).eval(), views, dynamic_shapes=shapes)
    with path.open("wb") as file:  # torch accepts only paths with its own suffix
        torch.export.save(program, file)


def _load_torch_export(path: Path, _: Model) -> Callable[..., Tensor]:
    """Load a program of torch.export as a module."""
    with path.open("rb") as file:
        return cast(Callable[..., Tensor], torch.export.load(file).module())


def _write_torchscript(model: Model, path: Path) -> None:
    """Trace the model on random items and write it as TorchScript."""
    traced = torch.jit.trace(FeatureExtractor(model).eval(), _draw_random_views(model), check_trace=False)
    with path.open("wb") as file:  # torch rejects a hidden path without a suffix
        torch.jit.save(traced, file)


def _load_safetensors(folder: Path, original: Model) -> Callable[..., Tensor]:
    """Load a model folder as a function from views to features."""
    # Named code was run by this process before, so it is trusted; unnamed modules are taken from the original model.
    names = original.config["encoder"]
    encoders = [
        original.tower(view).encoder if is_user_module_placeholder(name) else name for view, name in enumerate(names)
    ]
    has_modules = any(map(is_user_module_placeholder, names))
    return FeatureExtractor(
        Model.from_pretrained(folder, trust_remote_code=True, encoder=encoders if has_modules else None)
    )


class _ExportFormat(NamedTuple):
    """File format of an exported model.

    Attributes:
        write: writes a model to a path.
        load: loads the file again as a function; the second argument is the original model.
        atomic_writer: context manager that yields a temporary path and moves it into place at the end.
        packages: packages that the format requires.
    """

    write: Callable[[Model, Path], object]
    load: Callable[[Path, Model], Callable[..., Tensor]]
    atomic_writer: Callable[[Path], AbstractContextManager[Path]]
    packages: Sequence[str] = ()


_FORMAT_BY_NAME = {
    "onnx": _ExportFormat(_write_onnx, _load_onnx, atomic_write, ("onnx", "onnxscript", "onnxruntime")),
    "torch-export": _ExportFormat(_write_torch_export, _load_torch_export, atomic_write),
    "torchscript": _ExportFormat(
        _write_torchscript, lambda path, _: torch.jit.load(str(path), map_location="cpu"), atomic_write
    ),
    "safetensors": _ExportFormat(lambda model, folder: model.save_pretrained(folder), _load_safetensors, stage_files),
}

_FORMAT_NAME_BY_SUFFIX = {".onnx": "onnx", ".pt2": "torch-export", ".pt": "torchscript"}
"""Name of the format that the suffix of a file implies."""
