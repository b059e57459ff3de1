"""Training step: views, embeddings, loss, and state that is kept across steps."""
