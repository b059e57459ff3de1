import logging
import os
import socket
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import build_loader, load


def save(path, *, size=(12, 10), value=100, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "P") else (value,) * len(mode)).save(path)
    with path.open("ab") as file:  # beyond the end of the image, so that no two files have the same content
        file.write(str(path).encode())


@pytest.fixture
def classes(tmp_path):
    for number in range(10):
        save(tmp_path / "cat" / f"{number}.png", value=10)
        save(tmp_path / "dog" / "deep" / f"{number}.jpg", value=200)
    return tmp_path


def test_class_folders_give_labels_and_a_split_stratified_by_class(classes):
    train, test = load(classes), load(classes, "test")
    assert train.class_names == test.class_names == ("cat", "dog")
    assert train.labels.bincount().tolist() == [8, 8]
    assert test.labels.bincount().tolist() == [2, 2]
    assert not set(train.store.encoded.files) & set(test.store.encoded.files)
    assert train.allows_flips
    assert not train.is_in_memory


def test_images_are_rgb_squares_of_the_median_shorter_side(classes):
    train = load(classes)
    assert train.shapes == ((3, 10, 10),)
    batch = train.__getitems__(list(range(len(train))))
    assert batch.views[0].dtype == torch.uint8
    middle = batch.views[0].float().mean(dim=(1, 2, 3))
    assert torch.allclose(middle, torch.tensor([10.0, 200.0])[batch.labels], atol=2)


@pytest.mark.parametrize(("side", "expected"), [(5, 8), (28, 28), (64, 64), (300, 64)])
def test_the_default_size_is_kept_between_8_and_64(tmp_path, side, expected):
    for number in range(3):
        save(tmp_path / f"{number}.png", size=(side + 7, side))
    assert load(tmp_path).shapes == ((3, expected, expected),)
    assert load(tmp_path, image_size=16).shapes == ((3, 16, 16),)


def test_a_flat_folder_has_no_labels(tmp_path):
    for number in range(5):
        save(tmp_path / f"{number}.png")
    train, test = load(tmp_path), load(tmp_path, "test")
    assert (len(train), len(test)) == (4, 1)
    assert train.labels is None
    assert train.class_names is None


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_train_and_test_folders_are_the_splits(tmp_path, held_out):
    for number in range(3):
        save(tmp_path / "train" / "b" / f"{number}.png")
    save(tmp_path / held_out / "a" / "0.png")
    save(tmp_path / held_out / "b" / "0.png")
    train, test = load(tmp_path), load(tmp_path, "test")
    assert train.class_names == test.class_names == ("a", "b")
    assert train.labels.tolist() == [1, 1, 1]
    assert test.labels.tolist() == [0, 1]


def test_images_are_cropped_at_the_center_and_rotated_by_exif(tmp_path):
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "0.png")
    Image.fromarray(pixels).save(tmp_path / "1.png", exif=exif)
    for view in load(tmp_path, image_size=20).__getitems__([0, 1]).views[0]:
        assert view.min() == 255


def test_images_of_every_mode_become_rgb(tmp_path):
    save(tmp_path / "0.png", mode="L")
    save(tmp_path / "1.png", mode="RGBA")
    save(tmp_path / "2.png", mode="P", value=0)
    save(tmp_path / "3.jpg", mode="CMYK")
    Image.fromarray(np.full((10, 10), 128 * 256, np.uint16)).save(tmp_path / "4.png")
    save(tmp_path / "test" / "0.png")
    (tmp_path / "train").mkdir()
    for file in tmp_path.glob("*.*"):
        file.rename(tmp_path / "train" / file.name)
    dataset = load(tmp_path)
    assert len(dataset) == 5
    assert dataset[4].views[0].unique().tolist() == [128]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_become_white(tmp_path, mode):
    drawn = Image.new("RGBA", (10, 10), (0, 0, 0, 0))  # transparent pixels are black
    drawn.paste((0, 0, 0, 255), (0, 0, 5, 10))
    if mode == "P":
        drawn = drawn.convert("RGB").quantize(2)
        drawn.putdata([1] * 50 + [0] * 50)
        drawn.putpalette([0] * 6)
        drawn.save(tmp_path / "0.png", transparency=0)
    else:
        drawn.convert(mode).save(tmp_path / "0.png")
    view = load(tmp_path, test_fraction=0, image_size=10).__getitems__([0]).views[0]
    assert view.float().mean().item() == pytest.approx(127.5)
    assert view.unique().tolist() == [0, 255]


def test_corrupt_images_are_skipped_counted_and_named(classes, caplog):
    (classes / "cat" / "zero.png").write_bytes(b"")
    (classes / "dog" / "text.jpg").write_text("no image")
    content = (classes / "dog" / "deep" / "0.jpg").read_bytes()
    (classes / "dog" / "cut.jpg").write_bytes(content[: len(content) * 2 // 3])
    png = (classes / "cat" / "0.png").read_bytes()
    (classes / "cat" / "cut.png").write_bytes(png[: png.index(b"IEND") - 12])
    with caplog.at_level(logging.WARNING):
        datasets = [load(classes), load(classes, "test")]
    skipped = sorted(name for dataset in datasets for name in dataset.unreadable_files)
    assert [name.rsplit("/", 1)[1] for name in skipped] == ["cut.png", "zero.png", "cut.jpg", "text.jpg"]
    assert sum(len(dataset) for dataset in datasets) == 20
    for name in skipped:
        assert name in caplog.text
    for dataset in datasets:
        assert len(dataset.labels) == len(dataset)
        dataset.__getitems__(list(range(len(dataset))))


def test_an_image_with_a_huge_declared_size_is_skipped(classes):
    png = bytearray((classes / "cat" / "0.png").read_bytes())
    png[16:24] = struct.pack(">II", 100_000, 100_000)
    (classes / "cat" / "0.png").write_bytes(png)
    assert len(load(classes).unreadable_files) + len(load(classes, "test").unreadable_files) == 1


def test_a_png_with_corrupt_pixels_is_named(classes):
    """Its checksums are valid, so that decoding alone detects the corruption."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 10, 10, 8, 2, 0, 0, 0)
    pixels = b"no deflated pixels"
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    dataset = load(classes)
    file = next(file for file in dataset.store.encoded.files if file.endswith(".png"))
    Path(file).write_bytes(png)
    with raises_usage_error("data.corrupt_pixels", file):
        dataset[dataset.store.encoded.files.index(file)]


def test_error_names_an_image_deleted_after_loading(classes):
    dataset = load(classes)
    Path(dataset.store.encoded.files[3]).unlink()
    with raises_usage_error("data.unreadable", dataset.store.encoded.files[3]):
        dataset[3]


def test_rejects_folders_without_readable_images(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(b"x%d" % number)
    with raises_usage_error("data.no_readable_image", "4"):
        load(tmp_path)


def test_rejects_empty_and_ambiguous_folders(tmp_path):
    with raises_usage_error("data.empty"):
        load(tmp_path)
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / name).write_text("")
    with raises_usage_error("data.run"):
        load(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    save(tmp_path / "0.png")
    with raises_usage_error("data.too_few"):
        load(tmp_path, "test")
    save(tmp_path / "cat" / "0.png")
    with raises_usage_error("data.mixed_folders"):
        load(tmp_path)
    (tmp_path / "test").mkdir()
    with raises_usage_error("data.no_train_split"):
        load(tmp_path)


def test_ignores_hidden_and_other_files(classes):
    (classes / "cat" / ".hidden.png").write_bytes(b"x")
    (classes / ".thumbnails").mkdir()
    (classes / ".thumbnails" / "0.png").write_bytes(b"x")
    (classes / "README.txt").write_text("x")
    assert len(load(classes)) == 16
    assert load(classes).unreadable_files == ()


@pytest.mark.parametrize("file_name", [b"cat/caf\xe9.png", b"caf\xe9/0.png"])
def test_rejects_file_names_that_are_not_utf8(classes, file_name):
    path = os.path.join(os.fsencode(classes), file_name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        save(classes / "new.png")
        os.rename(classes / "new.png", path)
    except OSError:
        pytest.skip("the file system takes such names only in UTF-8")
    with raises_usage_error("data.not_unicode", "1"):
        load(classes)


def test_memory_does_not_grow_with_the_pixels(tmp_path):
    for number in range(40):
        save(tmp_path / f"{number}.png", size=(256, 256))
    tracemalloc.start()
    dataset = load(tmp_path, image_size=256)
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(dataset) == 32
    assert traced < 256 * 256 * 3


@pytest.mark.usefixtures("two_cores")
def test_worker_processes_give_the_same_batches(classes):
    dataset = load(classes)
    alone = list(build_loader(dataset, 5, shuffle=True, seed=1, num_workers=0))
    helped = list(build_loader(dataset, 5, shuffle=True, seed=1, num_workers=2))
    assert all(torch.equal(a.views[0], b.views[0]) for a, b in zip(alone, helped, strict=True))


def test_domain_and_class_folders_are_distinguished(tmp_path):
    for domain in ("art", "photo", "sketch"):
        for label in ("dog", "horse"):
            for number in range(10):
                save(tmp_path / domain / label / f"{number}.png", value=20 * ("dog", "horse").index(label))
    train, test = load(tmp_path), load(tmp_path, "test")
    assert train.class_names == test.class_names == ("dog", "horse")
    assert train.domain_names == test.domain_names == ("art", "photo", "sketch")
    assert (train.labels * 3 + train.domains).bincount().tolist() == [8] * 6
    assert (test.labels * 3 + test.domains).bincount().tolist() == [2] * 6
    pixels = train.__getitems__(list(range(len(train)))).views[0]
    assert torch.equal(pixels[:, 0, 0, 0].long(), 20 * train.labels)


def test_domains_below_train_and_test(tmp_path):
    for split, domains in (("train", "ab"), ("test", "bc")):
        for domain in domains:
            for label in ("dog", "horse"):
                save(tmp_path / split / domain / label / "0.png")
    test = load(tmp_path, "test")
    assert test.domain_names == ("a", "b", "c")
    assert test.domains.tolist() == [1, 1, 2, 2]
    assert test.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("second", [("images", "images"), ("left", "right", "up")])
def test_folders_of_domains_require_the_same_classes(tmp_path, second):
    for number, name in enumerate(second):
        for item in range(4):
            save(tmp_path / ("cat", "dog")[number % 2] / name / f"{item}.png")
    train = load(tmp_path)
    assert train.class_names == ("cat", "dog")
    assert train.domains is None


def test_test_folder_has_precedence_over_validation_folder(tmp_path):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        for number in range(count):
            save(tmp_path / split / "cat" / f"{number}.png")
    assert (len(load(tmp_path)), len(load(tmp_path, "test"))) == (3, 1)


def test_only_regular_files_are_opened_and_the_others_counted(classes, caplog):
    os.mkfifo(classes / "cat" / "pipe.png")
    (classes / "cat" / "zeros.png").symlink_to("/dev/zero")
    (classes / "dog" / "round.jpg").symlink_to("round.jpg")
    (classes / "dog" / "again").symlink_to(classes)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(classes / "dog" / "socket.jpg"))
    with caplog.at_level(logging.WARNING):
        datasets = [load(classes), load(classes, "test")]
    skipped = sorted(Path(name).name for dataset in datasets for name in dataset.unreadable_files)
    assert skipped == ["pipe.png", "round.jpg", "socket.jpg", "zeros.png"]
    assert sum(len(dataset) for dataset in datasets) == 20
    assert "zeros.png" in caplog.text


def texts_of(dataset, view):
    return tensor_to_texts(dataset.__getitems__(list(range(len(dataset)))).views[view])


def test_texts_beside_images_are_a_second_view(classes, caplog):
    for file in classes.rglob("*.*g"):
        file.with_suffix(".txt").write_text(f" photo {file.stem} of a {file.parts[len(classes.parts)]}\n")
    (classes / "cat" / "3.txt").write_text(" ")
    (classes / "dog" / "deep" / "5.txt").unlink()
    (classes / "README.txt").write_text("no one's")
    parts = [load(classes, split) for split in ("train", "test")]
    num_without_text = 0
    for part in parts:
        assert part.shapes == ((3, 10, 10), ())
        assert part.view_names == ("image", "text")
        assert part.class_names == ("cat", "dog")
        present = torch.ones(len(part), 2, dtype=torch.bool) if part.present is None else part.present
        assert present[:, 0].all()
        num_without_text += int((~present).sum())
        for key, label, text, is_present in zip(part.keys, part.labels, texts_of(part, 1), present[:, 1], strict=True):
            assert text == (f"photo {Path(key).stem} of a {part.class_names[label]}" if is_present else "")
    assert num_without_text == 2
    assert "2 of 20 images" in caplog.text


def test_texts_beside_few_images_are_ignored(classes, caplog):
    (classes / "cat" / "3.txt").write_text("a note")
    assert load(classes).shapes == ((3, 10, 10),)
    assert "1 of 20 images" in caplog.text


def test_class_folders_of_texts_give_labels(tmp_path):
    for kind in ("neg", "pos"):
        for split, count in (("train", 5), ("test", 2)):
            (tmp_path / split / kind).mkdir(parents=True)
            for number in range(count):
                (tmp_path / split / kind / f"{number}.txt").write_text(f"größer {kind} {number}", "utf-8")
    train, test = load(tmp_path), load(tmp_path, "test")
    assert (len(train), len(test)) == (10, 4)
    assert (train.shapes, train.view_names, train.class_names) == (((),), ("text",), ("neg", "pos"))
    assert texts_of(test, 0) == [f"größer {kind} {number}" for kind in ("neg", "pos") for number in range(2)]
    assert test.keys[0].endswith("neg/0.txt")


def test_rejects_a_file_that_is_not_text(tmp_path):
    (tmp_path / "0.txt").write_text("a")
    (tmp_path / "1.txt").write_bytes(b"\xff\xfe\xff")
    with raises_usage_error("data.unreadable", "8"):
        load(tmp_path)
    (tmp_path / "1.txt").write_text("")
    with raises_usage_error("data.empty_text", "1 of 2"):
        load(tmp_path)


def test_each_line_of_a_file_is_a_text(tmp_path):
    (tmp_path / "lines.txt").write_text("\ufeffone\n\n two \r\nthree\nfour\nfive", "utf-8")
    parts = [load(tmp_path / "lines.txt", split) for split in ("train", "test")]
    result = {int(row): text for part in parts for row, text in zip(part.source_rows, texts_of(part, 0), strict=True)}
    assert result == {0: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
    (tmp_path / "none.txt").write_text(" \n\n")
    with raises_usage_error("data.empty", "none.txt"):
        load(tmp_path / "none.txt")


def test_class_folders_may_be_links(classes, tmp_path_factory):
    linked = tmp_path_factory.mktemp("links") / "linked"
    linked.mkdir()
    for name in ("cat", "dog"):
        (linked / name).symlink_to(classes / name)
    dataset, linked_dataset = load(classes), load(linked)
    assert (linked_dataset.class_names, linked_dataset.labels.tolist()) == (
        dataset.class_names,
        dataset.labels.tolist(),
    )
    assert [Path(key).name for key in linked_dataset.keys] == [Path(key).name for key in dataset.keys]


def test_split_folders_may_be_capitalized(tmp_path):
    for split, count in (("Train", 4), ("Test", 2)):
        for number in range(count):
            save(tmp_path / split / ("cat", "dog")[number % 2] / f"{number}.png")
    train, test = load(tmp_path), load(tmp_path, "test")
    assert (len(train), len(test), train.class_names, train.domains) == (4, 2, ("cat", "dog"), None)


def test_rows_are_the_lines_of_a_file(tmp_path):
    (tmp_path / "texts.txt").write_text("\n\nfirst\n\nsecond\n")
    assert load(tmp_path / "texts.txt", test_fraction=0).source_rows.tolist() == [2, 4]


def test_less_common_image_suffixes_are_read_or_reported(tmp_path):
    for suffix, kind in (("jpg", "JPEG"), ("jfif", "JPEG"), ("jpe", "JPEG")):
        Image.new("RGB", (9, 9)).save(tmp_path / f"a.{suffix}", kind)
    (tmp_path / "b.heic").write_bytes(b"what a plugin reads")
    dataset = load(tmp_path, test_fraction=0)
    assert (len(dataset), dataset.unreadable_files) == (3, (str(tmp_path / "b.heic"),))


def test_rejects_a_class_folder_named_train(tmp_path, caplog):
    for name in ("bus", "train", "car"):
        for number in range(4):
            save(tmp_path / name / f"{number}.png")
    with raises_usage_error("data.ambiguous_folders"):
        load(tmp_path)
    save(tmp_path / "test" / "0.png")
    assert len(load(tmp_path)) == 4
    assert "bus, car" in caplog.text
