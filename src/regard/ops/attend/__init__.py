"""Attention: one definition, several backends."""

from regard.ops.attend.op import attend
from regard.ops.attend.reference import attention_weights

__all__ = ["attend", "attention_weights"]
