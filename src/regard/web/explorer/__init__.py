"""The explorer: a page on which one types a text and sees what a model does with it."""

from regard.web.explorer.explorer import Explorer
from regard.web.explorer.queries import Query, QueryRequest, query, query_names

__all__ = ["Explorer", "Query", "QueryRequest", "query", "query_names"]
