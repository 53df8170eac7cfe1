"""The type of results that are None unless requested, or for some models."""

from typing import TYPE_CHECKING

# None at run time, Any to type checkers ("the Any trick" of typeshed): whoever requested a result
# reads it without a check, and its other type is still checked.
if TYPE_CHECKING:
    from _typeshed import MaybeNone as MaybeNone
else:
    MaybeNone = None
