"""The experiments: one file per family of claims. All are imported, to fill `CLAIMS`."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
