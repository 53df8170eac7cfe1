"""What looking imports, and what the namespaces export."""

import pkgutil
import subprocess
import sys

import pytest

import regard as rg
from regard import costs, inspection

HEAVY = ("babel", "sacrebleu", "sympy", "matplotlib", "regard.data")
SCRIPT = """
import sys, torch
from transformers import LlamaConfig, LlamaModel

sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
model, ids = LlamaModel(LlamaConfig(vocab_size=20, **sizes)).eval(), torch.arange(5)[None]
model(ids)
before = set(sys.modules)  # torch and transformers import sympy on their own
import regard.inspection.record.look
import regard as rg
for look in (regard.inspection.record.look.look, rg.look):
    with look(model) as sight:
        model(ids)
    assert sight.heads() and str(sight.sites[0].survey())
    print(sorted(name for name in {heavy} if name in set(sys.modules) - before))
rg.draw.map  # named, not drawn
print(sorted(name for name in {heavy} if name in set(sys.modules) - before))
"""


def test_looking_at_a_transformers_model_imports_no_text_figure_or_algebra_package():
    script = SCRIPT.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[]"] * 3


@pytest.mark.parametrize("package", [inspection, costs, rg.edit, rg.draw])
def test_every_exported_name_exists_and_none_is_hidden_by_a_module(package):
    modules = {module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))}
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert not modules & set(package.__all__) - {"edit", "draw", "patching"}


def test_edits_and_figures_have_their_public_name_and_a_docstring():
    for name in set(rg.edit.__all__) - {"Edit", "ActivationEdit"}:
        assert getattr(rg.edit, name).__name__ == name
    for name in rg.draw.__all__:
        assert getattr(rg.draw, name).__name__ == f"draw_{name}"
        assert getattr(rg.draw, name).__doc__.startswith("Draw ")
