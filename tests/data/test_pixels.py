"""Images of every kind that a column may hold: pixel for pixel, or refused by row and file."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageOps

from dpexp import cli
from dpexp.data.images import hub_images
from dpexp.data.pixels import picture, pixels
from dpexp.data.public import hub_images as public_images
from dpexp.types import ConfigError

WHERE = "row 3 of a file"
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
OTHER = COLOUR[::-1].copy()
GREY = COLOUR[..., 0].copy()
ALPHA = np.full((4, 6), 255, np.uint8)
ALPHA[1, 2] = 254
FEW = Image.fromarray(COLOUR).quantize(4)


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(stream, form, **options)
    return stream.getvalue()


def chunk(kind, content):
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(depth, colour, width, height, rows, *more):
    """Write a PNG file as its standard has it, which Pillow cannot do for all depths."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    lines = b"".join(b"\0" + row for row in rows)
    parts = [(b"IHDR", header), *more, (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(bits, photometric, strips, **more):
    """Write a TIFF file of strips (Adobe 1992, Section 2)."""
    offsets = np.cumsum([8, *map(len, strips)]).tolist()
    at = offsets.pop()
    tags = {256: [6], 257: [4], 258: bits, 259: [1], 262: [photometric], 273: offsets}
    tags |= {277: [len(bits)], 278: [4], 279: [len(strip) for strip in strips]}
    tags |= {int(tag[1:]): values for tag, values in more.items()}
    body, behind = b"", b""
    start = at + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        raw = struct.pack(f"<{len(values)}H", *values)
        if len(raw) > 4:
            raw, behind = struct.pack("<I", start + len(behind)), behind + raw
        body += struct.pack("<HHI4s", tag, 3, len(values), raw)
    head = b"II*\0" + struct.pack("<I", at)
    return head + b"".join(strips) + struct.pack("<H", len(tags)) + body + bytes(4) + behind


def sixteen(colour, channels):
    rows = RNG.integers(0, 256, (4, 6 * channels * 2), dtype=np.uint8)
    return png(16, colour, 6, 4, [row.tobytes() for row in rows])


def turned(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def read(content):
    """Decode, whatever Pillow has to say of a file turned into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return np.asarray(picture({"bytes": content, "path": None}, WHERE))


@given(
    image=arrays.arrays(
        np.uint8,
        st.sampled_from([(3, 5), (3, 5, 3), (1, 1), (2, 1, 3)]),
        elements=st.integers(0, 255),
    ),
    form=st.sampled_from(["PNG", "BMP", "TIFF", "WEBP"]),
)
def test_eight_bits_come_out_as_they_went_in(image, form):
    lossless = {"lossless": True} if form == "WEBP" else {}
    found = read(encoded(image, form, **lossless))
    expected = image if found.ndim == image.ndim else np.repeat(image[..., None], 3, 2)
    assert np.array_equal(found, expected)


@given(
    image=arrays.arrays(np.uint16, (3, 5), elements=st.integers(0, 2**16 - 1)),
    form=st.sampled_from(["PNG", "TIFF"]),
)
def test_sixteen_bits_of_grey_are_refused_whatever_they_are(image, form):
    with pytest.raises(ConfigError, match=f"{WHERE}; it has more than 8 bits a channel"):
        read(encoded(image, form))


PLANES = [plane.tobytes() for plane in COLOUR.transpose(2, 0, 1)]
RAMP = [value for _ in range(3) for value in range(256)]  # a palette of greys
THREE = np.dstack([GREY] * 3)
FOUR = [(row % 4).tobytes() for row in GREY]
EXACT = {
    "TIFF in three planes": (tiff([8] * 3, 2, PLANES, t284=[2]), COLOUR),
    "TIFF, palette by 257": (tiff([8], 3, [GREY.tobytes()], t320=[257 * v for v in RAMP]), THREE),
    "TIFF, palette by 256": (tiff([8], 3, [GREY.tobytes()], t320=[256 * v for v in RAMP]), THREE),
    "one bit": (png(1, 0, 4, 2, [b"\x50", b"\xa0"]), [[0, 255, 0, 255], [255, 0, 255, 0]]),
    "two bits": (png(2, 0, 4, 1, [b"\x1b"]), [[0, 85, 170, 255]]),
    "four bits": (png(4, 0, 4, 1, [b"\x01\x2f"]), [[0, 17, 34, 255]]),
    "palette": (encoded(FEW), np.asarray(FEW.convert("RGB"))),
    "palette of TIFF": (encoded(FEW, "TIFF"), np.asarray(FEW.convert("RGB"))),
    "GIF": (encoded(FEW, "GIF"), np.asarray(FEW.convert("RGB"))),
    "bits of TIFF": (encoded(Image.fromarray(GREY > 99), "TIFF"), 255 * (GREY > 99)),
    "alpha that hides nothing": (encoded(Image.fromarray(COLOUR).convert("RGBA")), COLOUR),
    "a transparent colour that is not there": (
        png(8, 2, 2, 1, [b"\x01\x02\x03\x04\x05\x06"], (b"tRNS", b"\0\x09\0\x09\0\x09")),
        [[[1, 2, 3], [4, 5, 6]]],
    ),
    "a palette without holes": (
        encoded(FEW, transparency=b"\xff" * 4),
        np.asarray(FEW.convert("RGB")),
    ),
    "damaged EXIF": (encoded(COLOUR, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05abc"), COLOUR),
    "a colour profile": (encoded(COLOUR, icc_profile=b"any"), COLOUR),
}


@pytest.mark.parametrize("kind", EXACT)
def test_what_eight_bits_can_say_is_read(kind):
    content, expected = EXACT[kind]
    assert np.array_equal(read(content), expected)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("number", range(1, 9))
def test_an_image_is_turned_as_its_file_says(number, form):
    lossless = {"lossless": True} if form == "WEBP" else {}
    found = read(encoded(COLOUR, form, exif=turned(number), **lossless))
    turns = {  # EXIF 2.3, Section 4.6.4: where row 0 and column 0 are seen
        1: COLOUR,
        2: COLOUR[:, ::-1],
        3: COLOUR[::-1, ::-1],
        4: COLOUR[::-1],
        5: COLOUR.transpose(1, 0, 2),
        6: COLOUR[::-1].transpose(1, 0, 2),
        7: COLOUR[::-1, ::-1].transpose(1, 0, 2),
        8: COLOUR[:, ::-1].transpose(1, 0, 2),
    }
    assert np.array_equal(found, turns[number])


BIG = encoded(RNG.integers(0, 256, (60, 50, 3), dtype=np.uint8))
PHOTO = encoded(RNG.integers(0, 256, (60, 50, 3), dtype=np.uint8), "JPEG")
FLIPPED = bytearray(BIG)
FLIPPED[len(BIG) // 2] ^= 1
WIDE = {"save_all": True, "append_images": [Image.fromarray(OTHER)]}
BEHIND = "transparent pixels"
DEEP = "more than 8 bits"
DAMAGED = "cannot be decoded .*Fetch the file again"
LACKS = "lacks some of its pixels"
REFUSED = {
    "PNG of too few rows": (png(8, 0, 6, 4, [row.tobytes() for row in GREY[:2]]), LACKS),
    "PNG of too few colours": (png(8, 3, 6, 4, FOUR, (b"PLTE", bytes(9))), "palette of 3 colours"),
    "PNG without its palette": (png(8, 3, 6, 4, FOUR), "no palette|palette of|cannot be decoded"),
    "TIFF without two planes": (tiff([8] * 3, 2, PLANES[:1], t284=[2]), LACKS),
    "TIFF, palette of 16 bits": (tiff([8], 3, [GREY.tobytes()], t320=RAMP), DEEP),
    "grey of 16 bits, big-endian": (
        encoded(Image.fromarray(GREY.astype(np.uint16)).convert("I;16B"), "TIFF"),
        DEEP,
    ),
    "grey of 32 bits": (encoded(GREY.astype(np.int32), "TIFF"), DEEP),
    "grey of floats": (encoded(GREY.astype(np.float32), "TIFF"), DEEP),
    "RGB of 16 bits": (sixteen(2, 3), DEEP),
    "RGBA of 16 bits": (sixteen(6, 4), DEEP),
    "grey and alpha of 16 bits": (sixteen(4, 2), DEEP),
    "RGBA": (encoded(np.dstack([COLOUR, ALPHA])), BEHIND),
    "RGBA of TIFF": (encoded(np.dstack([COLOUR, ALPHA]), "TIFF"), BEHIND),
    "RGBA of WebP": (encoded(np.dstack([COLOUR, ALPHA]), "WEBP", lossless=True), BEHIND),
    "grey and alpha": (encoded(np.dstack([GREY, ALPHA])), BEHIND),
    "a transparent grey": (encoded(GREY, transparency=int(GREY[0, 0])), BEHIND),
    "a transparent colour": (encoded(COLOUR, transparency=tuple(map(int, COLOUR[0, 0]))), BEHIND),
    "a transparent bit": (png(1, 0, 2, 1, [b"\x40"], (b"tRNS", b"\0\1")), BEHIND),
    "a hole in a palette": (encoded(FEW, transparency=FEW.getpixel((0, 0))), BEHIND),
    "half a hole in a palette": (encoded(FEW, transparency=b"\xfe" * 4), BEHIND),
    "a hole in a GIF": (encoded(FEW, "GIF", transparency=FEW.getpixel((0, 0))), BEHIND),
    "CMYK": (encoded(Image.fromarray(COLOUR).convert("CMYK"), "JPEG"), "mode CMYK"),
    "YCbCr": (encoded(Image.fromarray(COLOUR).convert("YCbCr"), "TIFF"), "mode YCbCr"),
    "LAB": (encoded(Image.fromarray(COLOUR).convert("LAB"), "TIFF"), "mode LAB"),
    "a film of PNG": (encoded(COLOUR, **WIDE), "holds 2 pictures"),
    "a film of GIF": (encoded(COLOUR, "GIF", **WIDE), "holds 2 pictures"),
    "a film of WebP": (encoded(COLOUR, "WEBP", **WIDE), "holds 2 pictures"),
    "pages": (encoded(COLOUR, "TIFF", **WIDE), "holds 2 pictures"),
    "a format that cuts": (encoded(COLOUR, "PPM"), "none of PNG, JPEG, .*convert it"),
    "JPEG 2000": (encoded(COLOUR, "JPEG2000"), "none of PNG, JPEG, .*convert it"),
    "half a PNG": (BIG[: len(BIG) // 2], DAMAGED),
    "a PNG without its end": (BIG[:-12], DAMAGED),
    "a flipped bit": (bytes(FLIPPED), DAMAGED),
    "half a JPEG": (PHOTO[: len(PHOTO) // 2], DAMAGED),
    "text": (b"GOOD MORNING", DAMAGED),
    "no pixels": (png(8, 0, 0, 0, []), DAMAGED),
    "a bomb": (png(8, 2, 30_000, 30_000, []), "too large to decode"),
    "a small bomb, of which Pillow only warns": (png(8, 2, 10_000, 10_000, []), "too large"),
    "no bytes": (b"", "is empty"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_eight_bits_cannot_say_is_refused_in_a_line(kind):
    content, expected = REFUSED[kind]
    with pytest.raises(ConfigError, match=f"{WHERE}; it .*{expected}") as raised:
        read(content)
    assert "\n" not in str(raised.value) and "0x" not in str(raised.value)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, "is empty. Remove it, or fetch it again"),
        ({"bytes": None, "path": None}, "is empty"),
        ("cats/1.png", "names a file, cats/1.png, whose bytes are not in the column"),
        ({"bytes": None, "path": "cats/1.png"}, "names a file, cats/1.png"),
        ([[0, 1], [2, 3]], "holds list"),
        (7, "holds int"),
    ],
)
def test_a_cell_without_bytes_says_what_it_has_instead(cell, expected):
    with pytest.raises(ConfigError, match=f"{WHERE}; it {expected}"):
        picture(cell, WHERE)


def test_grey_stands_for_equal_channels_and_nothing_else():
    equal = np.repeat(GREY[..., None], 3, 2)
    assert np.array_equal(pixels(encoded(equal), (1, 4, 6), WHERE), GREY[None])
    assert np.array_equal(pixels(encoded(GREY), (3, 4, 6), WHERE), equal.transpose(2, 0, 1))
    equal[2, 3, 1] ^= 1
    with pytest.raises(ConfigError, match=f"grey image as {WHERE}; it is in colour"):
        pixels(encoded(equal), (1, 4, 6), WHERE)


def test_a_turned_image_has_the_size_it_is_seen_in():
    content = encoded(COLOUR, exif=turned(6))
    assert np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content)))).shape == (6, 4, 3)
    assert pixels(content, (3, 6, 4), WHERE).shape == (3, 6, 4)
    with pytest.raises(ConfigError, match="Expected 4 x 6 pixels .* got 6 x 4"):
        pixels(content, (3, 4, 6), WHERE)


# Through the loaders


@pytest.fixture
def with_row(conf, hub_folder):
    """Writes a set of which one row, in the second file, is the given bytes."""

    def write(settings, split, content):
        root, _ = hub_folder(settings, {"train": 12, "test": 6}, shards=2)
        folder = Path(root) / settings["repo"] / settings["config"]
        path = folder / f"{split}-00001-of-00002.parquet"
        table = pa.parquet.read_table(path)
        cells = table[settings["image_column"]].to_pylist()
        cells[2] = {"bytes": content, "path": None}
        field = table.schema.field(settings["image_column"])
        column = pa.chunked_array([pa.array(cells, field.type)])
        pa.parquet.write_table(table.set_column(0, field, column), path)
        return root, path

    return write


@pytest.mark.parametrize("kind", ["grey of 16 bits, big-endian", "a bomb", "RGBA"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_tasks_loader_names_row_and_file(kind, split, conf, with_row):
    settings = conf("mnist", dataset_size=12)
    root, path = with_row(settings, split, REFUSED[kind][0])
    with pytest.raises(ConfigError, match=f"row 2 of {path}"):
        hub_images(**{**settings, "data_root": root})


@pytest.mark.parametrize("kind", ["RGB of 16 bits", "a small bomb, of which Pillow only warns"])
def test_a_public_sets_loader_names_row_and_file(kind, conf, cifar, with_row):
    said = yaml.safe_load((cli.CONF / "public" / "imagenet32.yaml").read_text())
    said.pop("_target_")
    files = {"input_shape": [3, 32, 32], "num_classes": 10, "label_column": "unused"}
    root, path = with_row({**said, **files}, "train", REFUSED[kind][0])
    with pytest.raises(ConfigError, match=f"row 2 of {path}"), warnings.catch_warnings():
        warnings.simplefilter("error")
        public_images(cifar(), **{**said, "size": 12, "data_root": root})
    with pytest.raises(ConfigError, match=r"public.size in \[1, 12\]"):
        public_images(cifar(), **{**said, "size": 13, "data_root": root})


@pytest.mark.parametrize("shape", [[3, 32], [2, 32, 32], [3, 0, 32]])
def test_a_shape_that_is_no_images_is_refused(shape, cifar):
    with pytest.raises(ConfigError, match="Expected task.input_shape to be channels"):
        cifar(input_shape=shape)
