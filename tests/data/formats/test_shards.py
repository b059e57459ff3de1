import io
import json
import logging
import os
import tarfile
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import build_loader, load


def encoded(value, kind="PNG", size=(10, 12)):
    content = io.BytesIO()
    Image.new("RGB", size, (value,) * 3).save(content, kind)
    return content.getvalue()


def array(values):
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def write(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def sample(number, **more):
    return [
        (f"dir/{number:04}.{'png' if number % 2 else 'JPEG'}", encoded(4 * number, "PNG" if number % 2 else "JPEG")),
        (f"dir/{number:04}.cls", str(number % 3 + 8).encode()),
        *((f"dir/{number:04}.{field}", content) for field, content in more.items()),
    ]


@pytest.fixture
def shards(tmp_path):
    for shard in range(3):
        write(
            tmp_path / f"train-{shard:03}.tar",
            [file for i in range(20) for file in sample(20 * shard + i, note=b"hello")],
        )
    return tmp_path


def sample_numbers(dataset):
    """Return the number of the sample of each item, from its pixels."""
    return (dataset.__getitems__(list(range(len(dataset)))).views[0][:, 0, 5, 5] / 4.0).round().long()


def test_samples_are_split_by_class(shards, caplog):
    with caplog.at_level(logging.INFO):
        train, test = load(shards), load(f"{shards}/train-{{000..002}}.tar", "test")
    assert (len(train), len(test)) == (48, 12)
    assert train.shapes == ((3, 10, 10),)
    assert train.class_names == test.class_names == ("8", "9", "10")
    assert sorted([*sample_numbers(train).tolist(), *sample_numbers(test).tolist()]) == list(range(60))
    for part in (train, test):
        assert torch.equal(part.labels, sample_numbers(part) % 3)
    assert "60 .note" in caplog.text


def test_one_archive_and_alternatives_in_braces_are_read(shards):
    assert len(load(shards / "train-000.tar")) + len(load(shards / "train-000.tar", "test")) == 20
    write(shards / "val-0.tar", sample(70) + sample(71))
    archives = f"{shards}/{{train-000,val-0}}.tar"
    assert (len(load(archives)), len(load(archives, "test"))) == (20, 2)
    assert (len(load(shards)), len(load(shards, "test"))) == (60, 2)
    write(shards / "test-0.tar", sample(61))
    assert sample_numbers(load(shards, "test")).tolist() == [61]
    assert len(load(shards)) == 60


def test_folders_of_splits(tmp_path):
    write(tmp_path / "train" / "0.tar", sample(0) + sample(1))
    write(tmp_path / "test" / "0.tar", sample(2))
    assert sample_numbers(load(tmp_path)).tolist() == [0, 1]
    assert sample_numbers(load(tmp_path, "test")).tolist() == [2]


def test_several_images_and_arrays_are_several_views(tmp_path):
    files = []
    for i in range(10):
        about = json.dumps({"label": "ab"[i % 2], "domain": i % 5, "caption": "x"}).encode()
        files += [(f"{i}.right.png", encoded(i)), (f"{i}.left.jpg", encoded(100 + i, "JPEG"))]
        files += [(f"{i}.npy", array(np.full((2, 7), i, np.float32))), (f"{i}.json", about)]
    train = load(write(tmp_path / "a.tar", files))
    assert train.shapes == ((3, 10, 10), (2, 7), (3, 10, 10))
    batch = train.__getitems__(list(range(len(train))))
    order = batch.views[1][:, 0, 0].long()
    assert torch.equal(batch.views[2][:, 0, 0, 0].long(), order)
    assert torch.equal(batch.labels, order % 2)
    assert torch.equal(batch.domains, order % 5)


def test_skips_corrupt_images_and_incomplete_samples_with_a_warning(tmp_path, caplog):
    files = [file for i in range(1, 11) for file in sample(i)]
    files[4] = (files[4][0], files[4][1][:60])
    files += [("lonely.cls", b"3"), ("half.npy", array(np.zeros(3)))]
    with caplog.at_level(logging.WARNING):
        path = write(tmp_path / "a.tar", files)
        parts = [load(path, split) for split in ("train", "test")]
    assert [name for part in parts for name in part.unreadable_files] == [f"{path}: dir/0003.image"]
    assert sorted(number for part in parts for number in sample_numbers(part).tolist()) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert "['image']" in caplog.text


@pytest.mark.usefixtures("two_cores")
def test_order_does_not_depend_on_worker_processes(shards):
    dataset = load(shards)
    alone = list(build_loader(dataset, 8, shuffle=True, seed=3, num_workers=0))
    helped = list(build_loader(dataset, 8, shuffle=True, seed=3, num_workers=2))
    assert all(torch.equal(a.views[0], b.views[0]) for a, b in zip(alone, helped, strict=True))


def peak_memory(path):
    tracemalloc.start()
    dataset = load(path)
    dataset.__getitems__([0, 1])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def test_memory_does_not_grow_with_the_payload(tmp_path):
    rng = np.random.default_rng(0)
    for name, length in (("small", 10), ("large", 100_000)):
        write(tmp_path / f"{name}.tar", [(f"{i}.npy", array(rng.random(length, np.float32))) for i in range(50)])
    assert (tmp_path / "large.tar").stat().st_size > 20e6
    assert (
        peak_memory(tmp_path / "large.tar") < peak_memory(tmp_path / "small.tar") + 6e6
    )  # a batch of two and its conversion


@pytest.mark.parametrize("num_lost", [1, 700, 5_000, 10_240])
def test_rejects_a_cut_archive(shards, num_lost):
    path = shards / "train-001.tar"
    content = path.read_bytes()
    used = len(content.rstrip(b"\0"))
    path.write_bytes(content[: used - num_lost])
    with raises_usage_error("data.unreadable", "001"):
        load(shards)


def test_rejects_an_archive_cut_between_two_members(tmp_path):
    path = write(tmp_path / "a.tar", sample(0) + sample(1))
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset
    path.write_bytes(path.read_bytes()[:last])
    with raises_usage_error("data.unreadable", last):
        load(path)


def test_rejects_an_archive_overwritten_in_its_middle(tmp_path):
    path = write(tmp_path / "a.tar", sample(0) + sample(1))
    with tarfile.open(path) as tar:
        third = tar.getmembers()[2].offset
    content = bytearray(path.read_bytes())
    content[third : third + 512] = b"x" * 512
    path.write_bytes(content)
    with raises_usage_error("data.unreadable", third):
        load(path)


@pytest.mark.parametrize(
    ("files", "code_and_values"),
    [
        ([], ("data.empty", "a.tar")),
        ([("a.note", b"x")], ("data.empty",)),
        ([*sample(0), ("z.png", encoded(3))], ("data.missing_label", "z")),
        ([("a.png", encoded(1)), ("a.jpg", encoded(1))], ("data.repeated_field",)),
        ([("a.png", encoded(1)), ("a.json", b"{")], ("data.unreadable",)),
        ([("a.png", encoded(1)), ("a.json", b"[1]")], ("data.json",)),
        ([("a.png", encoded(1)), ("a.json", b"[" * 100_000)], ("data.unreadable",)),
        ([("a.png", encoded(1)), ("a.json", b'{"label": 1.5}')], ("data.json",)),
        ([(f"{i}.png", b"x") for i in range(9)], ("data.no_readable_image",)),
        ([(f"{i}.npy", b"x") for i in range(9)], ("data.unreadable", "0")),
        ([(f"{i}.npy", array(np.array([object()]))) for i in range(9)], ("data.unreadable", "0")),
        ([(f"{i}.npy", array(np.full(3, np.nan))) for i in range(9)], ("data.not_finite", "0")),
    ],
)
def test_rejects_invalid_samples(tmp_path, files, code_and_values):
    with raises_usage_error(*code_and_values):
        load(write(tmp_path / "a.tar", files))


def test_rejects_unequal_arrays(tmp_path):
    dataset = load(write(tmp_path / "a.tar", [(f"{i}.npy", array(np.zeros(3 + (i > 4)))) for i in range(10)]))
    with raises_usage_error("data.shape", "(3,)"):
        dataset.__getitems__(list(range(len(dataset))))


def test_rejects_compressed_and_missing_archives(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    with raises_usage_error("data.unreadable"):
        load(tmp_path / "a.tar")
    with raises_usage_error("data.not_found", "2"):
        load(f"{tmp_path}/b-{{0..1}}.tar")


def test_an_archive_beside_class_folders_is_not_a_shard(shards):
    for name in ("cat", "dog"):
        (shards / name).mkdir()
        for number in range(5):
            (shards / name / f"{number}.png").write_bytes(encoded(number))
    assert load(shards).class_names == ("cat", "dog")


def test_rejects_a_pipe_among_archives(tmp_path):
    os.mkfifo(tmp_path / "a.tar")
    with raises_usage_error("data.not_a_file", "a.tar"):
        load(tmp_path)


def test_rejects_an_archive_whose_headers_form_a_cycle(tmp_path):
    path = write(tmp_path / "a.tar", sample(0) + sample(1))
    content = bytearray(path.read_bytes())
    content[124:136] = b"\xff" * 10 + b"\xfc\x00"  # a size of -1,024, so that the next header is this one
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)
    with raises_usage_error("data.unreadable", "0"):
        load(path)


def test_skips_and_counts_links_and_paths_outside_the_archive(tmp_path, caplog):
    path = write(tmp_path / "in" / "a.tar", [(f"../../{i}.png", encoded(i)) for i in range(9)])
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("secret.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with caplog.at_level(logging.INFO):
        assert len(load(path)) + len(load(path, "test")) == 9
    assert "1 link" in caplog.text
    assert [child.name for child in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("braces", ["{0..99999999999}", "{0..9999}-{0..99}-{a,b}"])
def test_rejects_too_many_archives_in_braces(braces):
    with raises_usage_error("data.too_many_archives", "1000000"):
        load(f"{braces}.tar")


def test_texts_are_views(tmp_path, caplog):
    files = [file for i in range(10) for file in sample(i, txt=f" größer {i}\n".encode() if i != 4 else b"")]
    write(tmp_path / "data.tar", files)
    with caplog.at_level(logging.INFO):
        parts = [load(tmp_path / "data.tar", split) for split in ("train", "test")]
    assert parts[0].shapes == ((3, 10, 10), ())
    assert parts[0].view_names == ("image", "text")
    assert sum(len(part) for part in parts) == 9
    assert "1 empty .txt" in caplog.text
    for part in parts:
        texts = tensor_to_texts(part.__getitems__(list(range(len(part)))).views[1])
        assert texts == [f"größer {number}" for number in sample_numbers(part).tolist()]


def test_rejects_a_member_that_is_not_text(tmp_path):
    write(tmp_path / "data.tar", [(f"{i}.txt", b"\xff\xfe" if i == 2 else b"text %d" % i) for i in range(9)])
    dataset = load(tmp_path / "data.tar", test_fraction=0.2)
    splits = [load(tmp_path / "data.tar", split) for split in ("train", "test")]
    assert dataset.shapes == ((),)
    with raises_usage_error("data.unreadable", "data.tar", "8"):
        [part.__getitems__(list(range(len(part)))) for part in splits]


def test_class_names_keep_leading_zeros(tmp_path):
    names = ("01", "1", "2", "10")
    files = [(f"{i}.{field}", content) for i, name in enumerate(names) for field, content in
             (("png", encoded(i)), ("cls", name.encode()))]  # fmt: skip
    dataset = load(write(tmp_path / "all.tar", files), test_fraction=0)
    assert [dataset.class_names[label] for label in dataset.labels] == list(names)


def test_rows_count_skipped_samples(tmp_path):
    files = [("a.png", encoded(1)), ("a.txt", b"one"), ("b.png", encoded(2)), ("c.png", encoded(3)), ("c.txt", b"two")]
    assert load(write(tmp_path / "all.tar", files), test_fraction=0).source_rows.tolist() == [0, 2]


def test_archives_named_like_a_test_split_are_training_data(tmp_path):
    for name, count in (("valley.tar", 4), ("testament.tar", 3), ("mountains.tar", 5), ("testing-0.tar", 2)):
        write(tmp_path / name, [(f"{i}.png", encoded(i)) for i in range(count)])
    assert (len(load(tmp_path)), len(load(tmp_path, "test"))) == (12, 2)
