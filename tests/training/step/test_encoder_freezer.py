"""What is held is held whatever is put in its place."""

from torch import nn

from contraport.training.step.step_networks import EncoderFreezer


def test_a_batch_norm_that_was_put_in_the_place_of_one_is_held_too() -> None:
    """As several processes on GPUs do, once all is components."""
    encoder = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    freezing = EncoderFreezer([], None, adapted=[encoder])
    assert not encoder[1].training
    encoder[1] = nn.SyncBatchNorm(3)
    freezing.apply(0)
    assert not encoder[1].training
    assert encoder[0].training
