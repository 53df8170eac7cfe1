"""Attention: what each query takes from the values, in several forms of one definition."""

from regard.ops.attend.op import attend
from regard.ops.attend.plain import attend_plainly
from regard.ops.attend.reference import attention_weights

__all__ = ["attend", "attend_plainly", "attention_weights"]
