import sys
import textwrap

import pytest
import torch
from torch import nn

from contraport.encoders import Decoder, Projector, build
from contraport.errors import UsageError


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (13, 64, 64), (3, 33, 20), (3, 224, 224), (1, 2, 2)]
)
def test_small_cnn_takes_images_of_any_size(shape):
    encoder = build("small-cnn", shape)
    assert encoder(torch.rand(3, *shape)).shape == (3, encoder.num_features)


def test_small_cnn_keeps_the_resolution_of_tiny_images_at_first():
    sides = []
    encoder = build("small-cnn", (1, 8, 8))
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, output: sides.append(output.shape[-1]))
    encoder(torch.rand(2, 1, 8, 8))
    assert sides[:2] == [8, 8]
    assert min(sides) == 4


def test_gradients_are_the_directions_of_edges():
    image = torch.zeros(1, 1, 28, 28)
    image[..., 14:] = 1  # one upright edge, so gradients that point across
    encoder = build("gradients", (1, 28, 28))
    blocks = encoder(image).view(4, 9, 6, 6)
    assert blocks[:, 1:].abs().max() < 1e-6
    beside = blocks[:, 0].amax(dim=(0, 1))
    assert beside[2:4].min() > 0.4
    assert beside[[0, 1, 4, 5]].max() < 1e-6
    level = encoder(image.transpose(2, 3)).view(4, 9, 6, 6)  # half a turn: between the two directions in the middle
    assert torch.allclose(level[:, 4], level[:, 5], atol=1e-5)
    assert level[:, [0, 1, 2, 3, 6, 7, 8]].abs().max() < 1e-5
    assert level[:, 4].amax(dim=(0, 2))[2:4].min() > 0.3


def test_gradients_count_neither_sign_nor_light():
    image = torch.rand(2, 4, 40, 31)
    encoder = build("gradients", (4, 40, 31))
    assert torch.allclose(encoder(image), encoder(2 - image), atol=1e-4)
    assert torch.allclose(encoder(image), encoder(0.5 * image + 0.1), atol=2e-3)
    assert encoder(torch.ones(2, 4, 5, 4)).abs().max() == 0
    assert encoder(torch.rand(2, 4, 64, 17)).shape == (2, encoder.num_features)
    assert not list(encoder.parameters())
    assert not encoder.state_dict()


def test_the_gradient_of_a_pixel_is_that_of_its_steepest_channel():
    image = torch.rand(1, 1, 14, 14)
    flat = torch.cat([image, 0.01 * torch.rand(1, 1, 14, 14)], dim=1)
    alone, among = build("gradients", (1, 14, 14))(image), build("gradients", (2, 14, 14))(flat)
    assert torch.nn.functional.cosine_similarity(alone, among).min() > 0.99


def test_gradients_of_colours_know_the_hue_of_each_part():
    encoder = build("gradients", (3, 28, 28))
    grey = torch.rand(1, 1, 28, 28)
    of_grey, alone = encoder(grey.expand(1, 3, 28, 28)), build("gradients", (1, 28, 28))(grey)
    assert torch.equal(of_grey[:, :1296], alone)
    assert of_grey[:, 1296:].abs().max() == 0
    plain = torch.full((2, 3, 28, 28), 0.5)
    plain[0, 0, :, 14:] = 1  # red at the right
    plain[1, 2, :14] = 1  # blue above
    red, blue = encoder(plain)[:, 1296:].view(2, 9, 7, 7)
    assert red[:, :, :3].abs().max() == 0
    assert blue[:, 4:].abs().max() == 0
    assert torch.equal(red[:, :, 4:].sum(dim=(1, 2)).nonzero().flatten(), torch.tensor([0, 1]))  # 30 of 360 degrees
    assert not (red[:, :, 4:].sum(dim=(1, 2)) * blue[:, :3].sum(dim=(1, 2))).any()
    assert encoder(torch.rand(2, 3, 64, 17)).shape == (2, encoder.num_features)


@pytest.mark.parametrize("shape", [(1, 1), (6, 100), (12, 7)])
def test_small_tcn_takes_series_of_any_length(shape):
    encoder = build("small-tcn", shape)
    assert encoder(torch.rand(3, *shape)).shape == (3, encoder.num_features)
    longer = torch.rand(3, shape[0], 2 * shape[1])
    assert encoder(longer).shape == (3, encoder.num_features)


def test_small_tcn_sees_61_steps_at_once():
    encoder = build("small-tcn", (1, 201)).eval()
    steps = torch.zeros(1, 1, 201, requires_grad=True)
    outputs = []
    encoder.blocks.register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    encoder(steps)
    outputs[0][0, :, 100].sum().backward()
    assert steps.grad[0, 0].nonzero().flatten().tolist() == list(range(70, 131))


@pytest.mark.parametrize("shape", [(7,), (1, 8, 8), (3, 5, 6), (3, 50)])
def test_mlp_takes_vectors_images_and_series(shape):
    encoder = build("mlp", shape)
    assert encoder(torch.rand(3, *shape)).shape == (3, encoder.num_features)


def test_projector_is_linear_norm_relu_linear():
    assert [type(layer) for layer in Projector(8, 6, 4)] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert Projector(8, 6, 4)(torch.rand(5, 8)).shape == (5, 4)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_projector_has_as_many_linear_layers_as_are_asked(layers: int) -> None:
    projector = Projector(8, 6, 4, layers)
    widths = [(layer.in_features, layer.out_features) for layer in projector if isinstance(layer, nn.Linear)]
    assert widths == [[(8, 4)], [(8, 6), (6, 4)], [(8, 6), (6, 6), (6, 4)]][layers - 1]
    assert sum(isinstance(layer, nn.ReLU) for layer in projector) == layers - 1


@pytest.mark.parametrize("shape", [(7,), (3, 20), (2, 5, 6)])
def test_a_decoder_gives_a_view_of_the_shape(shape):
    assert Decoder(8, shape)(torch.rand(5, 8)).shape == (5, *shape)


@pytest.mark.parametrize("name", ["resnet10t", "resnet18", "test_vit", "test_convnext"])
def test_timm_models_take_images_of_the_shape(name):
    encoder = build(name, (2, 32, 32))
    assert encoder(torch.rand(2, 2, 32, 32)).shape == (2, encoder.num_features)
    assert encoder.training


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "mobilenetv4_conv_small_035", "lcnet_035", "ghostnet_050"])
def test_the_features_of_a_timm_model_with_a_head_after_pooling_are_measured(name):
    encoder = build(name, (3, 32, 32)).eval()
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.num_features)


@pytest.mark.parametrize("name", ["resnet10t", "resnet18"])
@pytest.mark.parametrize(("side", "expected"), [(32, 32), (64, 64), (96, 24)])
def test_a_resnet_keeps_the_resolution_of_small_images(name, side, expected):
    encoder = build(name, (1, side, side))
    sides = []
    encoder.layer1.register_forward_hook(lambda layer, inputs, output: sides.append(output.shape[-1]))
    encoder(torch.rand(2, 1, side, side))
    assert sides == [expected]


def test_a_dry_run_changes_no_buffer():
    encoder = build("resnet10t", (1, 16, 16))
    assert all(int(value) == 0 for name, value in encoder.state_dict().items() if name.endswith("num_batches_tracked"))


@pytest.fixture
def own(tmp_path, monkeypatch):
    def write(name, content):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(content))
        sys.modules.pop(name, None)

    monkeypatch.syspath_prepend(str(tmp_path))
    write(
        "own_encoder",
        """
        import math
        from os import system
        import torch
        from torch import nn

        class Flat(nn.Module):
            def __init__(self, shape):
                super().__init__()
                self.layer = nn.Linear(math.prod(shape), 9)
            def forward(self, x):
                return self.layer(x.flatten(1))

        class Liar(Flat):
            num_features = 10

        class Deep(Flat):
            def forward(self, x):
                return x

        def function(shape):
            return nn.Sequential(nn.Flatten(), nn.LazyLinear(5))

        def fails(shape):
            raise KeyError("no")

        def text(shape):
            return "text"

        number = 3
        """,
    )
    write("broken_encoder", "import no_such_package_at_all")
    write("crashing_encoder", "1 / 0")
    write("leaving_encoder", "raise SystemExit(0)")
    yield
    for name in ("own_encoder", "broken_encoder", "crashing_encoder", "leaving_encoder"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("name", "features"), [("own_encoder:Flat", 9), ("own_encoder:function", 5)])
def test_an_encoder_of_your_own(name, features):
    encoder = build(name, (1, 6, 6))
    assert encoder.num_features == features
    assert encoder(torch.rand(2, 1, 6, 6)).shape == (2, features)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("smal-cnn", (1, 8, 8), "did you mean 'small-cnn'"),
        ("resnet188", (1, 8, 8), "did you mean 'resnet18"),
        ("hf-hub/nobody", (1, 8, 8), "unknown name"),
        ("", (1, 8, 8), "unknown name"),
        ("small-cnn", (7,), "takes images"),
        ("resnet18", (7,), "takes images"),
        ("test_vit", (3, 2, 2), "does not take items of shape"),
        ("mlp", (0,), "shape"),
        ("mlp", (1, 2, 3, 4), "shape"),
        ("small-tcn", (7,), "takes time series"),
        ("gradients", (), "takes images, got texts; use"),
        ("gradients", (7,), "takes images, got items of shape"),
        ("resnet18", (), "'resnet18' takes images, got texts; use 'small-text'"),
        ("resnet18", (3, 50), "use 'small-tcn'"),
        (":Flat", (4,), "module:attribute"),
        ("own_encoder:", (4,), "attribute"),
        ("own_encoder:Flt", (4,), "did you mean 'Flat'"),
        ("own_encoder:number", (4,), "not callable"),
        ("own_encoder:text", (4,), "nn.Module, got str"),
        ("own_encoder:fails", (4,), "KeyError"),
        ("own_encoder:Liar", (4,), "declares 10 features and returns 9"),
        ("own_encoder:Deep", (1, 4, 4), r"must return \(b, features\)"),
        ("no_such_module:Net", (4,), "no_such_module"),
        ("broken_encoder:Net", (4,), "no_such_package_at_all"),
        ("crashing_encoder:Net", (4,), "ZeroDivisionError"),
        ("leaving_encoder:Net", (4,), "SystemExit"),
        ("builtins:exit", (4,), "belongs to Python itself"),
        ("os:system", (4,), "belongs to Python itself"),
        ("importlib.util:find_spec", (4,), "belongs to Python itself"),
        ("antigravity:fly", (4,), "belongs to Python itself"),
        ("own_encoder:system", (4,), "belongs to Python itself"),
        ("six.moves.builtins:exit", (4,), "belongs to Python itself|importing 'six"),
        (["own_encoder:Flat"], (4,), "expected a name"),
        (None, (4,), "expected a name"),
    ],
)
def test_what_is_no_encoder_is_told_in_one_line(name, shape, message):
    with pytest.raises(UsageError, match=message) as caught:
        build(name, shape)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_model_of_texts_for_images_is_told(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(
        UsageError, match=r"is a model of texts, got items of shape \(3, 8, 8\); give it to the view of"
    ):
        build(str(tmp_path), (3, 8, 8))
