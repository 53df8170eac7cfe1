"""`import regard.data` stays light: optional heavy packages load on first use."""

import subprocess
import sys

import regard.data

HEAVY = ("babel", "PIL", "soundfile", "tokenizers", "matplotlib")


def test_importing_data_loads_no_heavy_package():
    code = f"import sys, regard.data; print([x for x in {HEAVY} if x in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_public_name_resolves():
    assert len(set(regard.data.__all__)) == len(regard.data.__all__)
    assert all(getattr(regard.data, name) is not None for name in regard.data.__all__)
