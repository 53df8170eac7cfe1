"""The image view: what a vision model predicts, and which patches it attends to."""

import base64
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from regard.data import RenderedGlyphs, open_image
from regard.errors import ConfigError, RegardError
from regard.files.atomic import temporary_file
from regard.inspection import Sight, Site, attention_rollout, look
from regard.inspection.figures.canvas import new_figure
from regard.inspection.sites.patches import place_patches
from regard.models import VisionTransformer
from regard.runs import Run
from regard.runs.image_model import ImageModel
from regard.runs.image_text_model import ImageTextModel
from regard.tasks.classification.glyphs import GlyphsTask
from regard.tasks.classification.pipeline import patch_size, read_run_image
from regard.web.explorer.explorer import Explorer, ModelRequest, Rows, pack, query, unpack
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OOD_PERIOD = 8  # each such number of a sample shows none of the classes
MAX_PREVIEW = 256  # pixels per side of the image as it was given
MAX_SEED, MAX_SAMPLE = 1 << 31, 10_000
DEFAULT_SEED = 3  # of built-in images; these show many typefaces, and a mirrored letter


class SampleRequest(ModelRequest):
    """A request about built-in images."""

    seed: int = Field(DEFAULT_SEED, ge=0, lt=MAX_SEED)


class ImageRequest(SampleRequest):
    """The image that a model classifies, and the token whose attention is shown."""

    file: str | None = Field(None, max_length=80)  # that was uploaded
    sample: int = Field(0, ge=0, lt=MAX_SAMPLE)  # built-in image, where there is no file
    invert: bool = False
    # 0 is the class token, then patches row by row; of a text any token, the last one by default
    token: int | None = Field(None, ge=0, lt=100_000)
    text: str = Field("", max_length=2000)  # after the picture, of a model that reads both
    site: int | None = Field(None, ge=0, lt=100_000)  # of the page: the map that is shown large
    head: int | None = Field(None, ge=0, lt=100_000)


class SamplesRequest(SampleRequest):
    """How many built-in images to show."""

    count: int = Field(12, ge=1, le=48)


def _table(response: dict[str, Any]) -> Rows:
    """Probabilities, then one value per head and patch."""
    rows: list[list[Any]] = [["value", "class", "site", "head", "row", "column", "number"]]
    for prediction in response["classes"]:
        rows.append(["probability", prediction["class"], "", "", "", "", prediction["probability"]])
    if response["grid"] is None:
        return rows
    places = [(r, c) for r in range(response["grid"][0]) for c in range(response["grid"][1])]
    weights = iter(unpack(response["weights"]).tolist())
    for site in response["sites"]:
        for head in range(site["heads"]):
            values = next(weights)[response["prefix"] :]
            rows += [
                ["weight", "", site["name"], head, *at, x]
                for at, x in zip(places, values, strict=True)
            ]
    for name, key in (("rollout", "rollout"), ("position similarity", "similarity")):
        values = unpack(response[key]).tolist()[response["prefix"] :] if response[key] else ()
        rows += [[name, "", "", "", *at, x] for at, x in zip(places, values, strict=bool(values))]
    return rows


def _figure(response: dict[str, Any]) -> "Figure":
    """The image, the classes and, of a model with attention, where it looks."""
    has_maps = response["grid"] is not None
    figure = new_figure(11.5 if has_maps else 6, 3.2)
    axes = figure.subplots(1, 4 if has_maps else 2)
    pixels = unpack(response["image"])
    shown = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    for drawn in (axes[0], *axes[2:]):
        drawn.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1)
        drawn.set_axis_off()
    axes[0].set_title("as the model sees it", fontsize=9)
    classes = response["classes"][:5][::-1]
    axes[1].barh([x["class"] for x in classes], [x["probability"] for x in classes])
    axes[1].set(xlim=(0, 1), title="probability")
    if has_maps:
        rows, columns = response["grid"]
        extent = (-0.5, shown.shape[1] - 0.5, shown.shape[0] - 0.5, -0.5)
        last = unpack(response["weights"])[-response["sites"][-1]["heads"] :].mean(0)
        named = (("attention, last layer", last), ("rollout", unpack(response["rollout"])))
        for drawn, (name, values) in zip(axes[2:], named, strict=True):
            values = values[response["prefix"] :].view(rows, columns)
            shade = 0.85 * values / values.max().clamp(min=1e-30)
            drawn.imshow(values.numpy(), cmap="Oranges", alpha=shade.numpy(), extent=extent, vmin=0)
            drawn.set_title(name, fontsize=9)
    return figure


def _related(request: ImageRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("image.samples", {"model": request.model, "seed": request.seed})]


@query("image", ImageRequest, table=_table, figure=_figure, related=_related)
def answer_image(explorer: Explorer, request: ImageRequest, job: Job) -> dict[str, Any]:
    """The classes of an image as `regard classify` gives them, and the attention of one token."""
    hub = explorer.catalog.image_model(request.model)
    if isinstance(hub, ImageTextModel):
        return _answer_text(explorer, hub, request, job)
    if hub is not None:
        return _answer_hub(explorer, hub, request, job)
    token = request.token or 0
    run = _vision_run(explorer, request.model)
    with _image_file(explorer, run, request) as path:
        pixels = read_run_image(run, path, size=run.data.input_size, invert=request.invert)
        job.report(0.2, "classifying")
        classes = len(run.data.class_names) or run.model.config.classes
        is_vit = isinstance(run.model, VisionTransformer)
        with look(run.model) if is_vit else nullcontext(Sight()) as sight:
            (prediction,) = run.classify([path], top=classes, invert=request.invert)
        response = _shown(run.model, path, pixels, prediction, patch_size(run), sight.sites) | {
            "confidence": prediction.confidence,
            "threshold": None if prediction.confidence is None else prediction.threshold,
            "unsure": prediction.unsure,
            "warning": prediction.warning("image").removeprefix("warning: "),
            "cropped": run.data.crops_to_ink,
        }
    job.report(0.6, "following attention")
    if not is_vit:
        return response
    response |= _attention(sight.sites, token)
    return response | {"similarity": pack(position_similarity(run.model, token))}


def _shown(
    model: nn.Module,
    path: Path,
    pixels: Tensor,
    classes: Iterable[tuple[str, float]],
    patch: int | None,
    sites: list[Site],
) -> dict[str, Any]:
    """What the page shows of any model; a run has confidence, and attention has a grid."""
    return {
        "classes": [{"class": name, "probability": p} for name, p in classes],
        "original": _preview(path),
        "image": pack(pixels),
        "kind": type(model).__name__,
        "patch": patch,
        "sites": [{"name": site.name, "heads": site.heads} for site in sites],
        "warning": "",
        **dict.fromkeys(("unsure", "cropped"), False),
        **dict.fromkeys(("confidence", "threshold", "similarity", "grid")),
    }


def _answer_hub(
    explorer: Explorer, hub: ImageModel, request: ImageRequest, job: Job
) -> dict[str, Any]:
    """The same of a vision model of transformers, by its own classes where it has them."""
    with _image_file(explorer, None, request) as path:
        pixels = 1 - hub.read(path) if request.invert else hub.read(path)
        job.report(0.2, "looking")
        sight, logits = hub.look(pixels)
        shares = () if logits is None else logits.softmax(-1).tolist()
        classes = sorted(zip(hub.labels, shares, strict=True), key=lambda x: -x[1])
        sites = [site for site in sight if site.patches and site.queries == site.keys]
        if not sites:
            raise ConfigError("model: needs attention over patches, got none recorded; try rg.look")
        response = _shown(hub.model, path, pixels, classes, hub.config.patch_size, sites)
    return response | _attention(sites, request.token or 0)


def _answer_text(
    explorer: Explorer, hub: ImageTextModel, request: ImageRequest, job: Job
) -> dict[str, Any]:
    """The next token after a picture with a text, and which patches one of its tokens looks at."""
    with _image_file(explorer, None, request) as path:
        job.report(0.2, "looking")
        reading = hub.read(path, request.text)
        sites, pixels, grid = reading.sites, reading.pixels, reading.sites[0].patches[0]
        patch = round(pixels.shape[-1] / grid.columns)
        response = _shown(hub.model, path, pixels, reading.next_tokens, patch, sites)
    last = len(reading.tokens) - 1
    token = last if request.token is None else request.token
    if token > last:
        raise ConfigError(f"token: needs 0 to {last}, got {token}")
    weights, rollout = (place_patches(grid, x) for x in _weights(sites, token))
    return response | {
        "grid": [grid.rows, grid.columns],
        "prefix": 0,
        "first": grid.first,  # of the patches among the tokens
        "tokens": reading.tokens,
        "token": token,
        "coverage": reading.sight.coverage,
        "weights": pack(weights.flatten(-2)),
        "elsewhere": pack(1 - weights.sum((-2, -1))),
        "rollout": pack(rollout.flatten()),
    }


@query("image.samples", SamplesRequest)
def answer_image_samples(explorer: Explorer, request: SamplesRequest, job: Job) -> dict[str, Any]:
    """Built-in images with their classes; the class is None where an image shows none of them."""
    hub, samples = explorer.catalog.image_model(request.model), []
    run = None if hub is not None else _vision_run(explorer, request.model)
    for number in range(request.count):
        job.report(number / request.count, "drawing samples")
        page, label = draw_sample(run, number, request.seed)
        page.thumbnail((64, 64))
        samples.append({"sample": number, "png": _png_text(page), "class": label})
    return {"samples": samples}


def draw_sample(
    run: Run | None, number: int, seed: int = DEFAULT_SEED
) -> tuple[Image.Image, str | None]:
    """A built-in image of a run, and its class: held-out data, or glyphs where there is none.

    >>> page, label = draw_sample(rg.load("glyphs"), number=0)
    >>> label in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    True
    """
    data = GlyphsTask() if run is None else run.data
    if not isinstance(data, GlyphsTask):
        if (held_out := _held_out(data, number)) is not None:
            return held_out
        data = GlyphsTask()
    has_classes = number % OOD_PERIOD != OOD_PERIOD - 1
    source = data.source(0.0 if has_classes else 1.0)
    if not isinstance(source, RenderedGlyphs):  # one typeface, never without a class
        example = next(source.examples("train", seed, number))
        return _to_page(example.image), data.classes[example.label]
    page, label = source.draw_page("test", f"explorer {seed} {number}")
    return page, data.classes[label] if label >= 0 else None


@lru_cache(64)
def _held_out(data: Any, number: int) -> tuple[Image.Image, str] | None:
    """A held-out image of a run's own data; None where the data is not here."""
    try:
        evaluator = data.evaluator(None, "test")
    except RegardError:
        return None
    at = number % len(evaluator.labels)
    return _to_page(evaluator.images[at] / 255), evaluator.references[at]


def _vision_run(explorer: Explorer, name: str) -> Run:
    hint = "glyphs, or a Hugging Face folder of ViT, DINOv2, SigLIP or CLIP"
    needs = "a run that classifies images"
    return explorer.catalog.run_of_verb("classify", name, needs=needs, hint=hint)


@contextmanager
def _image_file(explorer: Explorer, run: Run | None, request: ImageRequest) -> Iterator[Path]:
    """The image of a request as a file, so that it is read as `regard classify` reads one."""
    if request.file is not None:
        content = explorer.uploaded(request.file)
    else:
        content = _png(draw_sample(run, request.sample, request.seed)[0])
    with temporary_file(content, "image") as path:
        yield path


def _attention(sites: list[Site], token: int) -> dict[str, Any]:
    """The weights of one token and its rollout, on the grid of patches."""
    tokens, grid = sites[0].keys, sites[0].patches[0]
    if token >= tokens:
        raise ConfigError(f"token: needs 0 to {tokens - 1}, got {token}; 0 is the class token")
    weights, rollout = map(pack, _weights(sites, token))
    shape = {"grid": [grid.rows, grid.columns], "prefix": grid.first, "token": token}
    return shape | {"weights": weights, "rollout": rollout}


@torch.no_grad()
def _weights(sites: list[Site], token: int) -> tuple[Tensor, Tensor]:
    """What one token attends to, per head, and its rollout."""
    weights = torch.cat([site.window(None, token)[0, :, 0] for site in sites])
    return weights, attention_rollout(sites, token).own[0, 0]


@torch.no_grad()
def position_similarity(model: VisionTransformer, token: int) -> Float[Tensor, " token"]:
    """Cosine similarity of a token's position embedding to all others (Dosovitskiy 2020, fig. 7).

    >>> model = rg.models.VisionTransformer(rg.models.vision_tiny(classes=10))
    >>> position_similarity(model, 3)[3].round(decimals=4)
    tensor(1.)
    """
    return F.cosine_similarity(model.positions[token].float(), model.positions.float(), dim=-1)


def _preview(path: Path) -> dict[str, Any]:
    page = open_image(path)
    size = page.size
    page.thumbnail((MAX_PREVIEW, MAX_PREVIEW))
    return {"png": _png_text(page), "width": size[0], "height": size[1]}


def _to_page(pixels: Tensor) -> Image.Image:
    values = (pixels * 255).round().to(torch.uint8)
    array = values[0] if len(values) == 1 else values.permute(1, 2, 0)
    return Image.fromarray(array.numpy())


def _png(page: Image.Image) -> bytes:
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def _png_text(page: Image.Image) -> str:
    return base64.b64encode(_png(page)).decode()
