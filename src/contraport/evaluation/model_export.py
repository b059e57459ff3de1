"""`export`: a trained model as one file, or one folder, for programs that know nothing of contraport."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contraport._utils.files import atomic_write, atomic_write_folder
from contraport._utils.formatting import format_options
from contraport._utils.text_tensors import is_text_batch, is_text_shape
from contraport.encoders import FeatureExtractor, Model, is_module_description
from contraport.encoders.text_transformer import TextTransformer
from contraport.errors import UsageError, check, import_optional, report_write_errors
from contraport.evaluation.config import EXPORT, ExportOptions
from contraport.runs import Run
from contraport.seeding import torch_generator

log = logging.getLogger("contraport.exporting")

TOLERANCE = 1e-5
"""Largest difference to the model's features, as a share of the largest feature, or of 1 if that is more."""

TRACED_ITEMS = 3
CHECKED_ITEMS = (1, 5)
LETTERS = 30

_Call = Callable[..., Tensor]
"""A model that was read again: from the views of its representation to features."""


@EXPORT.with_signature
def export(given: dict[str, Any]) -> Path:
    """Write a trained model for programs of another kind, and return the path.

    Raises:
        UsageError: a wrong argument, a package that is missing, a model that cannot be exported or whose features
            change by it, or a run that is corrupt or not trained to its end; nothing was written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export(Model("mlp", [(4,)]), format="safetensors", out=f"{folder}/model")
    ...     Model.from_pretrained(path).num_features
    256
    """
    asked = ExportOptions(**given)
    path = Path(asked.out)
    format = _format_of(path, asked.format)
    chosen = _FORMATS[format]
    for package in chosen.packages:
        import_optional(package, "export", f"format: {format}")
    _check_out(path, chosen, asked.overwrite)
    trained = asked.run if isinstance(asked.run, Model) else _model(asked.run, asked.trust)
    chosen_view = trained if asked.view is None else trained.of_view(asked.view)
    tokenized = any(isinstance(encoder, TextTransformer) for encoder in chosen_view.encoders)
    check(
        chosen.is_folder or not tokenized,
        f"format: the encoder has a tokenizer, which is part of no network; expected safetensors, got {format}.",
    )
    texts = any(is_text_shape(chosen_view.shapes[view]) for view in chosen_view.represented)
    check(
        format != "torch-export" or not texts,
        "format: torch.export finds no form for texts of any length; expected onnx, torchscript or safetensors, got "
        "torch-export.",
    )
    model = copy.deepcopy(chosen_view).cpu().eval()
    with (
        report_write_errors("out", path),
        chosen.atomic_write(path) as temporary,
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        # That TorchScript is on its way out, and what tracing might miss: the check below is what tells.
        warnings.simplefilter("ignore")
        try:
            chosen.write(model, temporary)
            again = chosen.read(temporary, model)
            differences = [_difference(model, again, items) for items in CHECKED_ITEMS]
        except OSError:  # of the disk
            raise
        except Exception as error:  # exporters raise whatever they like of a network that they cannot follow
            raise UsageError(f"format: the model cannot be exported to {format}: {_first_line(error)}") from error
        check(
            max(differences) <= TOLERANCE,
            f"format: exported to {format}, the features of random items change by {max(differences):.1e}; expected at "
            f"most {TOLERANCE}. Does the encoder depend on the size of the batch, or on chance?",
        )
    return path


def _model(run: str | Path | Run, trust: bool) -> Model:
    run = run if isinstance(run, Run) else Run(run)
    model = run.model(trust=trust)
    if caveat := run.caveat():
        log.warning("%s", caveat)
    return model


def _items(model: Model, items: int) -> tuple[Tensor, ...]:
    """Return random items as far from one another as the model's data are, by the views of the representation."""
    generator = torch_generator("export.check", items)

    def of_view(view: int) -> Tensor:
        tower, shape = model.tower(view), model.shapes[view]
        if is_text_shape(shape):
            return _texts(items, generator)
        return tower.mean + tower.std * torch.randn(items, *shape, generator=generator)

    return tuple(map(of_view, model.represented))


def _texts(items: int, generator: torch.Generator) -> Tensor:
    """Return random texts of different lengths, the longest the longer, the more there are."""
    letters = torch.randint(97, 123, (items, LETTERS + items), generator=generator)
    letters[torch.rand(letters.shape, generator=generator) < 0.2] = 32
    letters[:, 0] = 97
    ends = letters.shape[1] - torch.arange(items)[:, None] * 3
    return torch.where(torch.arange(letters.shape[1]) < ends, letters, 0).byte()


def _difference(model: Model, again: _Call, items: int) -> float:
    views = _items(model, items)
    expected = FeatureExtractor(model)(*views)
    got = again(*views)
    check(got.shape == expected.shape, f"expected features of shape {tuple(expected.shape)}, got {tuple(got.shape)}.")
    difference = float((got - expected).abs().max() / expected.abs().max().clamp(min=1))
    return difference if difference == difference else float("inf")


def _write_onnx(model: Model, path: Path) -> None:
    views = _items(model, TRACED_ITEMS)
    batch, letters = torch.export.Dim("batch"), torch.export.Dim("bytes")
    torch.onnx.export(
        FeatureExtractor(model).eval(),
        views,
        path,
        dynamo=True,
        external_data=False,
        verbose=False,
        input_names=[model.view_names[view] for view in model.represented],
        output_names=["features"],
        dynamic_shapes=(tuple({0: batch, 1: letters} if is_text_batch(one) else {0: batch} for one in views),),
    )


def _read_onnx(path: Path, _: Model) -> _Call:
    onnxruntime = import_optional("onnxruntime", "export", "format: onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def features(*views: Tensor) -> Tensor:
        arrays = {name: view.numpy() for name, view in zip(names, views, strict=True)}
        return torch.from_numpy(session.run(["features"], arrays)[0])

    return features


def _write_torch_export(model: Model, path: Path) -> None:
    views, batch = _items(model, TRACED_ITEMS), torch.export.Dim("batch")
    shapes = (tuple({0: batch} for _ in views),)
    program = torch.export.export(FeatureExtractor(model).eval(), views, dynamic_shapes=shapes)
    with path.open("wb") as file:  # given a path, torch takes none but of its own suffix
        torch.export.save(program, file)


def _read_torch_export(path: Path, _: Model) -> _Call:
    with path.open("rb") as file:
        loaded: _Call = torch.export.load(file).module()
    return loaded


def _write_torchscript(model: Model, path: Path) -> None:
    traced = torch.jit.trace(FeatureExtractor(model).eval(), _items(model, TRACED_ITEMS), check_trace=False)
    with path.open("wb") as file:  # given a path, torch takes no hidden name without a suffix
        torch.jit.save(traced, file)


def _read_torchscript(path: Path, _: Model) -> _Call:
    loaded: _Call = torch.jit.load(str(path), map_location="cpu")
    return loaded


def _write_safetensors(model: Model, folder: Path) -> None:
    model.save_pretrained(folder)


def _read_safetensors(folder: Path, model: Model) -> _Call:
    # What it names, this process has run; what it only describes, this process has.
    names = model.config["encoder"]
    encoders = [model.tower(view).encoder if is_module_description(name) else name for view, name in enumerate(names)]
    own = any(map(is_module_description, names))
    return FeatureExtractor(Model.from_pretrained(folder, trust=True, encoder=encoders if own else None))


class _Format(NamedTuple):
    write: Callable[[Model, Path], None]
    read: Callable[[Path, Model], _Call]
    atomic_write: Callable[[Path], AbstractContextManager[Path]]
    is_folder: bool
    packages: Sequence[str]


_FORMATS = {
    "onnx": _Format(_write_onnx, _read_onnx, atomic_write, False, ("onnx", "onnxscript", "onnxruntime")),
    "torch-export": _Format(_write_torch_export, _read_torch_export, atomic_write, False, ()),
    "torchscript": _Format(_write_torchscript, _read_torchscript, atomic_write, False, ()),
    "safetensors": _Format(_write_safetensors, _read_safetensors, atomic_write_folder, True, ()),
}


_BY_SUFFIX = {".onnx": "onnx", ".pt2": "torch-export", ".pt": "torchscript"}


def _format_of(path: Path, given: str | None) -> str:
    """Return the format that is asked for, or that which a path is named by."""
    named = _BY_SUFFIX.get(path.suffix.lower())
    told = f"out: {path} is named as a file of {named}; expected another name for {given}, or --format {named}."
    check(given is None or named in (None, given), told)
    return given or named or "onnx"


def _check_out(path: Path, chosen: _Format, overwrite: bool) -> None:
    kind = "folder" if chosen.is_folder else "file"
    check(path.absolute().parent.is_dir(), f"out: the folder {path.parent} does not exist.")
    check(not path.exists() or path.is_dir() == chosen.is_folder, f"out: {path} exists and is no {kind}.")
    check(overwrite or not path.exists(), f"out: {path} exists; pass {format_options(overwrite=True)} to replace it.")


def _first_line(error: BaseException) -> str:
    """Return what the error at the bottom of all says: those above it tell only where the exporter was."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
