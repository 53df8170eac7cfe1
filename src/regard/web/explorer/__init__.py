"""The explorer: a page that shows what a model computes from a text, an image or a sound."""

from regard.web.explorer.explorer import Explorer, Query, QueryRequest, query, query_names

__all__ = ["Explorer", "Query", "QueryRequest", "query", "query_names"]
