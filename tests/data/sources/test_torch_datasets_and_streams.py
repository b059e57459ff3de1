import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import ToTensor

from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import build_loader, from_torch, load


class Listed(Dataset):
    def __init__(self, items):
        self.items = items
        self.asked = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, position):
        self.asked += 1
        return self.items[position]


def grey(value, size=(6, 5)):
    return Image.new("L", size, value)


def test_items_are_views_followed_by_a_label():
    items = [((np.full((4, 9), i, np.float32), grey(i)), torch.ones(3), torch.tensor(7 + i % 2)) for i in range(6)]
    dataset = load(Listed(items))
    assert dataset.shapes == ((4, 9), (1, 5, 6), (3,))
    assert dataset.class_names == ("7", "8")
    batch = dataset.__getitems__([4, 1])
    assert batch.views[0][:, 0, 0].tolist() == [4, 1]
    assert batch.views[1].dtype == torch.uint8
    assert batch.labels.tolist() == [0, 1]


def test_one_array_is_one_view_without_labels():
    dataset = load(Listed([np.zeros(3)] * 4))
    assert (dataset.shapes, dataset.labels) == (((3,),), None)


def test_text_is_a_label():
    assert load(Listed([(np.zeros(3), name) for name in "bab"])).class_names == ("a", "b")


def test_torchvision_floats_are_images_in_units_of_one():
    dataset = load(FakeData(size=8, image_size=(3, 16, 16), num_classes=3, transform=ToTensor()))
    assert dataset.shapes == ((3, 16, 16),)
    mean, std = dataset.mean_and_std()
    expected = torch.cat([item.views[0] for item in dataset]).double()
    assert mean == pytest.approx(expected.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(expected.std(dim=(0, 2, 3), correction=0).tolist())


def test_labels_attribute_is_used_without_fetching_items():
    items = Listed([(np.zeros(3), label) for label in (2, 0, 2)])
    items.targets = [2, 0, 2]
    items.classes = ["x", "y", "z"]
    dataset = load(items)
    assert dataset.labels.tolist() == [2, 0, 2]
    assert dataset.class_names == ("x", "y", "z")
    assert items.asked < 4
    assert load(Subset(items, [1, 2])).labels.tolist() == [0, 1]


def test_target_transform_is_applied():
    items = Listed([(np.zeros(3), 10 * label) for label in (2, 0, 2)])
    items.targets = [2, 0, 2]
    items.target_transform = lambda label: 10 * label
    assert load(items).class_names == ("0", "20")


def test_an_image_folder_of_torchvision_with_unequal_images(tmp_path):
    for number, name in enumerate(("cat", "dog") * 3):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.new("RGB", (20 + number, 30), (10 * number,) * 3).save(tmp_path / name / f"{number}.png")
    folder = ImageFolder(str(tmp_path))
    with raises_usage_error("data.shape", "5"):
        load(folder).__getitems__([0, 5])
    dataset = load(folder, image_size=16)
    assert dataset.shapes == ((3, 16, 16),)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.__getitems__([0, 5]).labels.tolist() == [0, 1]


def test_explicit_labels_and_domains_override_those_of_items():
    dataset = from_torch(TensorDataset(torch.zeros(4, 2)), labels=list("aabb"), domains=[5, 6, 5, 6])
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset.domain_names == ("5", "6")


def test_all_labels_minus_one_means_unlabeled():
    assert load(Listed([(np.zeros(3), -1)] * 4)).labels is None


def test_tensors_are_resized_too():
    dataset = load(TensorDataset(torch.zeros(4, 3, 8, 8, dtype=torch.uint8)), image_size=4)
    assert dataset.__getitems__([0]).views[0].shape == (1, 3, 4, 4)


@pytest.mark.usefixtures("two_cores")
def test_worker_processes_give_the_same_batches():
    dataset = load(Listed([np.full(3, i) for i in range(20)]))
    for num_workers in (0, 2):
        items = torch.cat([batch.views[0][:, 0] for batch in build_loader(dataset, 6, num_workers=num_workers)])
        assert items.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("items", "code_and_values"),
    [
        ([], ("data.empty",)),
        ([{"image": 1}], ("data.no_view", "0")),
        ([{"caption": " "}], ("data.empty_text", "0")),
        ([5], ("data.not_a_view",)),
        ([(5,)], ("data.no_view",)),
        ([np.full(3, np.nan)], ("data.not_finite", "0")),
        ([(np.zeros(3), 1), (np.zeros(3), np.zeros(2))], ("data.missing_label", "1")),
    ],
)
def test_rejects_items_of_another_kind(items, code_and_values):
    with raises_usage_error(*code_and_values):
        load(Listed(items))


def test_rejects_an_iterable_dataset():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(3)

    with raises_usage_error("data.not_map_style"):
        from_torch(Stream())


def test_images_of_16_bits_become_8_bits():
    deep = Image.fromarray(np.full((6, 6), 30_000, np.uint16))
    for size in (None, 6):
        assert load(Listed([deep]), image_size=size).__getitems__([0]).views[0].unique().tolist() == [30_000 >> 8]


@pytest.mark.parametrize(("texts", "warned"), [(["a cat", "a dog", "a cow"], True), (["cat", "dog", "cat"], False)])
def test_warns_of_captions_that_become_classes(texts, warned, caplog):
    dataset = load(Listed([(torch.ones(3), text) for text in texts]))
    assert dataset.class_names == tuple(sorted(set(texts)))
    assert ("no two are equal" in caplog.text) is warned


def test_dict_items_have_named_views_and_a_label():
    items = [
        {"image": grey(10 * i), "caption": f"number {10**i}", "sizes": [1, i], "label": "ab"[i % 2]} for i in range(4)
    ]
    dataset = load(Listed(items))
    assert (dataset.shapes, dataset.view_names) == (((1, 5, 6), (), (2,)), ("image", "caption", "sizes"))
    assert dataset.class_names == ("a", "b")
    batch = dataset.__getitems__([3, 0])
    assert batch.views[0].flatten(1)[:, 0].tolist() == [30, 0]
    assert tensor_to_texts(batch.views[1]) == ["number 1000", "number 1"]
    assert batch.views[2].tolist() == [[1, 3], [1, 0]]
    assert batch.labels.tolist() == [1, 0]


def test_a_dict_with_one_view_has_no_view_names():
    dataset = load(Listed([{"x": np.zeros(3), "target": name} for name in ("01", "1", "01")]))
    assert dataset.view_names == load(Listed([np.zeros(3)])).view_names
    assert dataset.class_names == ("01", "1")


def test_image_size_makes_unequal_tensors_equal():
    images = [torch.zeros(3, side, side, dtype=torch.uint8) for side in (8, 12)]
    for items in (images, [{"image": image} for image in images]):
        assert load(Listed(items), image_size=8).__getitems__([1]).views[0].shape == (1, 3, 8, 8)
