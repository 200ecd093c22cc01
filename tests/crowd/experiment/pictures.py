"""Pictures of every kind that people have, and a sound; made by Pillow."""

import io
import wave

import numpy as np
from PIL import Image
from pillow_heif import register_heif_opener

register_heif_opener()

WHERE = "SECRET-PLACE"


def scene(width=96, height=64):
    """Squares of random colors: no two quarters are alike."""
    rng = np.random.default_rng(0)
    squares = rng.integers(0, 256, (-(-height // 16), -(-width // 16), 3), dtype=np.uint8)
    pixels = np.kron(squares, np.ones((16, 16, 1), dtype=np.uint8))
    return Image.fromarray(pixels[:height, :width])


def saved(image, form, **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def exif(orientation=1):
    """What phones write: orientation, camera and place."""
    found = Image.Exif()
    found[0x0112] = orientation
    found[0x010F] = WHERE
    found.get_ifd(0x8825)[1] = "N"
    return found


def gradient():
    """16 bits per pixel."""
    return Image.fromarray(np.linspace(0, 65535, 96 * 64).reshape(64, 96).astype(np.uint16))


def animated(form, **options):
    image = scene().convert("P") if form == "GIF" else scene()
    options = {"duration": 100, "loop": 0, **options}
    return saved(image, form, save_all=True, append_images=[image.rotate(180)], **options)


def sound(seconds=0.2):
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        beats = np.sin(np.arange(int(8000 * seconds)) / 3) * 9000
        file.writeframes(beats.astype("<i2").tobytes())
    return stream.getvalue()
