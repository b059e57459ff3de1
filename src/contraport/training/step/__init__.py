"""Training step with views, embeddings, loss, and state across steps."""
