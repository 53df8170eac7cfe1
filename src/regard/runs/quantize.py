"""A run with int8 weights, in a new folder that is a run itself."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from regard import models
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.errors import FileError
from regard.files import atomic_write, make_folder, write_text
from regard.models.serialization import WEIGHTS_FILE
from regard.runs.contents import RECIPE_FILE, RESULT_FILE, Device, RunContents, require_verb
from regard.runs.evaluate import evaluate_run
from regard.runs.text_model import model_on
from regard.train.metrics.calibration import CALIBRATION_FILE


class QuantizationResult(NamedTuple):
    """File sizes of the weights in bytes, and scores on the test split, before and after.

    >>> QuantizationResult((200, 100), {}, {}).file_sizes
    (200, 100)
    """

    file_sizes: tuple[int, int]
    scores_before: dict[str, Any]
    scores_after: dict[str, Any]


def quantize_run(
    run: RunContents, folder: str | Path, *, score: bool = True, device: Device | None = None
) -> QuantizationResult:
    """Write a run with int8 weights into a new folder, and evaluate both.

    The result is a run that every command takes. On a CPU its matrix products are int8 too.

    Args:
        run: the run to quantise; it is not changed.
        folder: the new folder.
        score: evaluate both on the test split.
        device: where the float run is evaluated; None is where its model is.

    >>> import tempfile
    >>> sizes = rg.load("glyphs", device="cpu").quantize(tempfile.mkdtemp(), score=False).file_sizes
    >>> sizes[1] < 0.6 * sizes[0]
    True
    """
    from regard.runs.run import load_run  # whose class has this function as a method

    require_verb(run, "quantize")
    assert run.folder is not None
    folder = Path(folder)
    if (folder / RECIPE_FILE).exists():
        raise FileError(f"{folder}: needs to be without a run, got one; try another folder")
    models.save(models.quantize(model_on(run.model, "cpu")), make_folder(folder))
    # the recipe last: it marks the folder as complete
    for name in (TOKENIZER_FILE, CALIBRATION_FILE, RECIPE_FILE):
        if (run.folder / name).exists():
            with atomic_write(folder / name) as path:
                shutil.copyfile(run.folder / name, path)
    before = evaluate_run(run, device=device).scores if score else {}
    after = evaluate_run(load_run(folder)).scores if score else {}
    if run.result:
        result = {**run.result, "test": after}
        write_text(folder / RESULT_FILE, json.dumps(result, indent=1) + "\n")
    old, new = run.folder / WEIGHTS_FILE, folder / WEIGHTS_FILE
    sizes = (old.stat().st_size if old.exists() else 0, new.stat().st_size)
    return QuantizationResult(sizes, before, after)
