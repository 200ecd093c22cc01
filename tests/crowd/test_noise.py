import numpy as np
import pytest

from accelerando.crowd import CKL, TSTE
from accelerando.crowd._noise import noise_model


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'ckl', 'gnmds', .* Got 'tsne'"):
        noise_model("tsne")


@pytest.mark.parametrize(
    "build", [lambda: TSTE(alpha=0), lambda: CKL(mu=-1), lambda: CKL(mu=np.nan)]
)
def test_settings_must_be_positive(build):
    with pytest.raises(ValueError, match=r"must be a number above 0. Got"):
        build()


def test_heavy_tails_forgive_a_wrong_answer_about_a_far_item():
    near, far = np.array([1.0]), np.array([100.0])
    assert TSTE(alpha=1).loss(far, near)[0] < TSTE(alpha=10).loss(far, near)[0]
