"""Decode images to 8-bit pixels exactly, or refuse them by row and file.

Nothing is truncated, blended or guessed. Images with more bits per channel, transparent pixels,
colours other than grey and RGB, or several frames are refused: their owner knows best how to
convert them. Palettes and fewer bits are widened, which is exact. The EXIF orientation is applied;
colour profiles are ignored, so that pixels are those stored.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from dpexp.types import ConfigError, one_line

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
"""Formats whose depth and transparency are checked here. Pillow silently reduces others."""

PLAIN = ("1", "L", "P", "RGB")
"""Pillow's modes of at most 8 bits a channel, grey or RGB."""

WITH_ALPHA = ("LA", "PA", "RGBA")

WIDTH, HEIGHT, BITS_PER_SAMPLE, COLOURS, SAMPLE_FORMAT = 256, 257, 258, 320, 339
"""TIFF's tags (Adobe 1992, Sections 5, 8 and 19)."""

UNSIGNED = 1

UPRIGHT = 1
"""EXIF's number of the orientation in which pixels are stored as displayed."""

TRANSPARENT = "has transparent pixels on an unspecified background"


def picture(value: Any, where: str) -> Image.Image:
    """Decode an image.

    Args:
        value: a cell of a column of images: a mapping with `bytes`, or bytes.
        where: row and file, for messages.

    Returns:
        A picture of mode "L" or "RGB".

    Raises:
        ConfigError: the cell holds no image, or one that 8-bit grey or RGB cannot represent.
    """
    encoded = _bytes(value, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts that do not affect pixels
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if encoded.startswith(b"\x89PNG"):
                # load skips some checksums
                Image.open(io.BytesIO(encoded), formats=("PNG",)).verify()
            opened = Image.open(io.BytesIO(encoded), formats=FORMATS)
            reason = _unfit(opened)
            if reason is None:
                palette = opened.palette if opened.mode == "P" else None
                colours = None if palette is None else len(palette.palette) // 3
                opened.load()
                reason = _made_up(encoded, opened, colours)
            if reason is None:
                image, reason = _opaque(opened)
            if reason is None:
                if image.getexif().get(ExifTags.Base.Orientation, UPRIGHT) != UPRIGHT:
                    image = ImageOps.exif_transpose(image)
                mode = "L" if image.mode in ("1", "L") else "RGB"
                return image if image.mode == mode else image.convert(mode)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = f"is too large to decode ({one_line(error)})"
    except Exception as error:  # damaged files raise many kinds of errors
        is_unknown = isinstance(error, UnidentifiedImageError)
        why = f"as none of {', '.join(FORMATS)}" if is_unknown else f"({one_line(error)})"
        raise ConfigError(
            f"Expected an encoded image as {where}; it cannot be decoded {why}. "
            f"Fetch the file again{', or convert it' if is_unknown else ''}."
        ) from None
    raise ConfigError(
        f"Expected an encoded image of 8 bits a channel, grey or RGB, as {where}; it {reason}. "
        "Convert it, or remove it."
    )


def pixels(value: Any, shape: Sequence[int], where: str, *, is_resized: bool = False) -> np.ndarray:
    """Decode an image of a known shape, uint8 [c, h, w].

    A grey image and one with three equal channels convert to each other.

    Args:
        value: a cell of a column of images.
        shape: channels (1 or 3), height, width.
        where: row and file, for messages.
        is_resized: whether another size becomes this one, bilinearly, as public images do; height
            and width are scaled apart.

    Raises:
        ConfigError: as for `picture`; or another size, or colours where grey is expected.
    """
    channels, height, width = shape
    image = picture(value, where)
    if is_resized and image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if image.size != (width, height):
        raise ConfigError(
            f"Expected {height} x {width} pixels as {where}; got {image.height} x {image.width}. "
            "Set task.input_shape."
        )
    values = np.asarray(image)
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
    """Return the bytes of an encoded image in a cell."""
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
        reason = "is empty. Remove it, or fetch it again"
    else:
        reason = f"holds {type(value).__name__}. Set the column of images, or encode them as PNG"
    raise ConfigError(f"Expected the bytes of an encoded image as {where}; it {reason}.")


def _unfit(image: ImageFile) -> str | None:
    """Return why 8-bit grey or RGB cannot represent an opened image; None if it can."""
    if min(image.size) < 1:
        return "has no pixels"
    if _bits(image) > 8:
        return "has more than 8 bits a channel"
    if isinstance(image, TiffImageFile) and image.mode in ("P", "PA"):
        table = np.array(image.tag_v2[COLOURS])
        if (table % 257).any() and (table % 256).any():  # both ways to widen 8 bits are in use
            return "has a palette of more than 8 bits a channel"
    if image.mode == "P" and image.palette is None:
        return "has no palette"
    if image.mode not in (*PLAIN, *WITH_ALPHA):
        return f"has pixels of mode {image.mode}"
    if (pictures := getattr(image, "n_frames", 1)) > 1:
        return f"holds {pictures} pictures"
    if image.format == "GIF" and any(t.extents != (0, 0, *image.size) for t in image.tile):
        return TRANSPARENT  # outside the frame
    return None


def _made_up(encoded: bytes, loaded: ImageFile, colours: int | None) -> str | None:
    """Return which pixels Pillow silently filled in because the file lacks them; None if none.

    A PNG or TIFF may be valid but short. Decoding it again onto white instead of black changes the
    pixels that it lacks.
    """
    if colours is not None and np.asarray(loaded).max() >= colours:
        return f"has pixels beyond its palette of {colours} colours"
    if loaded.format not in ("PNG", "TIFF"):
        return None
    again = Image.open(io.BytesIO(encoded), formats=(loaded.format,))
    size, bands = again.size, len(again.getbands())
    if isinstance(again, TiffImageFile):  # as stored, before it is turned
        size = again.tag_v2[WIDTH], again.tag_v2[HEIGHT]
    again.im = Image.new(again.mode, size, 255 if bands == 1 else (255,) * bands).im
    again.load()
    return None if again.tobytes() == loaded.tobytes() else "lacks some of its pixels"


def _bits(image: ImageFile) -> int:
    """Return the bits a channel has in the file; Pillow's mode may have fewer."""
    if image.mode.startswith(("I", "F")):
        return 16
    if image.format == "PNG":
        return 16 if any(";16" in str(tile.args) for tile in image.tile) else 8
    if isinstance(image, TiffImageFile):
        kinds = {*image.tag_v2.get(SAMPLE_FORMAT, (UNSIGNED,))}
        bits = max(image.tag_v2.get(BITS_PER_SAMPLE, (1,)))
        return bits if kinds == {UNSIGNED} else 16
    return 8


def _opaque(image: Image.Image) -> tuple[Image.Image, str | None]:
    """Drop an alpha channel that is fully opaque; otherwise return what is wrong."""
    if not image.has_transparency_data:
        return image, None
    with_alpha = image.convert("RGBA")
    if np.asarray(with_alpha.getchannel("A")).min() < 255:
        return image, TRANSPARENT
    return with_alpha.convert("RGB"), None
