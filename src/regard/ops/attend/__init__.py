"""Attention: one definition, several backends, and exact windows of its weights."""

from regard.ops.attend.op import attend
from regard.ops.attend.reference import attention_weights, window

__all__ = ["attend", "attention_weights", "window"]
