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
from regard.data.text.words import WordSplit
from regard.decode.sampling import Sampling
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
from regard.tasks.class_names import Classes
from regard.tasks.classification.pipeline import ClassPrediction
from regard.tasks.language.generate import generate_run
from regard.tasks.pipeline import Device, require_verb
from regard.tasks.tagging import TaggedText
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

    def generate(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 200,
        sampling: Sampling | None = None,
        device: Device | None = None,
    ) -> str:
        """The continuation of a prompt; `generate_run` yields it piece by piece."""
        pieces = generate_run(
            self, prompt, max_new_tokens=max_new_tokens, sampling=sampling, device=device
        )
        return "".join(pieces)

    def label(
        self, texts: str | Sequence[str], *, top: int | None = None, device: Device | None = None
    ) -> list[Classes]:
        """The classes of each text as (name, probability), most probable first; `top` so many."""
        return self._apply("label", texts, top=top, device=device)

    def tag(
        self,
        texts: str | Sequence[str | Sequence[str]],
        *,
        word_split: WordSplit | None = None,
        device: Device | None = None,
    ) -> list[TaggedText]:
        """The words of each text with their tags; a list of words is taken as it is."""
        return self._apply("tag", texts, word_split=word_split, device=device)

    def classify(
        self, images: Files, *, top: int = 1, invert: bool = False, device: Device | None = None
    ) -> list[ClassPrediction]:
        """The `top` classes of each image file as (name, probability), most probable first."""
        return self._apply("classify", images, top=top, invert=invert, device=device)

    def transcribe(
        self,
        paths: Files,
        *,
        beam_width: int = 1,
        normalize_peak: bool = True,
        device: Device | None = None,
    ) -> list[str]:
        """The text of each audio file; warns of one that may be wrong.

        `apply` returns the warnings, with the confidence.
        """
        transcripts = self._apply(
            "transcribe", paths, beam_width=beam_width, normalize_peak=normalize_peak, device=device
        )
        for transcript in filter(lambda x: x.warning, transcripts):
            warnings.warn(transcript.warning.removeprefix("warning: "), stacklevel=2)
        return [transcript.text for transcript in transcripts]

    def _apply(self, verb: str, inputs: Any, **options: Any) -> list[Any]:
        require_verb(self, verb)
        return self.apply(inputs, **options)

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
