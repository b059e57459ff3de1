"""The loss in a custom training loop, in one process or several, with torch and numpy alone.

    python examples/own_loop.py
    torchrun --nproc_per_node 2 examples/own_loop.py

Each process brings its part of a batch, the plan is that of the whole batch, and so is the gradient.
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import contraport

BATCH, STEPS = 256, 300


def augment(images: Tensor) -> Tensor:
    """Augment images (b, 1, 8, 8): random shift, rotation, stretch, brightness and noise."""
    maps = torch.eye(2, 3) + 0.25 * torch.randn(len(images), 2, 3)
    grid = nn.functional.affine_grid(maps, list(images.shape), align_corners=False)
    moved = nn.functional.grid_sample(images, grid, align_corners=False)
    return moved * (0.6 + 0.8 * torch.rand(len(images), 1, 1, 1)) + 0.1 * torch.randn(images.shape)


@torch.no_grad()
def nearest_centroid_accuracy(encoder: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy of a classification by the most similar class mean."""
    features = nn.functional.normalize(encoder(images))
    centres = torch.stack([features[labels == label].mean(0) for label in labels.unique()])
    return float(((features @ nn.functional.normalize(centres).T).argmax(1) == labels).float().mean())


rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if processes > 1:
    dist.init_process_group("gloo")
images = torch.from_numpy(load_digits().images).float()[:, None] / 16
labels = torch.from_numpy(load_digits().target)
torch.manual_seed(0)
encoder = nn.Sequential(
    nn.Conv2d(1, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128)
)
projector = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
network = nn.Sequential(encoder, projector)
loss = contraport.gca_uot(temperature=0.2)  # any of contraport.list_objectives(), or parts of your own
before = nearest_centroid_accuracy(encoder, images, labels)
trained = network if processes == 1 else DistributedDataParallel(network)
optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
for _ in range(STEPS):
    items = torch.randperm(len(images))[:BATCH].chunk(processes)[rank]  # equal seeds: all draw the same batch
    z0, z1 = trained(torch.cat([augment(images[items]), augment(images[items])])).chunk(2)
    optimizer.zero_grad()
    loss(z0, z1).backward()
    optimizer.step()
if rank == 0:
    after = nearest_centroid_accuracy(encoder, images, labels)
    print(f"nearest class mean is the own: {before:.1%} untrained, {after:.1%} after {STEPS} steps")
if processes > 1:
    dist.destroy_process_group()
