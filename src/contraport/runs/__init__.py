"""Run folders: reading and writing the files of a training."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.runs.run import MetricsRow, Run, load, read_run_file
    from contraport.runs.run_folder import RunFolder, as_different_run_folders, as_run_folder, default_run_path

__all__ = [
    "MetricsRow",
    "Run",
    "RunFolder",
    "as_different_run_folders",
    "as_run_folder",
    "default_run_path",
    "load",
    "read_run_file",
]

_RUN_NAMES = ("MetricsRow", "Run", "load", "read_run_file")
_RUN_FOLDER_NAMES = ("RunFolder", "as_different_run_folders", "as_run_folder", "default_run_path")
"""Names that are imported from `run` and from `run_folder` on first use."""

make_package_lazy(__name__, **dict.fromkeys(_RUN_NAMES, "run"), **dict.fromkeys(_RUN_FOLDER_NAMES, "run_folder"))
