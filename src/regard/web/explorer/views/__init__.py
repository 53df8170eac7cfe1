"""The views of the explorer: each module registers the queries of one view. All are imported."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
