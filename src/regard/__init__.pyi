from collections.abc import Callable
from typing import Any

from regard import claims as claims
from regard import costs as costs
from regard import data as data
from regard import decode as decode
from regard import errors as errors
from regard import inspection as inspection
from regard import models as models
from regard import nn as nn
from regard import ops as ops
from regard import runs as runs
from regard import tasks as tasks
from regard import train as train
from regard import work as work
from regard.costs import Cost as Cost
from regard.costs import cost as cost
from regard.costs import diagram as diagram
from regard.errors import RegardError as RegardError
from regard.inspection import AttentionMonitor as AttentionMonitor
from regard.inspection import Sight as Sight
from regard.inspection import Site as Site
from regard.inspection import attention_rollout as attention_rollout
from regard.inspection import compare_edits as compare_edits
from regard.inspection import draw as draw
from regard.inspection import edit as edit
from regard.inspection import gradient_norms as gradient_norms
from regard.inspection import head_importance as head_importance
from regard.inspection import load_sight as load_sight
from regard.inspection import look as look
from regard.inspection import make_site as make_site
from regard.inspection import patching as patching
from regard.inspection import record_gates as record_gates
from regard.inspection import what_if as what_if
from regard.inspection import write_report as write_report
from regard.ops import ALiBi as ALiBi
from regard.ops import Bias as Bias
from regard.ops import Buckets as Buckets
from regard.ops import Causal as Causal
from regard.ops import Chunked as Chunked
from regard.ops import Documents as Documents
from regard.ops import Influence as Influence
from regard.ops import Local as Local
from regard.ops import Mask as Mask
from regard.ops import Padding as Padding
from regard.ops import RelativeKeys as RelativeKeys
from regard.ops import Survey as Survey
from regard.ops import Toeplitz as Toeplitz
from regard.ops import attend as attend
from regard.ops import attention_weights as attention_weights
from regard.ops import influence as influence
from regard.ops import softargmax as softargmax
from regard.ops import survey as survey
from regard.ops import window as window
from regard.runs import Run as Run
from regard.runs import load as load
from regard.work import explain as explain

__version__: str

def lazy_package(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]: ...
