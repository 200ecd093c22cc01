"""The decoder of pictures: a program that reads pictures from its input, one at a time.

Pictures come from outside, and decoders written in C have had memory errors. The program runs in a
separate process with limits on memory and time (``decoding.py``), and imports Pillow only. For
each picture it answers with a line of JSON and the bytes of what browsers show: the picture itself,
or its conversion, and smaller copies for small screens.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import warnings
from collections.abc import Iterator
from typing import BinaryIO
from xml.parsers import expat

from PIL import Image, ImageCms, ImageOps, ImageSequence, JpegImagePlugin

__all__ = ["WIDTHS", "decode", "main"]

# Widths of the smaller copies in pixels: phones have 2 to 3 of them per CSS pixel.
WIDTHS = (480, 960, 1600)
_SMALL_BYTES = 60_000
_FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/gif": "GIF",
    "image/webp": "WEBP",
    "image/bmp": "BMP",
    "image/avif": "AVIF",
    "image/heic": "HEIF",
    "image/tiff": "TIFF",
}
_LOSSLESS = ("PNG", "BMP", "TIFF", "GIF")
_MEMORY = 3 * 2**30
_ANIMATION_PIXELS = 20  # times the limit of one picture


class CannotBeShownError(ValueError):
    """A picture cannot be shown, for the reason in the message."""


def decode(data: bytes, kind: str, pixels: int) -> list[tuple[str, int, bytes]]:
    """Return type, width and bytes of a picture for browsers and of its smaller copies.

    Raises
    ------
    CannotBeShownError
        The picture is truncated, corrupt, too large, or of a kind that cannot be decoded.
    """
    if kind == "image/svg+xml":
        _check_svg(data)
        return [(kind, 0, data)]
    with _opened(data, kind, pixels) as image:
        image.verify()  # checksums, which decoding alone does not look at
    with _opened(data, kind, pixels) as image:
        animated = getattr(image, "n_frames", 1) > 1 and image.format in (
            "GIF",
            "PNG",
            "WEBP",
            "AVIF",
        )
        if animated:
            return [_animation(image, data, kind, pixels)]
        image.load()
        return _still(image, data, kind)


def _opened(data: bytes, kind: str, pixels: int) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=[_FORMATS[kind]])
    width, height = image.size
    if width * height > pixels:
        raise CannotBeShownError(
            f"it has {width:,} × {height:,} pixels, and at most {pixels:,} in all are taken"
        )
    return image


def _still(image: Image.Image, data: bytes, kind: str) -> list[tuple[str, int, bytes]]:
    turned = ImageOps.exif_transpose(image)
    upright = image.getexif().get(0x0112, 1) in (0, 1)
    as_it_is = upright and image.mode != "CMYK" and kind in _SHOWN
    shown = _plain(turned, _icc(image))
    lossless = image.format in _LOSSLESS
    if as_it_is:
        main = (kind, image.width, data)
    elif lossless or _has_alpha(shown):
        main = ("image/png", shown.width, _saved(shown, "PNG", optimize=False))
    else:
        main = ("image/jpeg", shown.width, _saved(shown, "JPEG", **_quality(image)))
    found = [main]
    if kind != "image/gif" and len(main[2]) > _SMALL_BYTES:
        found += _smaller(shown, lossless=lossless or _has_alpha(shown), than=len(main[2]))
    return found


def _quality(image: Image.Image) -> dict[str, object]:
    """Return the options of a JPEG file that is as good as the one it is made from."""
    if image.mode in ("L", "RGB") and isinstance(image, JpegImagePlugin.JpegImageFile):
        sampling = JpegImagePlugin.get_sampling(image)
        # 4:2:2 would be the wrong way round in a picture that was turned.
        return {"qtables": image.quantization, "subsampling": 2 if sampling == 2 else 0}
    return {"quality": 95, "subsampling": 0}


# Kinds that all browsers show; their pixels are kept bit by bit.
_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")


def _smaller(image: Image.Image, *, lossless: bool, than: int) -> Iterator[tuple[str, int, bytes]]:
    """Yield smaller copies, those that save anything."""
    for width in WIDTHS:
        if width > 0.8 * image.width:
            return
        size = width, max(1, round(image.height * width / image.width))
        small = image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        small.info = image.info
        if lossless:
            made = "image/webp", width, _saved(small, "WEBP", quality=92, method=2)
        else:
            made = "image/jpeg", width, _saved(small, "JPEG", quality=85)
        if len(made[2]) < than:
            yield made


def _animation(image: Image.Image, data: bytes, kind: str, pixels: int) -> tuple[str, int, bytes]:
    """Return an animation whose frames have all been decoded."""
    left = pixels * _ANIMATION_PIXELS
    for frame in ImageSequence.Iterator(image):
        frame.load()
        left -= frame.width * frame.height
        if left < 0:
            raise CannotBeShownError("its frames have too many pixels together")
    if kind in _SHOWN:
        return kind, image.width, data
    stream = io.BytesIO()
    image.seek(0)
    image.save(stream, "WEBP", save_all=True, quality=90, exif=b"", xmp=b"")
    return "image/webp", image.width, stream.getvalue()


def _icc(image: Image.Image) -> bytes | None:
    found = image.info.get("icc_profile")
    return found if isinstance(found, bytes) and found else None


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA")


def _plain(image: Image.Image, icc: bytes | None) -> Image.Image:
    """Return the picture in a mode that JPEG, PNG and WebP store, with its color profile."""
    mode = image.mode
    if mode == "CMYK":
        made = _from_cmyk(image, icc)
        icc = None
    elif mode.startswith("I;16") or mode == "I":
        # 16 bits per pixel: Pillow's own conversion clips at 255.
        top = 257.0 if mode.startswith("I;16") else max(257.0, image.getextrema()[1] / 255.0)  # type: ignore[operator]
        made = image.convert("F").point(lambda value: value * (1 / top)).convert("L")
    elif mode == "F":
        low, high = image.getextrema()
        scale = 255.0 / (high - low) if high > low else 0.0  # type: ignore[operator]
        made = image.point(lambda value: value * scale + (-low * scale)).convert("L")  # type: ignore[operator]
    elif mode in ("L", "RGB", "RGBA"):
        made = image
    elif mode == "1":
        made = image.convert("L")
    elif mode in ("LA", "PA", "La", "RGBa") or "transparency" in image.info:
        made = image.convert("RGBA")
    else:
        made = image.convert("RGB")
    if mode != made.mode and mode in ("LAB", "YCbCr", "HSV"):
        icc = None
    made.info = {} if icc is None else {"icc_profile": icc}
    return made


def _from_cmyk(image: Image.Image, icc: bytes | None) -> Image.Image:
    if icc is not None:
        try:
            made = ImageCms.profileToProfile(
                image, io.BytesIO(icc), ImageCms.createProfile("sRGB"), outputMode="RGB"
            )
        except (ImageCms.PyCMSError, OSError):
            made = None
        if made is not None:
            return made
    return image.convert("RGB")


def _saved(image: Image.Image, form: str, **options: object) -> bytes:
    """Return an encoded picture with its color profile, and no other metadata."""
    stream = io.BytesIO()
    if "icc_profile" in image.info:
        options["icc_profile"] = image.info["icc_profile"]
    image.save(stream, form, **options)
    return stream.getvalue()


def _check_svg(data: bytes) -> None:
    """Raise CannotBeShownError unless browsers show this SVG as a picture."""
    names: list[str] = []
    parser = expat.ParserCreate(namespace_separator=" ")

    def begin(name: str, attributes: dict[str, str]) -> None:
        if not names:
            names.append(name)

    parser.StartElementHandler = begin
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise CannotBeShownError(f"it is not valid XML ({error})") from None
    if names != ["http://www.w3.org/2000/svg svg"]:
        raise CannotBeShownError('its first tag lacks xmlns="http://www.w3.org/2000/svg"')


def _answer(data: bytes, kind: str, pixels: int) -> tuple[str, list[tuple[str, int, bytes]]]:
    """Return the reason why a picture cannot be shown, or ``""`` and what is shown."""
    try:
        return "", decode(data, kind, pixels)
    except CannotBeShownError as error:
        return str(error), []
    except MemoryError:
        return "it needs too much memory", []
    except Image.DecompressionBombError:
        return "it has too many pixels", []
    except Exception as error:  # whatever decoders raise for bytes that somebody made up
        said = " ".join(str(error).split())[:200]
        if "cannot identify image file" in said:
            said = "it is not a complete picture"
        return f"it is truncated or corrupt ({said or type(error).__name__})", []


def _limit() -> None:
    """Limit the memory of this process, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):  # macOS has no such limit
        return


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Serve pictures until the input ends."""
    while len(head := source.read(8)) == 8:
        size, length = struct.unpack(">II", head)
        order = json.loads(source.read(length))
        reason, found = _answer(source.read(size), order["kind"], order["pixels"])
        shown = [[kind, width, len(data)] for kind, width, data in found]
        target.write(json.dumps({"reason": reason, "shown": shown}).encode() + b"\n")
        for _, _, data in found:
            target.write(data)
        target.flush()


def _begin() -> None:
    _limit()
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None  # the size is checked against the limit of the service
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False, depth_images=False)
    main(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    _begin()
