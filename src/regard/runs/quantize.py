"""A run with weights of one byte each: another folder, used as any run is."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from regard import models
from regard.errors import FileError
from regard.files import atomic_write, make_folder, write_text
from regard.models.serialization import WEIGHTS_FILE as WEIGHTS
from regard.runs.evaluate import evaluate_run
from regard.runs.run import RECIPE_FILE, RESULT_FILE, WORDS, Run, load_run
from regard.train.metrics.calibration import CALIBRATION_FILE


class QuantizationResult(NamedTuple):
    """What rounding did: bytes of the weights and scores on the test part, before and after.

    >>> QuantizationResult((200, 100), {}, {}).file_sizes
    (200, 100)
    """

    file_sizes: tuple[int, int]
    scores_before: dict[str, Any]
    scores_after: dict[str, Any]


def quantize_run(run: Run, folder: str | Path, *, score: bool = True) -> QuantizationResult:
    """Write a run with its weights rounded to a byte each into a new folder, and score both.

    What is written is a run: every command takes it. On a CPU its products are of whole numbers.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "small"
    >>> found = quantize_run(rg.load_pretrained("glyphs"), folder, score=False)
    >>> found.file_sizes[1] < 0.6 * found.file_sizes[0]
    True
    >>> rg.models.is_quantized(rg.runs.load_run(folder).model)
    True
    """
    folder = Path(folder)
    if (folder / RECIPE_FILE).exists():
        raise FileError(f"{folder}: needs to be without a run, got one; try another folder")
    made = models.quantize(run.model.cpu())
    models.save(made, make_folder(folder))
    for name in (
        WORDS,
        CALIBRATION_FILE,
        RECIPE_FILE,
    ):  # the recipe last: it says that all is there
        if (run.folder / name).exists():
            with atomic_write(folder / name) as place:
                shutil.copyfile(run.folder / name, place)
    before = evaluate_run(run).scores if score else {}
    after = evaluate_run(load_run(folder)).scores if score else {}
    if run.result:
        told = {**run.result, "test": after} if score else run.result | {"test": {}}
        write_text(folder / RESULT_FILE, json.dumps(told, indent=1) + "\n")
    old = run.folder / WEIGHTS
    sizes = (old.stat().st_size if old.exists() else 0, (folder / WEIGHTS).stat().st_size)
    return QuantizationResult(sizes, before, after)
