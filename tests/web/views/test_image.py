"""The image view returns what `regard classify` and the library return, and refuses bad files."""

import io
import json

import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image, ImageDraw, ImageFont
from torch.testing import assert_close

import regard as rg
from regard.errors import ConfigError, FileError
from regard.runs.image_model import ImageModel
from regard.tasks.classification.pipeline import read_run_image
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query, unpack
from regard.web.explorer.views.image import draw_sample
from regard.web.jobs import Job


@pytest.fixture(scope="module")
def explorer():
    torch.set_num_threads(1)
    return Explorer(Catalog(["glyphs", "phrases"], device="cpu"))


def as_png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def photo():
    """A letter in colour, off centre, from no generator of ours."""
    image = Image.new("RGB", (90, 120), (30, 60, 90))
    ImageDraw.Draw(image).text((30, 20), "K", (250, 220, 90), ImageFont.load_default(60))
    return as_png(image)


def answer_of(explorer, **body):
    return explorer.answer("image", {"model": "glyphs"} | body)


def test_an_uploaded_image_gets_the_classes_of_regard_classify(explorer, photo, tmp_path):
    (tmp_path / "k.png").write_bytes(photo)
    run = rg.load("glyphs", device="cpu")
    (expected,) = run.classify(tmp_path / "k.png", top=36)
    answer = answer_of(explorer, file=explorer.upload(photo))
    assert [(x["class"], x["probability"]) for x in answer["classes"]] == list(expected)
    assert answer["classes"][0]["class"] == "K"
    assert (answer["confidence"], answer["unsure"]) == (expected.confidence, False)
    seen = read_run_image(run, tmp_path / "k.png", size=24)
    assert torch.equal(unpack(answer["image"]), seen)


def test_invert_is_that_of_regard_classify(explorer, photo, tmp_path):
    (tmp_path / "k.png").write_bytes(photo)
    (expected,) = rg.load("glyphs", device="cpu").classify(tmp_path / "k.png", invert=True)
    answer = answer_of(explorer, file=explorer.upload(photo), invert=True)
    assert answer["classes"][0]["probability"] == expected[0][1]


@pytest.mark.parametrize("token", [0, 8])
def test_weights_rollout_and_similarity_are_the_librarys(explorer, photo, tmp_path, token):
    (tmp_path / "k.png").write_bytes(photo)
    run = rg.load("glyphs", device="cpu")
    pixels = read_run_image(run, tmp_path / "k.png", size=24)
    with torch.no_grad(), rg.look(run.model) as sight:
        run.model(pixels[None])
    answer = answer_of(explorer, file=explorer.upload(photo), token=token)
    weights = unpack(answer["weights"]).unflatten(0, (5, 4))
    for n, site in enumerate(sight):
        assert torch.equal(weights[n], site.window(None, token)[0, :, 0])
        assert torch.allclose(weights[n].sum(-1), torch.ones(4))
    rollout = rg.inspection.attention_rollout(sight, token).own[0, 0]
    assert torch.equal(unpack(answer["rollout"]), rollout)
    positions = run.model.positions.detach().float()
    rows = F.normalize(positions, dim=1)
    assert torch.allclose(unpack(answer["similarity"]), rows @ rows[token], atol=1e-6)


def test_samples_are_drawn_by_their_seed_and_one_shows_no_class(explorer):
    samples = explorer.answer("image.samples", {"model": "glyphs", "count": 8})["samples"]
    assert [x["class"] is None for x in samples] == [False] * 7 + [True]
    for n in (0, 4):
        assert answer_of(explorer, sample=n)["classes"][0]["class"] == samples[n]["class"]
    assert answer_of(explorer, sample=7)["unsure"]
    assert "below" in answer_of(explorer, sample=7)["warning"]
    others = explorer.answer("image.samples", {"model": "glyphs", "count": 8, "seed": 4})["samples"]
    assert [x["png"] for x in others] != [x["png"] for x in samples]


def test_a_convolutional_network_predicts_without_attention():
    torch.manual_seed(0)
    recipe = rg.tasks.recipe("glyphs")
    config = rg.models.ResNetConfig(classes=36, channels=1, width=8)
    run = rg.Run(None, recipe, rg.models.ResNet(config).eval(), None)
    explorer = Explorer(Catalog(["glyphs"]))
    explorer.catalog._open.put("glyphs", (explorer.catalog.version("glyphs"), run))
    answer = answer_of(explorer)
    assert (answer["grid"], answer["sites"], answer["kind"]) == (None, [], "ResNet")
    assert sum(x["probability"] for x in answer["classes"]) == pytest.approx(1)
    rows = find_query("image").table(answer)
    assert {row[0] for row in rows[1:]} == {"probability"}
    assert len(find_query("image").figure(answer).axes) == 2


def test_a_run_of_own_images_shows_its_held_out_images(tmp_path):
    for split, green in (("train", 0), ("valid", 10), ("test", 20)):
        for name, shade in (("dark", 40), ("light", 210)):
            (tmp_path / split / name).mkdir(parents=True)
            image = Image.new("RGB", (16, 16), (shade, shade + green, shade))
            image.save(tmp_path / split / name / "1.png")
    data = rg.tasks.find_task("images")(path=str(tmp_path), size=16, channels=3)
    config = rg.models.vision_tiny(classes=2, image_size=16, channels=3, layers=1)
    model = rg.models.VisionTransformer(config).eval()
    recipe = rg.tasks.Recipe(
        name="own", data=data.fit(0), model=config, train=rg.train.TrainConfig(steps=1)
    )
    page, label = draw_sample(rg.Run(None, recipe, model, None), 0)
    assert label in ("dark", "light")
    assert page.getpixel((3, 3)) == ((210, 230, 210) if label == "light" else (40, 60, 40))


def test_table_and_figure_hold_the_answer(explorer):
    query, body = find_query("image"), {"model": "glyphs", "sample": 1, "token": 3}
    answer = explorer.answer("image", body)
    rows = [line.split(",") for line in explorer.csv(query, body, Job()).splitlines()]
    assert rows[0] == ["value", "class", "site", "head", "row", "column", "number"]
    assert len(rows) == 1 + 36 + (5 * 4 + 2) * 36
    found = [r for r in rows if r[0] == "weight" and r[2] == "encoder.1.self" and r[3] == "2"]
    assert [r[4:6] for r in found[:7]] == [["0", str(n)] for n in range(6)] + [["1", "0"]]
    assert [float(r[6]) for r in found] == unpack(answer["weights"])[4 + 2, 1:].tolist()
    assert len(query.figure(answer).axes) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a text with the name of an image", "image: needs to be a complete image, got no known"),
        ("truncated", "image: needs to be a complete image, got"),
    ],
)
def test_a_bad_file_is_one_sentence(explorer, photo, content, message):
    content = photo[: len(photo) // 2] if content == "truncated" else content
    with pytest.raises(FileError, match=message) as caught:
        answer_of(explorer, file=explorer.upload(content))
    assert "/tmp" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_out_of_range_or_no_image_model_is_refused(explorer):
    with pytest.raises(ConfigError, match="token: needs 0 to 36, got 37"):
        answer_of(explorer, token=37)
    with pytest.raises(ConfigError, match="needs one that was uploaded"):
        answer_of(explorer, file="0" * 24)
    with pytest.raises(ConfigError, match="sample"):
        answer_of(explorer, sample=-1)
    with pytest.raises(ConfigError, match="needs 1 to 16777216 bytes"):
        explorer.upload(bytes(17 << 20))
    with pytest.raises(ConfigError, match="needs a run that classifies images, got .*'phrases'"):
        answer_of(explorer, model="phrases")


VISION = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"intermediate_size": 24, "image_size": 24, "patch_size": 8}
TEXT = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PIXELS = {
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.5],
    "size": {"shortest_edge": 24},
}
PIXELS |= {"do_center_crop": True, "crop_size": {"height": 24, "width": 24}}
FOLDERS = {  # model and config of transformers, tokens before the patches
    "ViTForImageClassification": (transformers.ViTConfig(**VISION, num_labels=5), 1),
    "Dinov2WithRegistersModel": (
        transformers.Dinov2WithRegistersConfig(**VISION, num_register_tokens=4), 5,
    ),
    "SiglipModel": (transformers.SiglipConfig(vision_config=VISION, text_config=TEXT), 0),
    "CLIPModel": (
        transformers.CLIPConfig(vision_config=VISION, text_config=TEXT | {"eos_token_id": 2}), 1,
    ),
}  # fmt: skip


def saved(folder, name, config, processor=PIXELS):
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


@pytest.mark.parametrize("name", FOLDERS)
def test_a_hugging_face_folder_shows_what_transformers_computes(name, tmp_path, photo):
    config, prefix = FOLDERS[name]
    theirs = saved(tmp_path, name, config)
    hub = Explorer(Catalog([tmp_path], device="cpu"))
    (entry,) = hub.answer("models", {})["models"]
    assert (entry["reads"], entry["reason"]) == ("image", "")
    answer = hub.answer("image", {"model": entry["name"], "file": hub.upload(photo), "token": 3})
    assert (answer["grid"], answer["prefix"]) == ([3, 3], prefix)
    pixels = unpack(answer["image"])
    assert pixels.shape == (3, 24, 24)
    mean, std = (torch.tensor(PIXELS[x])[:, None, None] for x in ("image_mean", "image_std"))
    tower = getattr(theirs, "vision_model", theirs)
    tower.set_attn_implementation("eager")
    with torch.no_grad():
        out = tower(pixel_values=((pixels - mean) / std)[None], output_attentions=True)
    assert_close(unpack(answer["weights"]), torch.cat([w[0, :, 3] for w in out.attentions]))
    if name.endswith("Classification"):
        chances = out.logits[0].softmax(-1).sort(descending=True)
        assert_close(torch.tensor([x["probability"] for x in answer["classes"]]), chances.values)
        assert answer["classes"][0]["class"] == f"LABEL_{chances.indices[0]}"
    else:
        assert answer["classes"] == []
    query = find_query("image")
    assert len(query.table(answer)) == 1 + len(answer["classes"]) + (2 * 2 + 1) * 9
    assert query.figure(answer).axes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViT", {"size": {"height": 24, "width": 24}}),
        ("CLIP", {"size": {"shortest_edge": 30}, "crop_size": {"height": 24, "width": 24}}),
        ("Siglip", {"size": {"height": 24, "width": 24}}),
    ],
)
def test_a_picture_is_read_as_transformers_reads_it(name, options, photo, tmp_path):
    kind = getattr(transformers, f"{name}ImageProcessorPil", None)
    if kind is None:
        pytest.skip("this transformers needs torchvision for it")
    processor = kind(**options, do_normalize=False)
    (tmp_path / "k.png").write_bytes(photo)
    want = processor(Image.open(tmp_path / "k.png"), return_tensors="pt")["pixel_values"][0]
    model = transformers.ViTModel(transformers.ViTConfig(**VISION))
    hub = ImageModel(model, (), json.loads(processor.to_json_string()))
    assert_close(hub.read(tmp_path / "k.png"), torch.as_tensor(want))
    sides = {x: next(iter(v.values())) for x, v in options.items()}  # as older releases wrote it
    older = hub._replace(processor=hub.processor | sides)
    assert_close(older.read(tmp_path / "k.png"), torch.as_tensor(want))
    text = {"size": {"height": "24"}, "crop_size": None}
    for wrong in ({"size": {"shortest_edge": 10**9}}, text, {"resample": 9}):
        with pytest.raises(FileError, match="preprocessor_config.json: needs "):
            hub._replace(processor=hub.processor | wrong).read(tmp_path / "k.png")


def test_a_folder_that_no_view_shows_is_listed_with_the_reason(tmp_path):
    whisper = transformers.WhisperConfig(
        vocab_size=60, num_mel_bins=5, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_source_positions=10, decoder_start_token_id=0, pad_token_id=0,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    name, processor = "WhisperForConditionalGeneration", {"feature_extractor_type": "Whisper"}
    saved(tmp_path / "whisper", name, whisper, processor)
    blocks = {"hidden_sizes": [4, 4, 4, 4], "depths": [1, 1, 1, 1]}
    name = "ConvNextForImageClassification"
    saved(tmp_path / "convnext", name, transformers.ConvNextConfig(**blocks))
    hub = Explorer(Catalog([tmp_path / "whisper", tmp_path / "convnext"]))
    listed = hub.answer("models", {})["models"]
    assert [entry["reads"] for entry in listed] == ["nothing", "nothing"]
    assert "WhisperForConditionalGeneration reads sound" in listed[0]["reason"]
    assert "none of ViT, DINOv2, SigLIP and CLIP" in listed[1]["reason"]
    with pytest.raises(
        ConfigError, match="needs one that a view shows, got 'convnext': a ConvNext"
    ):
        hub.answer("image", {"model": "convnext"})


@pytest.fixture
def llava(tmp_path):
    """A folder of a model that reads a picture of 4 × 4 patches with a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "<image>", "the", "cat", "sat"])}
    engine = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine,
        unk_token="[UNK]",
        pad_token="[PAD]",
        additional_special_tokens=["<image>"],
    )
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2}
    sizes |= {"num_hidden_layers": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**sizes, image_size=32, patch_size=8),
        text_config=transformers.LlamaConfig(**sizes, vocab_size=6, num_key_value_heads=2),
        image_token_index=2,
    )
    torch.manual_seed(0)
    folder = tmp_path / "llava"
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    side = {"height": 32, "width": 32}
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    pixels = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=side)
    options = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = transformers.LlavaProcessor(pixels, tokenizer, patch_size=8, **options)
    processor.save_pretrained(folder)
    return folder


def test_a_word_after_an_image_attends_to_its_patches(llava, photo, tmp_path):
    hub = Explorer(Catalog([llava], device="cpu"))
    (entry,) = hub.answer("models", {})["models"]
    assert (entry["reads"], entry["pictures"], entry["reason"]) == ("text", True, "")
    request = {"model": "llava", "file": hub.upload(photo), "text": "the cat sat"}
    answer = hub.answer("image", request | {"token": 17})
    assert answer["tokens"] == ["<image>"] * 16 + ["the", "cat", "sat"]
    assert (answer["grid"], answer["first"], answer["coverage"]) == ([4, 4], 0, "")
    (tmp_path / "k.png").write_bytes(photo)
    reading = hub.catalog.image_model("llava").read(tmp_path / "k.png", "the cat sat")
    weights = unpack(answer["weights"]).unflatten(0, (2, 2))
    for n, site in enumerate(reading.sites):
        row = site.window(None, 17)[0, :, 0]
        assert_close(weights[n], row[:, :16])
        assert_close(unpack(answer["elsewhere"])[2 * n : 2 * n + 2], row[:, 16:].sum(-1))
    assert hub.answer("image", request)["token"] == 18
    assert sum(x["probability"] for x in answer["classes"]) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ConfigError, match="token: needs 0 to 18, got 19"):
        hub.answer("image", request | {"token": 19})
    (picture,) = reading.pixels[None]
    assert 0 <= picture.min() <= picture.max() <= 1
    (llava / "processor_config.json").write_text("{")
    with pytest.raises(FileError, match="needs a processor that transformers loads"):
        hub.answer("image", request | {"text": "the"})
