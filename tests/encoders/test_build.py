import sys
import textwrap

import pytest
import torch
from tests.errors import raises_usage_error
from torch import nn

from contraport.encoders import Decoder, Projector, build_encoder
from contraport.errors import UsageError


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (13, 64, 64), (3, 33, 20), (3, 224, 224), (1, 2, 2)]
)
def test_small_cnn_accepts_images_of_any_size(shape):
    encoder = build_encoder("small-cnn", shape)
    assert encoder(torch.rand(3, *shape)).shape == (3, encoder.num_features)


def test_small_cnn_keeps_the_resolution_of_tiny_images():
    sides = []
    encoder = build_encoder("small-cnn", (1, 8, 8))
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, inputs, output: sides.append(output.shape[-1]))
    encoder(torch.rand(2, 1, 8, 8))
    assert sides[:2] == [8, 8]
    assert min(sides) == 4


def test_gradients_encode_edge_directions():
    image = torch.zeros(1, 1, 28, 28)
    image[..., 14:] = 1  # a vertical edge, so the gradient is horizontal
    encoder = build_encoder("gradients", (1, 28, 28))
    blocks = encoder(image).view(4, 9, 6, 6)
    assert blocks[:, 1:].abs().max() < 1e-6
    edge_columns = blocks[:, 0].amax(dim=(0, 1))
    assert edge_columns[2:4].min() > 0.4
    assert edge_columns[[0, 1, 4, 5]].max() < 1e-6
    level = encoder(image.transpose(2, 3)).view(
        4, 9, 6, 6
    )  # a horizontal edge: 90 degrees, halfway between bins 4 and 5
    assert torch.allclose(level[:, 4], level[:, 5], atol=1e-5)
    assert level[:, [0, 1, 2, 3, 6, 7, 8]].abs().max() < 1e-5
    assert level[:, 4].amax(dim=(0, 2))[2:4].min() > 0.3


def test_gradients_ignore_contrast_sign_and_brightness():
    image = torch.rand(2, 4, 40, 31)
    encoder = build_encoder("gradients", (4, 40, 31))
    assert torch.allclose(encoder(image), encoder(2 - image), atol=1e-4)
    assert torch.allclose(encoder(image), encoder(0.5 * image + 0.1), atol=2e-3)
    assert encoder(torch.ones(2, 4, 5, 4)).abs().max() == 0
    assert encoder(torch.rand(2, 4, 64, 17)).shape == (2, encoder.num_features)
    assert not list(encoder.parameters())
    assert not encoder.state_dict()


def test_gradients_use_the_steepest_channel():
    image = torch.rand(1, 1, 14, 14)
    flat = torch.cat([image, 0.01 * torch.rand(1, 1, 14, 14)], dim=1)
    of_one_channel, of_two_channels = (
        build_encoder("gradients", (1, 14, 14))(image),
        build_encoder("gradients", (2, 14, 14))(flat),
    )
    assert torch.nn.functional.cosine_similarity(of_one_channel, of_two_channels).min() > 0.99


def test_gradients_encode_the_hue_of_each_cell():
    encoder = build_encoder("gradients", (3, 28, 28))
    grey = torch.rand(1, 1, 28, 28)
    of_equal_channels, of_one_channel = (
        encoder(grey.expand(1, 3, 28, 28)),
        build_encoder("gradients", (1, 28, 28))(grey),
    )
    assert torch.equal(of_equal_channels[:, :1296], of_one_channel)
    assert of_equal_channels[:, 1296:].abs().max() == 0
    plain = torch.full((2, 3, 28, 28), 0.5)
    plain[0, 0, :, 14:] = 1  # the right half is red
    plain[1, 2, :14] = 1  # the upper half is blue
    red, blue = encoder(plain)[:, 1296:].view(2, 9, 7, 7)
    assert red[:, :, :3].abs().max() == 0
    assert blue[:, 4:].abs().max() == 0
    assert torch.equal(
        red[:, :, 4:].sum(dim=(1, 2)).nonzero().flatten(), torch.tensor([0, 1])
    )  # red is at 30 degrees, between the bins at 0 and 40
    assert not (red[:, :, 4:].sum(dim=(1, 2)) * blue[:, :3].sum(dim=(1, 2))).any()
    assert encoder(torch.rand(2, 3, 64, 17)).shape == (2, encoder.num_features)


@pytest.mark.parametrize("shape", [(1, 1), (6, 100), (12, 7)])
def test_small_tcn_accepts_series_of_any_length(shape):
    encoder = build_encoder("small-tcn", shape)
    assert encoder(torch.rand(3, *shape)).shape == (3, encoder.num_features)
    longer = torch.rand(3, shape[0], 2 * shape[1])
    assert encoder(longer).shape == (3, encoder.num_features)


def test_receptive_field_of_small_tcn_is_61_steps():
    encoder = build_encoder("small-tcn", (1, 201)).eval()
    steps = torch.zeros(1, 1, 201, requires_grad=True)
    outputs = []
    encoder.blocks.register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    encoder(steps)
    outputs[0][0, :, 100].sum().backward()
    assert steps.grad[0, 0].nonzero().flatten().tolist() == list(range(70, 131))


@pytest.mark.parametrize("shape", [(7,), (1, 8, 8), (3, 5, 6), (3, 50)])
def test_mlp_accepts_vectors_images_and_series(shape):
    encoder = build_encoder("mlp", shape)
    assert encoder(torch.rand(3, *shape)).shape == (3, encoder.num_features)


def test_projector_is_linear_norm_relu_linear():
    assert [type(layer) for layer in Projector(8, 6, 4)] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert Projector(8, 6, 4)(torch.rand(5, 8)).shape == (5, 4)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_projector_has_the_given_number_of_linear_layers(layers: int) -> None:
    projector = Projector(8, 6, 4, layers)
    widths = [(layer.in_features, layer.out_features) for layer in projector if isinstance(layer, nn.Linear)]
    assert widths == [[(8, 4)], [(8, 6), (6, 4)], [(8, 6), (6, 6), (6, 4)]][layers - 1]
    assert sum(isinstance(layer, nn.ReLU) for layer in projector) == layers - 1


@pytest.mark.parametrize("shape", [(7,), (3, 20), (2, 5, 6)])
def test_decoder_returns_the_shape_of_the_view(shape):
    assert Decoder(8, shape)(torch.rand(5, 8)).shape == (5, *shape)


@pytest.mark.parametrize("name", ["resnet10t", "resnet18", "test_vit", "test_convnext"])
def test_timm_models_accept_images_of_the_shape(name):
    encoder = build_encoder(name, (2, 32, 32))
    assert encoder(torch.rand(2, 2, 32, 32)).shape == (2, encoder.num_features)
    assert encoder.training


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "mobilenetv4_conv_small_035", "lcnet_035", "ghostnet_050"])
def test_num_features_of_timm_models_with_a_head_behind_pooling(name):
    encoder = build_encoder(name, (3, 32, 32)).eval()
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.num_features)


@pytest.mark.parametrize("name", ["resnet10t", "resnet18"])
@pytest.mark.parametrize(("side", "expected"), [(32, 32), (64, 64), (96, 24)])
def test_resnet_keeps_the_resolution_of_small_images(name, side, expected):
    encoder = build_encoder(name, (1, side, side))
    sides = []
    encoder.layer1.register_forward_hook(lambda layer, inputs, output: sides.append(output.shape[-1]))
    encoder(torch.rand(2, 1, side, side))
    assert sides == [expected]


def test_building_changes_no_buffers():
    encoder = build_encoder("resnet10t", (1, 16, 16))
    assert all(int(value) == 0 for name, value in encoder.state_dict().items() if name.endswith("num_batches_tracked"))


@pytest.fixture
def encoder_modules(tmp_path, monkeypatch):
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

        class WrongFeatures(Flat):
            num_features = 10

        class WrongShape(Flat):
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


@pytest.mark.usefixtures("encoder_modules")
@pytest.mark.parametrize(("name", "features"), [("own_encoder:Flat", 9), ("own_encoder:function", 5)])
def test_custom_encoder(name, features):
    encoder = build_encoder(name, (1, 6, 6))
    assert encoder.num_features == features
    assert encoder(torch.rand(2, 1, 6, 6)).shape == (2, features)


@pytest.mark.usefixtures("encoder_modules")
@pytest.mark.parametrize(
    ("name", "shape", "code", "value"),
    [
        ("smal-cnn", (1, 8, 8), "encoder.unknown", "'small-cnn'"),
        ("resnet188", (1, 8, 8), "encoder.unknown", "'resnet18"),
        ("hf-hub/nobody", (1, 8, 8), "encoder.unknown", ""),
        ("", (1, 8, 8), "encoder.unknown", ""),
        ("small-cnn", (7,), "encoder.shape", "images"),
        ("resnet18", (7,), "encoder.shape", "images"),
        ("test_vit", (3, 2, 2), "encoder.shape", (3, 2, 2)),
        ("mlp", (0,), "shape.invalid", (0,)),
        ("mlp", (1, 2, 3, 4), "shape.invalid", (1, 2, 3, 4)),
        ("small-tcn", (7,), "encoder.shape", "time series"),
        ("gradients", (), "encoder.shape", "texts"),
        ("gradients", (7,), "encoder.shape", (7,)),
        ("resnet18", (), "encoder.shape", "'small-text'"),
        ("resnet18", (3, 50), "encoder.shape", "'small-tcn'"),
        (":Flat", (4,), "encoder.invalid", "module:attribute"),
        ("own_encoder:", (4,), "encoder.unknown", "attribute"),
        ("own_encoder:Flt", (4,), "encoder.unknown", "'Flat'"),
        ("own_encoder:number", (4,), "encoder.not_callable", "int"),
        ("own_encoder:text", (4,), "encoder.not_a_module", "str"),
        ("own_encoder:fails", (4,), "encoder.call_failed", "KeyError"),
        ("own_encoder:WrongFeatures", (4,), "encoder.features", 10),
        ("own_encoder:WrongShape", (1, 4, 4), "encoder.output_shape", (2, 1, 4, 4)),
        ("no_such_module:Net", (4,), "encoder.import_failed", "no_such_module"),
        ("broken_encoder:Net", (4,), "encoder.import_failed", "no_such_package_at_all"),
        ("crashing_encoder:Net", (4,), "encoder.import_failed", "ZeroDivisionError"),
        ("leaving_encoder:Net", (4,), "encoder.import_failed", "SystemExit"),
        ("builtins:exit", (4,), "encoder.stdlib", ""),
        ("os:system", (4,), "encoder.stdlib", ""),
        ("importlib.util:find_spec", (4,), "encoder.stdlib", ""),
        ("antigravity:fly", (4,), "encoder.stdlib", ""),
        ("own_encoder:system", (4,), "encoder.stdlib", ""),
        (["own_encoder:Flat"], (4,), "encoder.invalid", ""),
        (None, (4,), "encoder.invalid", None),
    ],
)
def test_rejects_invalid_encoders_in_one_line(name, shape, code, value):
    with raises_usage_error(code, value) as caught:
        build_encoder(name, shape)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_rejects_standard_library_behind_a_package():
    with pytest.raises(UsageError) as caught:
        build_encoder("six.moves.builtins:exit", (4,))
    assert caught.value.code in ("encoder.stdlib", "encoder.import_failed")  # the latter where six is not installed


def test_rejects_text_encoder_for_images(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with raises_usage_error("encoder.shape", (3, 8, 8), "encoder={'text': ...}"):
        build_encoder(str(tmp_path), (3, 8, 8))
