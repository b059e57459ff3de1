"""Time and memory of the loss of sets of vectors, beside dense PyTorch, PyLate and sentence-transformers, in one run.

Each case is a process of its own with one thread: cross-entropy of 128 queries of 32 vectors against 128 documents of
256 vectors, forward and backward. Memory is the peak of all tensors beyond the embeddings and their gradients, which
every loss has. Values and gradients are compared with dense PyTorch in double precision. The losses of the peers get
the embeddings from a model that returns them. Their cached losses compute the gradient of 8 queries at a time and embed
twice, which is free here. PyLate 1.6 requires an older sentence-transformers than the one measured, so it is installed
without its dependencies (`pip install --no-deps pylate fast-plaid fastkmeans ninja ujson`).

    python -m benchmarks.late_interaction [--pairs 128] [--out benchmarks/results/late_interaction.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.engine import machine
from contraport import LateInteraction

QUERY_VECTORS, DOCUMENT_VECTORS, DIMENSIONS, TEMPERATURE = 32, 256, 128, 0.05


def dense(x: Tensor, y: Tensor, tau: float, iterations: int) -> Tensor:
    """Return the similarities from the tensor of all pairs of vectors; tau 0 is the maximum."""
    cosines = torch.einsum("ntd,msd->nmts", F.normalize(x, dim=2), F.normalize(y, dim=2))
    if tau == 0:
        return cosines.max(3).values.mean(2)
    s = (cosines - 1) / tau
    rows, columns = torch.tensor([s.shape[2], s.shape[3]], dtype=s.dtype).log()
    g = torch.zeros_like(s[:, :, :1])
    f = columns - s.logsumexp(3, keepdim=True)
    for _ in range(iterations):
        g = rows - (s + f).logsumexp(2, keepdim=True)
        f = columns - (s + g).logsumexp(3, keepdim=True)
    return 1 - tau * (f.mean((2, 3)) + g.mean((2, 3)))


Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(similarities: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Return the loss in which each row looks for its own column."""
    return lambda x, y: F.cross_entropy(similarities(x, y) / TEMPERATURE, torch.arange(len(x)))


def ours(matching: str, iterations: int = 5) -> Loss:
    return cross_entropy(LateInteraction(matching, token_temperature=TEMPERATURE, iterations=iterations).similarities)


class TokenModel(nn.Module):
    """Model of PyLate or sentence-transformers whose input has the embeddings of its tokens."""

    skiplist = ()  # of PyLate: no token is left out, and padding of queries is masked
    do_query_expansion = False

    def forward(self, features: dict[str, Tensor], task: str | None = None) -> dict[str, Tensor]:
        return features | {"token_embeddings": F.normalize(features["token_embeddings"], dim=2)}


def inputs_of(*views: Tensor) -> list[dict[str, Tensor]]:
    """Return the input of `TokenModel` for each view; all vectors are tokens, and none is padding."""
    ids = [torch.ones(z.shape[:2], dtype=torch.long) for z in views]
    return [{"token_embeddings": z, "input_ids": one, "attention_mask": one} for z, one in zip(views, ids, strict=True)]


def pylate(name: str, **options: Any) -> Loss:
    """Return a loss of PyLate. Its similarity is a sum over the vectors of a query, so its temperature is larger."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        from pylate import losses

        loss = getattr(losses, name)(TokenModel(), temperature=TEMPERATURE * QUERY_VECTORS, **options)
        value: Tensor = loss(inputs_of(x, y))
        return value

    return loss


def sentence_transformers(name: str, **options: Any) -> Loss:
    """Return a loss of sentence-transformers of multi-vector models, with the mean over the vectors of a query."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        from sentence_transformers.multi_vector_encoder import losses, scoring

        scores = scoring.mean_colbert_scores
        loss = getattr(losses, name)(TokenModel(), scale=1 / TEMPERATURE, similarity_fct=scores, **options)
        value: Tensor = loss(inputs_of(x, y))
        return value

    return loss


CACHED = {"mini_batch_size": 8, "score_mini_batch_size": 8}

CASES: dict[str, Loss] = {
    "max": ours("max"),
    "max, dense": cross_entropy(lambda x, y: dense(x, y, 0, 0)),
    "max, PyLate": pylate("Contrastive"),
    "max, PyLate, cached": pylate("CachedContrastive", **CACHED),
    "max, sentence-transformers": sentence_transformers("MultiVectorMultipleNegativesRankingLoss"),
    "max, sentence-transformers, cached": sentence_transformers(
        "CachedMultiVectorMultipleNegativesRankingLoss", **CACHED
    ),
    "soft": ours("soft"),
    "soft, dense": cross_entropy(lambda x, y: dense(x, y, TEMPERATURE, 0)),
    "transport, 2 iterations": ours("transport", 2),
}

DENSE: dict[str, tuple[float, int]] = {
    "max": (0.0, 0),
    "soft": (TEMPERATURE, 0),
    "transport": (TEMPERATURE, 2),
}
"""Temperature and iterations of the dense reference of each matching."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/late_interaction.json"))
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(measure(options.case, options.pairs)))
        return
    rows = []
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.late_interaction", "--pairs", str(options.pairs), "--case", case]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{case}: not measured, exit status {done.returncode}\n{done.stderr[-300:]}")
            continue
        rows.append({"case": case, **json.loads(done.stdout.splitlines()[-1])})
        print(rows[-1], flush=True)
    print_table(rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    peers = {name: version_of(name) for name in ("pylate", "sentence-transformers")}
    results = {"machine": machine(), "peers": peers, "pairs": options.pairs, "rows": rows}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {options.out}")


def version_of(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def measure(case: str, pairs: int) -> dict[str, float]:
    torch.set_num_threads(1)
    loss = CASES[case]
    _, error = value_and_error(case)
    x, y = embeddings(pairs, torch.float32)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step(loss, x, y)
    peak = peak_of(profile) - 4 * (x.numel() + y.numel())
    start = time.process_time()
    step(loss, x, y)
    seconds = time.process_time() - start
    return {"seconds": seconds, "mebibytes": peak / (1 << 20), "gradient_error": error}


def value_and_error(case: str) -> tuple[float, float]:
    """Return the loss of a few pairs, and the largest error of its gradient, relative to its largest entry."""
    x, y = embeddings(6, torch.float32)
    value, *gradients = step(CASES[case], x, y)
    settings = DENSE[case.split(",")[0]]
    doubles = (z.detach().double().requires_grad_() for z in (x, y))
    _, *expected = step(cross_entropy(lambda x, y: dense(x, y, *settings)), *doubles)
    errors = ((a - b).abs().max() / b.abs().max() for a, b in zip(gradients, expected, strict=True))
    return float(value), float(max(errors))


def embeddings(pairs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(pairs, QUERY_VECTORS, DIMENSIONS, generator=generator)
    y = torch.randn(pairs, DOCUMENT_VECTORS, DIMENSIONS, generator=generator)
    return x.to(dtype).requires_grad_(), y.to(dtype).requires_grad_()


def step(loss: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return the value of a loss and its gradients in the embeddings."""
    x.grad = y.grad = None
    value = loss(x, y)
    value.backward()  # the cached losses of the peers reach the embeddings by a hook of `backward` alone
    assert x.grad is not None
    assert y.grad is not None
    return value.detach(), x.grad, y.grad


def peak_of(profile: Any) -> int:
    """Return the largest number of bytes of tensors that were alive together while a profile was taken."""
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def print_table(rows: list[dict[str, str | float]]) -> None:
    table = Table(title="Loss of sets of vectors, forward and backward, on one thread")
    for heading in ("case", "CPU seconds", "MiB", "gradient error"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        cells = f"{row['seconds']:.2f}", f"{row['mebibytes']:.0f}", f"{row['gradient_error']:.0e}"
        table.add_row(str(row["case"]), *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
