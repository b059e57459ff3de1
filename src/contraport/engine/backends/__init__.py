"""The backends: how the passes over all pairs are carried out, and which of them a geometry gets."""
