"""benchmarks/decode_gpu.py, as the lead runs it."""

import runpy
import sys
from pathlib import Path

script = str(Path(__file__).parents[2] / "benchmarks" / "decode_gpu.py")
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
