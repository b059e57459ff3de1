import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from contraport.data.views.image_views import resample_affine

sides = st.integers(1, 12)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(1, 5), st.tuples(sides, sides), st.tuples(sides, sides), st.integers(0, 99))
def test_resampling_equals_affine_grid_of_torch(items, channels, size, new_size, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(items, channels, *size, generator=generator)
    maps = torch.randn(items, 2, 3, generator=generator)
    grid = F.affine_grid(maps, [items, channels, *new_size], align_corners=False)
    expected = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    assert torch.allclose(resample_affine(images, maps, new_size), expected, atol=1e-4)


def test_the_identity_leaves_an_image_as_it_is():
    images = torch.rand(2, 3, 9, 11)
    identity = torch.eye(2, 3).expand(2, 2, 3)
    assert torch.allclose(resample_affine(images, identity, (9, 11)), images, atol=1e-5)
