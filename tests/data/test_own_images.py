"""Images of one's own: folders named after classes, and parquet files."""

import io
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from tests.own_data import picture, refusal, save_folders, save_parquet, task_of

ODD = ["con", "my cats", "日本", "01", "1", "a.b", "[x]", "null", "yes", "a=b", "😀", "train"]


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def flowers(tmp_path, train=None, test=None, **drawn):
    """Write daisies and roses, and return the words that name them."""
    train, test = train or {"daisy": 3, "rose": 2}, test or {"daisy": 1, "rose": 2}
    root = save_folders(tmp_path / "flowers", {"train": train, "test": test}, **drawn)
    return root, ["task=images", f"data={root}", f"dataset_size={sum(train.values())}"]


def encoded(image, **how):
    stream = io.BytesIO()
    image.save(stream, "PNG", **how)
    return stream.getvalue()


def cells(count, **drawn):
    return [{"bytes": encoded(picture(seed, **drawn)), "path": None} for seed in range(count)]


def test_a_folder_of_class_folders_is_read_pixel_for_pixel_in_the_order_of_its_names(tmp_path):
    root, words = flowers(tmp_path)
    task = task_of(*words)
    assert task.name == "images:flowers" and task.input_shape == (3, 8, 8)
    assert task.train.targets.tolist() == [0, 0, 0, 1, 1]
    assert task.test.targets.tolist() == [0, 1, 1]
    first = np.asarray(Image.open(root / "train" / "daisy" / "0.png")).transpose(2, 0, 1)
    assert np.array_equal(task.train.inputs[0], first)
    assert (task.train.mean, task.train.std) == ((0.5,), (0.5,))  # constants, not the set's own


@pytest.mark.parametrize("profile", ["embedded", "quick", "short", "paper"])
def test_a_task_is_the_same_in_every_profile(tmp_path, profile):
    _, words = flowers(tmp_path)
    assert task_of(*words, f"profile={profile}").delta == 0.1  # the power of ten up to 1/10


def test_class_folders_without_splits_need_a_number_of_test_images(tmp_path):
    root = save_folders(tmp_path / "all", {"": {"a": 6, "b": 4}})
    words = ["task=images", f"data={root}", "dataset_size=7"]
    assert "Expected test examples" in refusal(*words) and "task.test_size" in refusal(*words)
    task, again = (task_of(*words, "task.test_size=3") for _ in range(2))
    assert (len(task.train), len(task.test)) == (7, 3)
    assert torch.equal(task.test.inputs, again.test.inputs)
    both = {image.numpy().tobytes() for image in (*task.train.inputs, *task.test.inputs)}
    assert len(both) == 10  # each image in one of the two
    other = task_of(*words, "task.test_size=3", "task.split_seed=1")
    assert not torch.equal(task.test.inputs, other.test.inputs)
    for wrong in ("0", "10", "-1", "2.5", "true"):
        assert "task.test_size" in refusal(*words, f"task.test_size={wrong}")


@pytest.mark.parametrize("name", ODD)
def test_a_class_may_be_called_anything_that_can_be_printed(tmp_path, name):
    _, words = flowers(tmp_path, {name: 2, "other": 1}, {name: 1, "other": 1})
    task = task_of(*words)
    assert (task.num_classes, task.train.targets.tolist().count(0)) in ((2, 2), (2, 1))


def test_numbers_with_and_without_zeros_are_two_classes_and_are_never_indices(tmp_path):
    _, words = flowers(tmp_path, {"1": 1, "01": 2, "2": 3}, {"2": 1, "1": 1})
    assert task_of(*words).train.targets.tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("other", ["Daisy", " daisy", unicodedata.normalize("NFD", "é"), ""])
def test_classes_that_nobody_can_tell_apart_are_refused(tmp_path, other):
    one = unicodedata.normalize("NFC", other.lower().strip() or "é")
    root = save_folders(tmp_path / "x", {"train": {one: 1}, "test": {"z": 1, other or "É": 1}})
    assert "differ by more than case" in refusal("task=images", f"data={root}", "dataset_size=1")


def test_a_class_that_only_the_test_set_has_is_one_and_so_is_an_empty_folder(tmp_path):
    _, words = flowers(tmp_path, {"a": 1, "b": 1, "empty": 0}, {"c": 1, "a": 1})
    assert task_of(*words).num_classes == 4  # a, b, c, empty


def test_declared_classes_give_the_order_and_refuse_other_folders(tmp_path):
    root, words = flowers(tmp_path)
    task = task_of(*words, "task.classes=[rose,daisy]")
    assert task.train.targets.tolist() == [1, 1, 1, 0, 0]
    line = refusal(*words, "task.classes=[rose,daisies]")
    assert str(root / "t") in line and "'daisy'" in line and "Did you mean daisies?" in line
    assert "task.num_classes=2" in refusal(*words, "task.num_classes=3")
    assert "Expected two classes or more" in refusal(*words, "task.classes=[rose]")
    for wrong in ("rose", "3", "[null,rose]", "[[a],[b]]", "{a:1}"):
        assert "task.classes" in refusal(*words, f"task.classes={wrong}")


@pytest.mark.parametrize("junk", [".DS_Store", "Thumbs.db", "desktop.ini", "._0.png"])
def test_what_desktops_leave_is_no_image(tmp_path, junk):
    root, words = flowers(tmp_path)
    for folder in (root, root / "train", root / "train" / "rose"):
        (folder / junk).write_bytes(b"x")
    (root / "README.txt").write_text("about")
    assert len(task_of(*words).train) == 5


@pytest.mark.parametrize("name", ["notes.txt", "1.npy", "deeper", "2.heic", "noending"])
def test_what_is_no_image_in_a_class_folder_is_refused_by_name(tmp_path, name):
    root, words = flowers(tmp_path)
    odd = root / "train" / "rose" / name
    odd.mkdir() if name == "deeper" else odd.write_bytes(b"x")
    assert name in refusal(*words) and str(odd.parent) in refusal(*words)


def test_an_image_in_no_class_folder_is_refused(tmp_path):
    root, words = flowers(tmp_path)
    picture(99).save(root / "train" / "x.PNG")
    assert "Expected" in refusal(*words)
    alone = tmp_path / "alone"
    alone.mkdir()
    picture(99).save(alone / "x.png")
    assert "a folder for each class" in refusal("task=images", f"data={alone}", "dataset_size=1")


def test_endings_in_capitals_and_links_are_read_and_one_file_twice_is_not(tmp_path):
    root, words = flowers(tmp_path)
    picture(50).save(tmp_path / "x.png")
    (root / "train" / "rose" / "9.PNG").symlink_to(tmp_path / "x.png")
    words[-1] = "dataset_size=6"
    assert len(task_of(*words).train) == 6
    (root / "train" / "daisy" / "8.png").symlink_to(tmp_path / "x.png")
    assert "every file to be read once" in refusal(*words)
    (root / "train" / "daisy" / "8.png").unlink()
    (root / "train" / "daisy" / "8.png").symlink_to(tmp_path / "gone.png")
    assert "8.png" in refusal(*words)


def test_an_image_that_is_trained_and_tested_on_is_refused(tmp_path):
    root, words = flowers(tmp_path)
    (root / "test" / "rose" / "7.png").write_bytes(
        (root / "train" / "daisy" / "0.png").read_bytes()
    )
    line = refusal(*words)
    assert "7.png" in line and "0.png" in line


def test_sizes_are_the_test_images_own_or_asked_for_and_then_images_are_resized(tmp_path):
    root, words = flowers(tmp_path)
    picture(60, (8, 9)).save(root / "train" / "rose" / "8.png")
    words[-1] = "dataset_size=6"
    line = refusal(*words)
    assert "8 x 8 pixels" in line and "8.png" in line and "task.input_shape" in line
    picture(61, (7, 8)).save(root / "test" / "rose" / "8.png")
    assert "test images of one size" in refusal(*words)
    task = task_of(*words, "task.input_shape=[3,6,5]")
    assert task.train.inputs.shape == (6, 3, 6, 5)
    bilinear = Image.open(root / "train" / "daisy" / "0.png").resize((5, 6), Image.BILINEAR)
    assert np.array_equal(task.train.inputs[0], np.asarray(bilinear).transpose(2, 0, 1))
    for wrong in ("[2,8,8]", "[8,8]", "[3,0,8]", "[3,8.5,8]", "[a,b,c]"):
        assert "task.input_shape" in refusal(*words, f"task.input_shape={wrong}")


def test_grey_images_have_one_channel_and_a_coloured_training_image_is_refused(tmp_path):
    root, words = flowers(tmp_path, mode="L")
    assert task_of(*words).input_shape == (1, 8, 8)
    assert task_of(*words, "task.input_shape=[3,8,8]").input_shape == (3, 8, 8)
    picture(60).save(root / "train" / "rose" / "8.png")
    assert "it is in colour" in refusal(*words)


def test_what_8_bits_of_grey_or_colour_cannot_hold_is_refused_by_file(tmp_path):
    root, words = flowers(tmp_path)
    odd = root / "train" / "rose" / "8.png"
    words[-1] = "dataset_size=6"
    clear = picture(1, mode="RGBA")
    clear.putalpha(100)
    deep = Image.fromarray(np.full((8, 8), 60_000, np.uint16))
    moving = {"save_all": True, "append_images": [picture(3)]}
    for image, how in ((clear, {}), (deep, {}), (picture(2), moving)):
        image.save(odd, "PNG", **how)
        assert "8.png" in refusal(*words)
    for damaged in (b"", b"\x89PNG", b"GIF89a", (root / "train/rose/0.png").read_bytes()[:60]):
        odd.write_bytes(damaged)
        assert "8.png" in refusal(*words)
    picture(4, mode="RGBA").save(odd)  # whose every pixel is opaque
    assert len(task_of(*words).train) == 6


BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]


@pytest.mark.parametrize("kind", BYTES, ids=str)
def test_a_parquet_column_of_bare_bytes_of_any_type_is_found(tmp_path, kind):
    held = pa.array([cell["bytes"] for cell in cells(3)], kind)
    path = save_parquet(
        tmp_path / "x.parquet", {"picture": held, "kind": [0, 1, 0], "note": [1] * 3}
    )
    words = ["task.label_column=kind", "task.num_classes=2", "task.test_size=1", "dataset_size=2"]
    assert len(task_of("task=images", f"data={path}", *words).train) == 2


def test_parquet_files_are_read_by_the_classes_that_their_metadata_name(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for split, labels in (("train", [1, 0, 1]), ("test", [0, 1])):
        columns = {"picture": cells(len(labels)), "kind": labels, "idx": [*range(len(labels))]}
        columns["picture"] = cells(9)[: len(labels)] if split == "train" else cells(9)[5:7]
        save_parquet(folder / f"{split}.parquet", columns, {"kind": ["cat", "dog"]})
    words = ["task=images", f"data={folder}", "dataset_size=3"]
    assert task_of(*words).train.targets.tolist() == [1, 0, 1]
    assert task_of(*words, "task.classes=[dog,cat]").train.targets.tolist() == [0, 1, 0]
    assert "Did you mean kind?" in refusal(*words, "task.label_column=kin")
    assert "task.num_classes=2" in refusal(*words, "task.num_classes=10")
    assert "row 0 of" in refusal(*words, "task.image_column=idx")


@pytest.mark.parametrize(
    ("labels", "words", "targets"),
    [
        ([0, 2, 1], ["task.num_classes=3"], [0, 2, 1]),
        ([1.0, 0.0, 1.0], ["task.num_classes=2"], [1, 0, 1]),
        ([1, 2, 3], ["task.classes=[1,2,3]"], [0, 1, 2]),
        ([-1, 1, 1], ["task.classes=[-1,1]"], [0, 1, 1]),
        ([1, 0, 0], ["task.classes=[cat,dog]"], [1, 0, 0]),
        (["cat", "dog", "cat"], ["task.classes=[dog,cat]"], [1, 0, 1]),
        (["01", "1", "1"], ["task.classes=['01','1']"], [0, 1, 1]),
        ([True, False, True], ["task.classes=[false,true]"], [1, 0, 1]),
        (["b", "a", "b"], ["task.classes=read"], [1, 0, 1]),
        ([10, 9, 9], ["task.classes=read"], [1, 0, 0]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["task.classes=[b,a]"], [1, 0, 1]),
        (pa.array(["a", "b", "a"], pa.large_string()), ["task.classes=[b,a]"], [1, 0, 1]),
    ],
    ids=str,
)
def test_labels_of_any_kind_are_read_exactly(tmp_path, labels, words, targets):
    path = save_parquet(tmp_path / "x.parquet", {"image": cells(3), "label": labels})
    test = tmp_path / "test.parquet"
    save_parquet(test, {"image": cells(5)[3:4], "label": labels[:1]})
    path.rename(tmp_path / "train.parquet")
    task = task_of("task=images", f"data={tmp_path}", "dataset_size=3", *words)
    assert task.train.targets.tolist() == targets


@pytest.mark.parametrize(
    ("labels", "words", "said"),
    [
        ([1, 2, 3], ["task.num_classes=3"], "row 2 .* got 3"),
        ([0, 1, 2], [], "classes of column label to be declared.* labels are 0"),
        ([0, -1, 1], ["task.num_classes=2"], "row 1 .*withheld"),
        ([0, 0.5, 1], ["task.num_classes=2"], "row 1 .* got 0.5"),
        ([0, None, 1], ["task.num_classes=2"], "row 1 .* it is missing"),
        ([0.0, float("nan"), 1.0], ["task.num_classes=2"], "row 1 .* it is missing"),
        (["cat", "Cat", "dog"], ["task.classes=[cat,dog]"], "row 1 .* got 'Cat'.*mean cat"),
        ([[0], [1], [0]], ["task.num_classes=2"], r"row 0 .* got \[0\]"),
        ([2**63 - 1, 0, 0], ["task.num_classes=2"], "row 0"),
        (["a", "a", "a"], ["task.classes=read"], "two classes or more"),
    ],
    ids=str,
)
def test_a_label_that_is_no_class_is_refused_by_file_and_row(tmp_path, labels, words, said):
    save_parquet(tmp_path / "train.parquet", {"image": cells(3), "label": labels})
    save_parquet(tmp_path / "test.parquet", {"image": cells(5)[3:4], "label": labels[:1]})
    line = refusal("task=images", f"data={tmp_path}", "dataset_size=3", *words)
    assert re.search(said, line), line


def test_two_folders_of_one_split_are_refused_and_labels_elsewhere_are_said_not_to_be_read(
    tmp_path,
):
    root, words = flowers(tmp_path)
    (root / "metadata.csv").write_text("file_name,label")
    with pytest.warns(UserWarning, match="metadata.csv is not read"):
        task_of(*words)
    save_folders(root, {"Train": {"daisy": 1}})
    assert "one folder for each split" in refusal(*words)
