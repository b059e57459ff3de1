"""Adapter to open_clip: values and gradients of losses, and an epoch of the training of open_clip."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import contraport
from contraport.integrations import ClipLoss, create_loss
from tests.errors import raises_usage_error
from tests.objectives.comparing import assert_same, outcome, views


def open_clip():
    return pytest.importorskip("open_clip", reason="open_clip is not installed")


def model():
    """Return a CLIP of a few thousand parameters."""
    torch.manual_seed(0)
    clip = open_clip().model
    vision = clip.CLIPVisionCfg(layers=1, width=16, head_width=8, image_size=8, patch_size=4)
    text = clip.CLIPTextCfg(context_length=6, vocab_size=20, width=16, heads=2, layers=1)
    return clip.CLIP(8, vision, text, output_dict=True)


def batches(number, size=6):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, 8, 8, generator=generator), torch.randint(1, 20, (size, 6), generator=generator))
        for _ in range(number)
    ]


def gradients(loss, network):
    (images, texts), *_ = batches(1)
    network.zero_grad()
    features = network(images, texts)
    value = loss(**features)
    value.backward()
    return value.detach(), [p.grad for p in network.parameters()]


def test_clip_loss_matches_open_clip():
    network = model()
    reference, loss = open_clip().loss.ClipLoss(), ClipLoss()
    for result, expected in zip(gradients(loss, network)[1], gradients(reference, network)[1], strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-5)
    assert network.logit_scale.grad is not None
    z = [F.normalize(view) for view in views()]
    scale = torch.tensor(7.0, dtype=torch.float64)
    reference = outcome(lambda *z: open_clip().loss.ClipLoss()(*map(F.normalize, z[:2]), z[2]), *z, scale)
    assert_same(outcome(loss, *z, scale), reference)
    assert loss(*z, scale, output_dict=True).keys() == {"contrastive_loss"}


def test_siglip_loss_matches_open_clip():
    z, scale, bias = [F.normalize(view) for view in views()], torch.tensor(7.0).double(), torch.tensor(-3.0).double()
    reference = open_clip().loss.SigLipLoss()
    expected = outcome(lambda *z: reference(*map(F.normalize, z[:2]), *z[2:]), *z, scale, bias)
    assert_same(outcome(create_loss(Namespace(siglip=True)), *z, scale, bias), expected)


def test_create_loss_from_arguments():
    args = Namespace(distill=False, model="ViT-B-32", siglip=False)
    assert repr(create_loss(args).objective) == repr(contraport.info_nce())
    balanced = contraport.gca_ince()
    assert create_loss(args, balanced).objective is balanced
    with raises_usage_error("distill.invalid"):
        create_loss(Namespace(distill=True))
    with raises_usage_error("model.invalid", "coca_ViT-B-32"):
        create_loss(Namespace(distill=False, model="coca_ViT-B-32"))
    with raises_usage_error("logit_bias.conflict"):
        ClipLoss()(*views(), 1.0, torch.tensor(1.0))


@pytest.mark.parametrize("grad_accum_steps", [1, 2])
def test_trains_one_epoch_in_open_clip(grad_accum_steps):
    """The steps are equal with the losses of both libraries."""
    train = pytest.importorskip("open_clip_train.train", reason="open_clip's training is not installed")

    def train_one_epoch(loss):
        network = model()
        loader = Batches(batches(4))
        data = {"train": SimpleNamespace(dataloader=loader, set_epoch=lambda epoch: None)}
        args = Namespace(
            device="cpu", precision="fp32", accum_freq=grad_accum_steps, distill=False, skip_scheduler=True,
            horovod=False,
            grad_clip_norm=None, rank=0, local_rank=0, log_local=False, log_every_n_steps=1, world_size=1, batch_size=6,
            save_logs=False, wandb=False, distributed=False,
        )  # fmt: skip
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        train.train_one_epoch(network, data, loss, 0, optimizer, None, None, None, args)
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    torch.testing.assert_close(
        train_one_epoch(ClipLoss()), train_one_epoch(open_clip().loss.ClipLoss()), rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(train_one_epoch(ClipLoss(contraport.gca_uot())), train_one_epoch(ClipLoss()))


class Batches(list):
    """Batches with the attributes of a data loader of open_clip."""

    @property
    def num_batches(self):
        return len(self)

    @property
    def num_samples(self):
        return 6 * len(self)
