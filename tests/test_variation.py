"""Parity holds on any CPU, thread count and seed; `make slow` varies whole folders."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/ops/attend/test_attend.py::test_any_weight_can_be_recomputed_from_lse",
    "tests/ops/test_window.py::test_a_window_is_a_slice_of_the_map",
    "tests/models/test_sequence_models.py::test_step_by_step_is_teacher_forcing[post-LN]",
    "tests/decode/test_cpu_decoder.py::test_logits_match_the_model[gated]",
]


def test_parity_holds_with_plain_instructions_two_threads_and_another_seed():
    varied = {"ATEN_CPU_CAPABILITY": "default", "REGARD_THREADS": "2", "REGARD_SEED": "5"}
    varied |= {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that spin would slow the tests beside it
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | varied, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
