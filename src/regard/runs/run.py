"""`Run`: a training run on disk, opened, with the verbs of its task as methods."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard import models
from regard.errors import FileError
from regard.inspection import Sight
from regard.models.serialization import WEIGHTS_FILE, check_config_against_tensors
from regard.nn.low_rank import merge_low_rank
from regard.runs.apply.answers import apply_run
from regard.runs.contents import RunContents, build_model, load_tokenizer, read_recipe, read_result
from regard.runs.evaluate import evaluate_run
from regard.runs.export import export_run, quantize_run, save_run_pretrained
from regard.runs.report.page import report_run
from regard.tasks.annotated_text import compute_logits
from regard.tasks.language.generate import generate_run
from regard.tasks.pipeline import Device, require_verb
from regard.tasks.translation.pipeline import Translates
from regard.train import load_calibration, load_last_valid, load_weights, read_metrics
from regard.train.loop import CHECKPOINTS

Files = str | Path | Sequence[str | Path]


class Run(Translates, RunContents):
    """A trained model with its recipe, tokenizer, metrics and scores.

    `verbs` lists the methods that its task supports; any other raises a ConfigError. A verb never
    moves the model: with `device=` it runs a copy there.

    A saved model without a recipe, or a Hugging Face folder, opens as a Run with the verb `look`,
    and an encoder without a head with `embed` too.

    >>> run = rg.load("phrases", device="cpu")
    >>> run.verbs
    ['translate', 'look', 'evaluate', 'export', 'quantize']
    >>> run.translate(["3 days"], to=["de"])
    {'de': ['3 Tage']}
    """

    apply = apply_run
    evaluate = evaluate_run
    export = export_run
    quantize = quantize_run
    report = report_run
    save_pretrained = save_run_pretrained

    if not TYPE_CHECKING:  # any name would pass the type checker

        def __getattr__(self, name: str) -> Any:
            """The verb of a custom task, such as `run.shout`: `apply`."""
            recipe = self.__dict__.get("recipe")
            if recipe is not None and name == recipe.data.verb:
                return self.apply
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def generate(self, prompt: str = "", **options: Any) -> str:
        """The continuation of a prompt; `generate_run` yields it piece by piece."""
        return "".join(generate_run(self, prompt, **options))

    def label(self, texts: str | Sequence[str], **options: Any) -> list[Any]:
        """The classes of each text as (name, probability), most probable first; `top` so many."""
        require_verb(self, "label")
        return self.apply(texts, **options)

    def tag(self, texts: str | Sequence[str | Sequence[str]], **options: Any) -> list[Any]:
        """The words of each text with their tags; a list of words is taken as it is."""
        require_verb(self, "tag")
        return self.apply(texts, **options)

    def classify(self, images: Files, **options: Any) -> list[Any]:
        """The `top` classes of each image file as (name, probability), most probable first."""
        require_verb(self, "classify")
        return self.apply(images, **options)

    def transcribe(self, paths: Files, **options: Any) -> list[str]:
        """The text of each audio file; warns of one that may be wrong.

        `apply` returns the warnings, with the confidence.
        """
        require_verb(self, "transcribe")
        transcripts = self.apply(paths, **options)
        for transcript in filter(lambda x: x.warning, transcripts):
            warnings.warn(transcript.warning.removeprefix("warning: "), stacklevel=2)
        return [transcript.text for transcript in transcripts]

    def look(
        self,
        text: str,
        *,
        target: str | None = None,
        to: str | None = None,
        at: str = "*",
        device: Device | None = None,
    ) -> Sight:
        """Record every attention of the model on a text; see `TextModel.look`."""
        require_verb(self, "look")
        return self.text_model.on(device).look(text, target, at, to=to)

    def embed(
        self, texts: str | Sequence[str], *, device: Device | None = None
    ) -> Float[Tensor, "text dim"]:
        """The vectors of texts, of length 1, by an encoder such as minilm.

        v = pool(encode(text)) / |pool(encode(text))|,   so that v · w is the cosine similarity
        """
        require_verb(self, "embed")
        text_model = self.text_model.on(device)
        texts = [texts] if isinstance(texts, str) else texts
        rows = [text_model.encode("text", text)[0].tolist() for text in texts]
        return F.normalize(torch.stack(compute_logits(text_model.model, rows)), dim=-1)


def load_run(folder: str | Path, *, device: Device = "cpu") -> Run:
    """Open the folder of a run: its final model, or that of the last valid checkpoint.

    >>> load_run("nowhere")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere: needs to be the folder of a run, got no recipe.json in it
    """
    folder = Path(folder)
    recipe, tokenizer = read_recipe(folder), load_tokenizer(folder)
    result = read_result(folder)
    if (folder / WEIGHTS_FILE).exists():
        model = models.load(folder).float()  # pretrained weights are stored in half precision
    else:
        checkpoint, reasons = load_last_valid(folder / CHECKPOINTS)
        if checkpoint is None:
            got = "; ".join(["none yet", *reasons])
            raise FileError(f"{folder}: needs weights, got {got}; try regard resume {folder}")
        config = recipe.data.resolve(recipe.model, tokenizer)
        tensors = merge_low_rank(checkpoint.model)
        check_config_against_tensors(config, tensors, folder)
        model = build_model(recipe, tokenizer)
        load_weights(model, tensors, str(folder))
    model, calibration = model.to(device).eval(), load_calibration(folder)
    return Run(folder, recipe, model, tokenizer, read_metrics(folder), result, calibration)
