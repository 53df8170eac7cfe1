"""The views of the explorer: each module registers the queries of one view."""

from regard.web.explorer.views import models

__all__ = ["models"]
