"""What `contraport export` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contraport.options import known, one_of, option
from contraport.verbs import EXTRA, USE, Verb
from contraport.verbs._of_run import VIEW, Run, Trusting, is_run

if TYPE_CHECKING:
    from contraport.encoders import Model
else:
    Model = Any


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Trusting):
    """What `contraport.export` is asked; see there for each."""

    run: str | Path | Run | Model = field(
        kw_only=False, metadata=known("the run folder, or from Python a model.", exists=is_run)
    )
    format: Literal["onnx", "torch-export", "torchscript", "safetensors"] | None = option(
        None,
        "onnx, torch-export, torchscript or safetensors; default: by how the name of `out` ends, .onnx, .pt2 for "
        "torch-export or .pt for torchscript, otherwise onnx.",
        check=one_of("onnx", "torch-export", "torchscript", "safetensors"),
    )
    out: str | Path = field(metadata=known("the file to write, or for safetensors the folder."))
    view: str | int | None = option(None, VIEW)
    overwrite: bool = option(False, "replace `out` where it exists.")


VERB = Verb(
    ExportOptions,
    "contraport.evaluation.exporting:export",
    "Write a trained encoder for other programs: ONNX, torch.export, safetensors.",
    about="""
        All formats take raw items, which are standardised inside, in batches of any size, and give the
        representation. What was written is read again and must give the same features, to 1e-5, on random items in
        batches of other sizes.

        - onnx: one file for ONNX Runtime and the like, with an input for each view that the representation is made of,
          by its name (`view0`, `view1` and so on where it has none), and an output `features` `(b, num_features)`.
        - torch-export: one file for `torch.export.load`, from Python with torch alone; its module is called with the
          same views in order.
        - torchscript: one file for `torch.jit.load`, from Python or C++, called in the same way; newer versions of
          torch warn that they will drop it.
        - safetensors: a folder with `config.json` and `model.safetensors`, the projector too, which
          `contraport.encoders.Model.from_pretrained` and the Hugging Face hub read; nothing in it is ever unpickled.

        The views of the first three are float32: images `(b, C, H, W)` in [0, 1], vectors `(b, d)`, time series
        `(b, C, T)`.
    """,
    examples=(
        "contraport export runs/photos --out photos.onnx",
        "contraport export runs/photos --out photos.pt2",
        "contraport export runs/captioned --view image --out images.onnx",
        "contraport export runs/photos --format safetensors --out photos-model",
    ),
    show="builtins:print",
    extra=EXTRA,
    group=USE,
    page="export",
)
