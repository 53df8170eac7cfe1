"""Images as patches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ShapeError
from regard.ops import patch_grid, patchify, unpatchify

few = st.integers(1, 3)


def test_fx9_a_picture_of_224_has_196_patches_of_768_numbers():
    assert patchify(torch.empty(3, 224, 224, device="meta"), 16).shape == (196, 768)
    assert patchify(torch.empty(3, 384, 384, device="meta"), 16).shape == (576, 768)


@given(channels=few, height=few, width=few, patch=few)
def test_joined_again_it_is_the_picture(channels, height, width, patch):
    x = torch.randn(2, channels, height * patch, width * patch)
    patches = patchify(x, patch)
    assert torch.equal(unpatchify(patches, patch, (height, width)), x)
    corner = x[:, :, -patch:, -patch:].flatten(1)
    assert torch.equal(patches[:, -1], corner)


def test_sizes_that_do_not_divide_are_an_error_with_the_numbers(users_view):
    message = "images: needs .* multiples of patch_size=4, got 30 by 28; try .* to 32 by 28"
    with pytest.raises(ShapeError, match=message):
        patch_grid(30, 28, 4)
    with pytest.raises(ShapeError, match="got 0 by 4"):
        patch_grid(0, 4, 4)
    with pytest.raises(ShapeError, match="patch_size: needs 1 or more, got 0"):
        patch_grid(4, 4, 0)
    with pytest.raises(ShapeError, match=r"patches: needs 2 · 2 patches .* got \(3, 4\)"):
        unpatchify(torch.zeros(3, 4), 2, (2, 2))
