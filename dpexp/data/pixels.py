"""Encoded images as pixels of 8 bits: each as it is stored, or refused by row and file.

Nothing is cut, mixed or guessed. More bits a channel, pixels that shine through, colours other than
grey and RGB, and files of several pictures are refused; the reader of the file knows better what to
make of them. Palettes and fewer bits are widened, which is exact. An orientation in the file's EXIF
part is followed; a colour profile is not, as pixels are what is stored.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from dpexp.types import ConfigError, one_line

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
"""Those whose depth and transparency are known here. Others cut them without a word."""

PLAIN = ("1", "L", "P", "RGB")
"""Pillow's modes of at most 8 bits a channel, grey or RGB."""

WITH_ALPHA = ("LA", "PA", "RGBA")

WIDTH, HEIGHT, BITS_PER_SAMPLE, COLOURS, SAMPLE_FORMAT = 256, 257, 258, 320, 339
"""TIFF's tags (Adobe 1992, Sections 5, 8 and 19)."""

UNSIGNED = 1

UPRIGHT = 1
"""EXIF's number of the orientation in which pixels are stored as they are seen."""

TRANSPARENT = "has transparent pixels, and what is behind them is not said"


def picture(value: Any, where: str) -> Image.Image:
    """Decode an image.

    Args:
        value: a cell of a column of images: a mapping with `bytes`, or bytes.
        where: which row of which file.

    Returns:
        A picture of mode "L" or "RGB".

    Raises:
        ConfigError: the cell holds no image, or one that 8 bits of grey or RGB cannot say.
    """
    encoded = _bytes(value, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parts that say nothing about pixels
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if encoded.startswith(b"\x89PNG"):
                Image.open(io.BytesIO(encoded), formats=("PNG",)).verify()  # load leaves out sums
            found = Image.open(io.BytesIO(encoded), formats=FORMATS)
            reason = _unfit(found)
            if reason is None:
                colours = len(found.palette.palette) // 3 if found.mode == "P" else None
                found.load()
                reason = _made_up(encoded, found, colours)
            if reason is None:
                found, reason = _opaque(found)
            if reason is None:
                if found.getexif().get(ExifTags.Base.Orientation, UPRIGHT) != UPRIGHT:
                    found = ImageOps.exif_transpose(found)
                mode = "L" if found.mode in ("1", "L") else "RGB"
                return found if found.mode == mode else found.convert(mode)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = f"is larger than is decoded here ({one_line(error)})"
    except Exception as error:  # a damaged file fails in as many ways as it can be damaged
        is_unknown = isinstance(error, UnidentifiedImageError)
        why = f"as none of {', '.join(FORMATS)}" if is_unknown else f"({one_line(error)})"
        raise ConfigError(
            f"Expected an encoded image as {where}; it cannot be decoded {why}. "
            f"Fetch the file again{', or convert it' if is_unknown else ''}."
        ) from None
    raise ConfigError(
        f"Expected an encoded image of 8 bits a channel, grey or RGB, as {where}; it {reason}. "
        "Convert it, or leave it out of the file."
    )


def pixels(value: Any, shape: Sequence[int], where: str) -> np.ndarray:
    """Decode an image of a known shape, uint8 [c, h, w].

    Grey stands for three equal channels, and these for grey.

    Args:
        value: a cell of a column of images.
        shape: channels (1 or 3), height, width.
        where: which row of which file.

    Raises:
        ConfigError: as for `picture`; another size, or colours where grey is wanted.
    """
    channels, height, width = shape
    found = picture(value, where)
    if found.size != (width, height):
        raise ConfigError(
            f"Expected {height} x {width} pixels as {where}; got {found.height} x {found.width}. "
            "Set task.input_shape."
        )
    values = np.asarray(found)
    if values.ndim == 2:
        return np.broadcast_to(values, (channels, height, width))
    if channels == 1:
        if (values != values[..., :1]).any():
            raise ConfigError(
                f"Expected a grey image as {where}; it is in colour. Set task.input_shape to "
                "three channels, or convert it."
            )
        return values[None, ..., 0]
    return values.transpose(2, 0, 1)


def _bytes(value: Any, where: str) -> bytes:
    """Take an encoded image out of its cell."""
    path = value if isinstance(value, str) else None
    if isinstance(value, dict):
        value, path = value.get("bytes"), value.get("path")
    if isinstance(value, bytes) and value:
        return value
    if path:
        reason = (
            f"names a file, {path}, whose bytes are not in the column. Write them there, as "
            "to_parquet of the datasets library does"
        )
    elif value is None or value == b"":
        reason = "is empty. Leave the row out of the file"
    else:
        reason = f"holds {type(value).__name__}. Set the column of images, or encode them as PNG"
    raise ConfigError(f"Expected the bytes of an encoded image as {where}; it {reason}.")


def _unfit(found: Image.Image) -> str | None:
    """Say why an image that was opened cannot be told in 8 bits of grey or RGB."""
    if min(found.size) < 1:
        return "has no pixels"
    if _bits(found) > 8:
        return "has more than 8 bits a channel"
    if found.format == "TIFF" and found.mode in ("P", "PA"):
        table = np.array(found.tag_v2[COLOURS])
        if (table % 257).any() and (table % 256).any():  # both ways to widen 8 bits are in use
            return "has a palette of more than 8 bits a channel"
    if found.mode == "P" and found.palette is None:
        return "has no palette"
    if found.mode not in (*PLAIN, *WITH_ALPHA):
        return f"has pixels of mode {found.mode}"
    if getattr(found, "n_frames", 1) > 1:
        return f"holds {found.n_frames} pictures"
    if found.format == "GIF" and any(t.extents != (0, 0, *found.size) for t in found.tile):
        return TRANSPARENT  # beside the frame
    return None


def _made_up(encoded: bytes, loaded: Image.Image, colours: int | None) -> str | None:
    """Say which pixels the file does not give: Pillow fills them in without a word.

    PNG and TIFF may be sound and short. Decoded on a white canvas in place of a black one, what
    they leave out comes out otherwise.
    """
    if colours is not None and np.asarray(loaded).max() >= colours:
        return f"has pixels beyond its palette of {colours} colours"
    if loaded.format not in ("PNG", "TIFF"):
        return None
    again = Image.open(io.BytesIO(encoded), formats=(loaded.format,))
    size, bands = again.size, len(again.getbands())
    if again.format == "TIFF":  # as stored, before it is turned
        size = again.tag_v2[WIDTH], again.tag_v2[HEIGHT]
    again.im = Image.new(again.mode, size, 255 if bands == 1 else (255,) * bands).im
    again.load()
    return None if again.tobytes() == loaded.tobytes() else "lacks some of its pixels"


def _bits(found: Image.Image) -> int:
    """Tell how many bits a channel has in the file, where Pillow's mode does not say."""
    if found.mode.startswith(("I", "F")):
        return 16
    if found.format == "PNG":
        return 16 if any(";16" in str(tile.args) for tile in found.tile) else 8
    if found.format == "TIFF":
        kinds = {*found.tag_v2.get(SAMPLE_FORMAT, (UNSIGNED,))}
        bits = max(found.tag_v2.get(BITS_PER_SAMPLE, (1,)))
        return bits if kinds == {UNSIGNED} else 16
    return 8


def _opaque(found: Image.Image) -> tuple[Image.Image, str | None]:
    """Drop transparency that hides nothing; say so where it does."""
    if not found.has_transparency_data:
        return found, None
    seen = found.convert("RGBA")
    if seen.getchannel("A").getextrema()[0] < 255:
        return found, TRANSPARENT
    return seen.convert("RGB"), None
