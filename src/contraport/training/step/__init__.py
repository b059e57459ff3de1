"""Training step: views, embeddings, loss, and state across steps."""
