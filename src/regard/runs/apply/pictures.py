"""The page about the attention of a Hugging Face model on a picture, alone or with a text."""

from pathlib import Path

from regard.errors import LookError, counted
from regard.inspection.report.report import Predictions, top_predictions, write_report
from regard.models.hub.folder import read_config
from regard.runs.apply.look import LookReport, layers_recorded
from regard.runs.image_model import hub_input, load_image_model, reads_pictures
from regard.runs.image_text_model import load_image_text_model
from regard.runs.loading import load


def is_vision_folder(model: str) -> bool:
    """Whether a folder has a vision model of Hugging Face, which reads pictures alone.

    >>> is_vision_folder("phrases")
    False
    """
    path = Path(model)
    if not (path / "config.json").is_file():
        return False
    reads, reason = hub_input(path, read_config(path))
    if reads == "image" and reason:
        raise LookError(f"model: needs a transformer over patches, got {path.name}: {reason}")
    return reads == "image"


def picture_report(folder: Path, image: Path, text: str | None, out: Path) -> LookReport:
    """Record the attention of a model on a picture, and on a text after it, and write a page.

    Args:
        folder: of Hugging Face: a vision model, or one of images and text with its processor.
        image: a picture.
        text: what follows the picture; None for a vision model.
        out: HTML page to write.
    """
    if text is None:
        vision = load_image_model(folder)
        model, (sight, logits) = vision.model, vision.look(vision.read(image))
        labels = vision.labels
        predictions = None if logits is None else top_predictions(
            "class", logits[None], lambda ids: [labels[i] for i in ids]
        )  # fmt: skip
    elif reads_pictures(folder, read_config(folder)):
        model = load(folder, device="cpu").text_model.model
        reading = load_image_text_model(folder, model).read(image, text)
        sight, predictions = reading.sight, Predictions("next token", [reading.next_tokens[:5]])
    else:
        raise LookError(f"image: needs a model of images and text with its processor, got {folder}")
    facts = {"Model": f"{folder.name} ({type(model).__name__})", "Image": image.name}
    facts |= {} if text is None else {"Input": text}
    facts["Layers"] = layers_recorded(sight)
    title = f"Attention of {folder.name}"
    write_report(sight, out, title=title, facts=facts, predictions=predictions)
    hint = f"regard serve {folder} shows which patches each head looks at"
    sites, heads = len(sight), sum(x.heads for x in sight)
    count = f"{counted(sites, 'attention site')}, {counted(heads, 'head')}"
    return LookReport(f"{out}: {count}\n{facts['Layers']}\n{hint}", dict(sight.skipped))
