"""Make a finished run into a pretrained model of the package, its weights in half precision.

python benchmarks/make_pretrained.py runs/phrases phrases --machine "one H200"

The weights are rounded to float16, then evaluated and calibrated again, so that the recorded scores
are those of the shipped file.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from regard import models, runs, train
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.files import write_text
from regard.runs.contents import RECIPE_FILE, RESULT_FILE
from regard.runs.loading import PRETRAINED_FOLDER
from regard.train.evaluation import run_evaluation
from regard.train.metrics import CALIBRATION_FILE


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    name: Annotated[str, typer.Argument(help="Name of the pretrained model.")],
    machine: Annotated[str, typer.Option(help="Machine it was trained on.")] = "",
    recipe: Annotated[str, typer.Option(help="Another name for its recipe.")] = "",
) -> None:
    folder = PRETRAINED_FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads((run / RECIPE_FILE).read_text(encoding="utf-8"))
    content["recipe"]["name"] = recipe or content["recipe"]["name"]
    content["recipe"]["train"]["device"] = "auto"
    write_json(folder / RECIPE_FILE, content)
    for file in (TOKENIZER_FILE, CALIBRATION_FILE):
        if (run / file).exists():
            shutil.copy(run / file, folder)
    models.save(runs.load_run(run).model.half(), folder)
    rounded = runs.load(folder)
    valid = rounded.recipe.data.evaluator(rounded.tokenizer, "valid")
    if isinstance(valid, train.Gradable):
        graded = run_evaluation(rounded.model, valid.grade)
        train.save_calibration(folder, train.calibrate(graded))
    result = json.loads((run / RESULT_FILE).read_text(encoding="utf-8"))
    evaluation = runs.load(folder).evaluate()
    confidence = {"confidence": evaluation.confidence} if evaluation.confidence else {}
    scores = {"test": evaluation.scores, "machine": machine, **confidence}
    write_json(folder / RESULT_FILE, result | scores)
    print(f"{folder}: before {result['test']}\nafter {evaluation.scores} {evaluation.confidence}")
    print(f"{sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.2f} MB")


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
