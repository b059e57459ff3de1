"""Internal helpers: files, locks, formatting, lazy imports, texts as tensors."""
