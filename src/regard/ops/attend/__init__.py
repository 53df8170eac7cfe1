"""Attention: what each query takes from the values, in several forms of one definition."""

from regard.ops.attend.op import attend
from regard.ops.attend.reference import attention_weights
from regard.ops.attend.sdpa import attend_plainly

__all__ = ["attend", "attend_plainly", "attention_weights"]
