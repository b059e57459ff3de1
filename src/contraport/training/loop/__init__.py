"""The loop around the steps: what Lightning is told, and what happens before, between and after them."""
