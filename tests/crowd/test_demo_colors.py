"""The colors of the demo."""

import numpy as np
from matplotlib.image import imread

from accelerando.crowd._demo_colors import color_disc, png


def test_the_colors_are_a_disc_of_different_colors():
    disc = color_disc()
    assert len({color.rgb for color in disc}) == len(disc) == 24
    radii = {round(float(np.hypot(*color.position)), 6) for color in disc}
    assert radii == {0.0, 17.0, 34.0}


def test_the_disc_starts_with_a_gray_of_the_given_lightness():
    gray = color_disc()[0]
    assert gray.name == "gray"
    assert len(set(gray.rgb)) == 1
    assert 160 < gray.rgb[0] < 170  # L* = 68 in sRGB


def test_a_png_shows_the_color(tmp_path):
    file = tmp_path / "square.png"
    file.write_bytes(png((10, 200, 30), size=4))
    pixels = imread(file)
    assert pixels.shape[:2] == (4, 4)
    np.testing.assert_allclose(pixels[..., :3] * 255, np.broadcast_to([10, 200, 30], (4, 4, 3)))
