"""Make a finished run into a specimen of the package, its weights in half precision.

python benchmarks/make_specimen.py runs/phrases phrases --machine "one H200"

The weights are rounded to float16, and scored and calibrated again, so that the record is that of
what ships.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from regard import models, runs, train
from regard.runs.pretrained import PRETRAINED_FOLDER
from regard.runs.run import RECIPE_FILE, RESULT_FILE
from regard.train.metrics.calibration import CALIBRATION_FILE


def main(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    name: Annotated[str, typer.Argument(help="What the specimen is called.")],
    machine: Annotated[str, typer.Option(help="Where it was trained.")] = "",
    recipe: Annotated[str, typer.Option(help="Another name for its recipe.")] = "",
) -> None:
    place = PRETRAINED_FOLDER / name
    place.mkdir(parents=True, exist_ok=True)
    told = json.loads((run / RECIPE_FILE).read_text(encoding="utf-8"))
    told["recipe"]["name"] = recipe or told["recipe"]["name"]
    told["recipe"]["train"]["device"] = "auto"
    write(place / RECIPE_FILE, told)
    for file in ("tokenizer.json", CALIBRATION_FILE):
        if (run / file).exists():
            shutil.copy(run / file, place)
    models.save(runs.load_run(run).model.half(), place)
    opened = runs.load_run(place)
    held_out = opened.recipe.data.scores(opened.tokenizer, "valid")
    if isinstance(held_out, train.Gradable):
        graded = train.loop.scored(opened.model, held_out.grade)
        train.save_calibration(place, train.calibrate(graded))
    result = json.loads((run / RESULT_FILE).read_text(encoding="utf-8"))
    before = result["test"]
    found = runs.evaluate_run(runs.load_run(place))
    kept = {"test": found.scores, "machine": machine}
    write(
        place / RESULT_FILE,
        result | kept | ({"confidence": found.confidence} if found.confidence else {}),
    )
    print(f"{place}: before {before}\nafter {found.scores} {found.confidence}")
    print(f"{sum(file.stat().st_size for file in place.iterdir()) / 1e6:.2f} MB")


def write(path: Path, value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
