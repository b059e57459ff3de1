"""The table of verbs: where the function of each is, and how its result is shown."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from contraport.errors import needing


class Verb(NamedTuple):
    """A row of the table.

    Attributes:
        module: where the function is; imported only when the verb is used.
        function: its name.
        summary: what it does, in a few words.
        examples: command lines to start from.
        show: what is printed of its result.
        resolve: where the function is that says what follows from what is given, if some does.
        word: the name of the one word that is all it takes, if so: then it needs no parser, which an extra brings.
    """

    module: str
    function: str
    summary: str
    examples: tuple[str, ...]
    show: Callable[[Any], None]
    resolve: tuple[str, str] | None = None
    word: str | None = None


def run_verb(name: str, argv: list[str]) -> None:
    """Call the function of a verb with the arguments of a command line, and show its result.

    Raises:
        UsageError: an argument that the verb does not know, or of the wrong type, or a package that is missing.
    """
    verb = VERBS[name]
    with needing("train,report", name):
        function = getattr(import_module(verb.module), verb.function)
        if verb.word and len(argv) == 1 and not argv[0].startswith("-"):
            arguments: dict[str, Any] | None = {verb.word: argv[0]}
        else:
            # Here, not above: `contraport --help` is quick, and needs none of the extras.
            from contraport.cli.parsing import parse

            resolve = getattr(import_module(verb.resolve[0]), verb.resolve[1]) if verb.resolve else None
            arguments = parse(function, argv, prog=f"contraport {name}", examples=verb.examples, resolve=resolve)
    if arguments is not None:
        with needing("train,report", name):
            result = function(**arguments)
        verb.show(result)


def _nothing(result: object) -> None:
    """The function has said all itself."""


def _evaluation(result: dict[str, Any]) -> None:
    from contraport.cli.tables import print_table, result_rows

    print_table(f"{result['data']}: frozen features of held-out items", result_rows(result))
    for note in result["notes"]:
        print(note)


VERBS = {
    "train": Verb(
        "contraport.training",
        "train",
        "Train an encoder without labels.",
        (
            "contraport train --data digits --epochs 20",
            "contraport train --data digits --recipe moco --queue_size 1024 --momentum 0.99:1:cosine",
            "contraport train --recipe swav --data photos/ --views 2+6 --encoder resnet18 --cache_chunk 128",
            "contraport train --recipe cmc --data photos/ --views colour --encoder resnet18",
            "contraport train --data photos/ --objective gca-uot --encoder resnet18 --batch_size 512 --out runs/photos",
            "contraport train --data digits --objective iot --objective_settings.iterations 3 --temperature 0.5:0.1",
            "contraport train --data digits --recipe byol --print_config > mine.yaml",
            "contraport train --config mine.yaml --seed 1 --out runs/mine",
            "contraport train --resume --out runs/photos",
        ),
        _nothing,
        resolve=("contraport.training.recipes", "resolve"),
    ),
    "evaluate": Verb(
        "contraport.evaluation",
        "evaluate",
        "Measure a trained encoder on held-out items.",
        ("contraport evaluate runs/photos",),
        _evaluation,
    ),
    "embed": Verb(
        "contraport.evaluation",
        "embed",
        "Write the features of some data to a file.",
        (
            "contraport embed runs/photos --data photos/ --out photos.parquet",
            "torchrun --nproc_per_node 4 -m contraport embed runs/photos --out photos.parquet",
        ),
        print,
    ),
    "export": Verb(
        "contraport.exporting",
        "export",
        "Write a trained encoder for other programs: ONNX, TorchScript, safetensors.",
        (
            "contraport export runs/photos --out photos.onnx",
            "contraport export runs/photos --format torchscript --out photos.pt",
            "contraport export runs/photos --format safetensors --out photos-model",
        ),
        print,
    ),
    "report": Verb(
        "contraport.reporting",
        "report",
        "Show one run or several on one HTML page.",
        ("contraport report runs/a runs/b --out comparison.html",),
        print,
    ),
    "list": Verb(
        "contraport.cli.listing",
        "list_names",
        "List the recipes, objectives, encoders or data that have names.",
        ("contraport list recipes", "contraport list objectives"),
        _nothing,
        word="what",
    ),
    "demo": Verb(
        "contraport.cli.demo",
        "demo",
        "Train two encoders on small digits and compare them, in about two minutes.",
        ("contraport demo",),
        _nothing,
    ),
}
