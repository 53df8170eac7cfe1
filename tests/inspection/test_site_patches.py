"""Sites know which keys are patches of which picture, and Whisper's the time of each frame."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import regard as rg
from regard.errors import ShapeError
from regard.inspection.sites.patches import place_patches
from regard.inspection.sites.site import PatchGrid

VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"intermediate_size": 24}
TEXT = VISION | {"vocab_size": 60, "num_key_value_heads": 1, "head_dim": 8}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = 40
PATCHES = {"image_size": 32, "patch_size": 8}


def made(name, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}Model")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def tower_and_prefix(name):
    match name:
        case "ViT":
            return made(name, **VISION, image_size=(32, 48), patch_size=8), 1
        case "Dinov2WithRegisters":
            return made(name, **VISION, **PATCHES, num_register_tokens=4), 5
        case "SiglipVision":
            options = VISION | {"image_size": 48, "patch_size": 8}
            return made(name, **options), 0
    return made(name, **VISION, **PATCHES), 1


@pytest.mark.parametrize("name", ["ViT", "Dinov2WithRegisters", "SiglipVision", "CLIPVision"])
@torch.no_grad()
def test_a_patch_of_the_picture_is_the_key_at_its_place(name):
    model, prefix = tower_and_prefix(name)
    height, width = {"ViT": (32, 48), "SiglipVision": (48, 48)}.get(name, (32, 32))
    pixels = torch.randn(2, 3, height, width)
    with rg.look(model, "*0*") as sight:
        model(pixel_values=pixels)
    site = sight.sites[0]
    assert site.patches == tuple(PatchGrid(prefix, height // 8, width // 8, n, n) for n in range(2))
    pixels[1, :, 16:24, 8:16] += 1  # row 2, column 1
    with rg.look(model, "*0*") as sight:
        model(pixel_values=pixels)
    change = (sight.sites[0].k - site.k).abs().amax((1, 3))
    assert change[0].max() < 1e-6
    placed = place_patches(site.patches[1], change[1])
    assert (placed > 1e-4).nonzero().tolist() == [[2, 1]]
    assert change[1, :prefix].sum() < 1e-6


def qwen():
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    vision = {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "patch_size": 2,
        "temporal_patch_size": 1, "out_hidden_size": 16, "num_position_embeddings": 16,
        "deepstack_visual_indexes": [],
    }  # fmt: skip
    tokens = {"image_token_id": IMAGE, "video_token_id": 43, "vision_start_token_id": 44}
    text = TEXT | ENDS | {"rope_scaling": rope}
    if not hasattr(transformers, "Qwen3VLConfig"):
        pytest.skip("this transformers has no Qwen3-VL")
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
    return transformers.Qwen3VLForConditionalGeneration(config).eval()


@torch.no_grad()
def test_squares_of_patches_and_words_about_two_pictures():
    model, sizes = qwen(), torch.tensor([[1, 4, 6], [1, 4, 4]])
    ids = torch.tensor([[1, 44] + [IMAGE] * 6 + [45, 44] + [IMAGE] * 4 + [45, 8]])
    picture = torch.randn(3, 8, 12)
    inputs = {"input_ids": ids, "image_grid_thw": sizes}
    inputs["mm_token_type_ids"] = (ids == IMAGE).int()

    def packed(image):  # squares of 2 × 2 patches, as the processor packs them
        x = image.view(3, 2, 2, 2, 3, 2, 2)  # channel, (row: square, patch, pixel), (column …)
        rows = x.permute(1, 4, 2, 5, 0, 3, 6).reshape(24, 12)
        return torch.cat([rows, torch.zeros(16, 12)])

    def looked(image):
        with rg.look(model) as sight:
            model(**inputs, pixel_values=packed(image))
        return sight.sites

    before = looked(picture)
    assert [site.patches for site in before[:2]] == [
        (PatchGrid(0, 4, 6, 0, 0, 2),), (PatchGrid(0, 4, 4, 0, 1, 2),),
    ]  # fmt: skip
    assert before[2].patches == (PatchGrid(2, 2, 3, 0, 0), PatchGrid(10, 2, 2, 0, 1))
    changed = picture.clone()
    changed[:, 2:4, 0:2] += 1  # row 1, column 0
    after = looked(changed)
    change = (after[0].k - before[0].k).abs().amax((1, 3))[0]
    assert (place_patches(before[0].patches[0], change) > 1e-5).nonzero().tolist() == [[1, 0]]


@torch.no_grad()
def test_image_tokens_of_each_sequence_are_found(tmp_path):
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION, **PATCHES),
        text_config=transformers.LlamaConfig(**TEXT, **ENDS), image_token_index=IMAGE,
        vision_feature_layer=-1,
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(config).eval()
    ids = torch.tensor([[1, 5] + [IMAGE] * 16 + [7, 8], [1] + [IMAGE] * 16 + [7, 8, 9]])
    with rg.look(model) as sight:
        model(input_ids=ids, pixel_values=torch.randn(2, 3, 32, 32))
    grids = (PatchGrid(2, 4, 4, 0, 0), PatchGrid(1, 4, 4, 1, 1))
    site = sight.sites[-1]
    assert site.patches == grids
    saved = rg.inspection.load_sight(sight.save(tmp_path))
    assert saved.sites[-1].patches == grids
    figure = rg.draw.image_attention(site, 1, 19, torch.rand(3, 32, 32), batch=1)
    values = torch.from_numpy(np.asarray(figure.axes[1].images[1].get_array()).copy())
    torch.testing.assert_close(values, site.weights()[1, 1, 19, 1:17].view(4, 4))
    assert figure.axes[1].get_title() == f"{float(values.sum()):.2f} of the weight"


def test_a_picture_for_each_grid_in_its_own_colours():
    site = rg.make_site(*torch.randn(2, 9, 4), tokens=[*"ab", *"····", *"cde"])
    site = replace(site, patches=(PatchGrid(2, 2, 2), PatchGrid(5, 1, 2)))
    red = Image.new("RGB", (8, 8), "#800000")
    figure = rg.draw.image_attention(site, None, "e", [red, red])
    assert len(figure.axes) == 4
    assert np.asarray(figure.axes[1].images[0].get_array())[0, 0].tolist() == pytest.approx(
        [128 / 255, 0, 0]
    )
    with pytest.raises(
        ShapeError, match="needs one for each of the 2 pictures of sequence 0, got 1"
    ):
        rg.draw.image_attention(site, None, "e", red)


@torch.no_grad()
def test_frames_of_whisper_have_their_times():
    config = transformers.WhisperConfig(
        vocab_size=60, num_mel_bins=5, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_source_positions=10, decoder_start_token_id=0, **ENDS,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with rg.look(model) as sight:
        model(input_features=torch.randn(1, 5, 20), decoder_input_ids=torch.tensor([[0, 3]]))
    encoder, decoder, cross = sight.sites
    assert encoder.query_tokens == encoder.key_tokens == cross.key_tokens
    assert cross.key_tokens[0][:3] == ["0.00 s", "0.02 s", "0.04 s"]
    assert decoder.key_tokens is cross.query_tokens is None
