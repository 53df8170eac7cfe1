"""What `regard classify` does: pictures in, classes with probabilities and overlays out."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard import models
from regard.errors import ConfigError, FileError
from regard.inspection import look
from regard.inspection.figures.maps import draw_overlay
from regard.runs import Run
from regard.runs.apply.classify import build_prediction, image_model, read_run_image
from regard.runs.jobs.progress import iterate_with_progress


class ClassifyJob:
    """A run made ready to see; `code` is the command's exit code."""

    def __init__(self, run: Run, *, top: int = 3, size: int | None = None, own_size: bool = False):
        self.trained_run, (self.model, trained) = run, image_model(run)
        if top < 1:
            raise ConfigError(f"top: needs 1 or more, got {top}")
        if own_size and size is not None:
            raise ConfigError(f"size: needs to be left out beside --own-size, got {size}")
        config = self.model.config
        self.patch = getattr(config, "patch", 1)
        if size is not None and (size < self.patch or size % self.patch):
            raise ConfigError(f"size: needs a multiple of the patch, {self.patch}, got {size}")
        self.size = None if own_size else size or trained
        self.top, self.exit_code = top, 0

    def run(
        self, paths: Sequence[str], *, invert: bool = False, overlay: Path | None = None
    ) -> None:
        """The likeliest classes of each picture; one that is not read is said."""
        self._check(overlay)
        bad, unsure = 0, False
        for path in iterate_with_progress(paths, "classifying"):
            try:
                image = read_run_image(self.trained_run, path, size=self.size, invert=invert)
            except FileError as error:
                print(f"regard: {error}", file=sys.stderr)
                bad += 1
                continue
            place = overlay
            if overlay is not None and len(paths) > 1:
                place = overlay.with_name(f"{overlay.stem}-{Path(path).stem}{overlay.suffix}")
            unsure |= self._tell(path, image, place)
        self.exit_code = 2 if bad == len(paths) else int(bad > 0 or unsure)

    def _check(self, overlay: Path | None) -> None:
        if overlay is None:
            return
        if not isinstance(self.model, models.VisionTransformer):
            raise ConfigError(
                f"overlay: needs a model that attends, got {type(self.model).__name__}"
            )
        if not overlay.parent.is_dir():
            raise FileError(f"overlay: needs a folder that exists, got {overlay.parent}")

    @torch.no_grad()
    def _tell(self, path: str, image: Tensor, place: Path | None) -> bool:
        """Print the classes; whether the answer is unsure, which is a warning."""
        if place is None:
            logits = self.model(image[None])[0]
        else:
            with look(self.model) as sight:
                logits = self.model(image[None])[0]
            # the class token of the last layer: the head reads nothing else
            draw_overlay(sight[sight.names[-1]], image, path=place)
        found = build_prediction(self.trained_run, logits, self.top)
        for name, chance in found:
            print(f"{path}\t{name}\t{chance:.4f}", flush=True)
        if found.unsure:
            print(
                f"regard: warning: {path}: confidence {found.confidence:.2f} is below "
                f"{found.threshold:.2f}; the class may be wrong",
                file=sys.stderr,
            )
        return found.unsure
