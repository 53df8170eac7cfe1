"""The benchmark of small data sets, end to end on tiny ones."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "small_data.py"


@pytest.mark.slow
def test_a_folder_of_data_sets_becomes_a_table_and_a_bad_one_a_line(tmp_path):
    for name in ("labels", "tags"):
        (tmp_path / name).mkdir()
    lines = [f"{a} {b} {c},{a}" for a in ("red", "blue") for b in "abcdefgh" for c in "stuvwxyz"]
    (tmp_path / "labels" / "colours.csv").write_text("\n".join(["text,label", *lines]))
    (tmp_path / "tags" / "empty.conll").touch()
    small = ["--seeds", "2", "--set", "steps=4", "--set", "evaluate_every=2", "--set", "warmup=1"]
    command = [sys.executable, BENCHMARK, tmp_path, *small, "--out", tmp_path / "table.md"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "table.md").read_text().splitlines()
    assert table[0].startswith(
        "| data | train | test | score | model | seeds | baseline | verdict |"
    )
    rows = {line.split("|")[1].strip(): line for line in table[2:]}
    assert "tagged tokens, got an empty file" in rows["tags/empty.conll"]
    assert "linear model on n-grams" in rows["labels/colours.csv"]
    assert "| 2, " in rows["labels/colours.csv"]
