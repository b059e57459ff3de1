"""Wrong pairs: find, count and leave out the mismatched among halves of digits, a fifth of which were shuffled.

    python examples/dirty_pairs.py

On the command line: contraport audit --data pairs.npz --out audits/pairs
"""

import numpy as np
from sklearn.datasets import load_digits

import contraport

WRONG, EPOCHS = 0.2, 18

rng = np.random.default_rng(0)
images = load_digits().images.astype(np.float32) / 16
upper, lower = images[:, :4].reshape(-1, 32), images[:, 4:].reshape(-1, 32)
wrong = rng.choice(len(images), int(WRONG * len(images)), replace=False)
lower[wrong] = lower[np.roll(wrong, 1)]

result = contraport.audit(data=(upper, lower), epochs=EPOCHS, progress=False)
flagged = result.flagged()
low, high = result.noise_interval
print(f"{len(wrong)} of {len(images)} pairs are wrong, {WRONG:.0%}")
print(f"estimated: {result.noise_rate:.1%}, interval {low:.1%} to {high:.1%}")
print(f"flagged: {len(flagged)}, of which {np.isin(flagged, wrong).mean():.0%} are wrong")
