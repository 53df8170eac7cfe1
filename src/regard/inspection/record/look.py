"""`look`: records every attention of a model inside a `with` block.

    with rg.look(model, tokens=tokenizer) as sight:
        model(ids)
    site = sight["decoder.3.self"]  # or sight.heads(), sight.join_all(), sight.save(path)
    site.survey().entropy, site.window(head=2, rows=slice(0, 8)), site.influence()

`patched` makes every attention of the model an `AttentionCall` (`adapters/`), which passes
`ops.intercept` to the `Recorder`; that appends a `Site` to the `Sight`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from regard.inspection.adapters.eager_attention import intercept_sparse
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.adapters.short_call import first_calls
from regard.inspection.adapters.torch_attention import intercept_torch
from regard.inspection.adapters.transformers_attention import intercept_transformers
from regard.inspection.adapters.transformers_mixers import intercept_mixers
from regard.inspection.record.recorder import Recorder, RecordOptions
from regard.inspection.record.sight import Sight
from regard.inspection.record.token_labeler import TokenLabeler
from regard.inspection.record.token_mixing import find_token_mixing
from regard.inspection.sites.patches import describe_keys
from regard.ops.intercept import intercepting
from regard.ops.mixers import intercepting_mixers


@contextmanager
def look(
    model: nn.Module,
    at: str = "*",
    *,
    max_bytes: int = 2 << 30,
    tokens: Any = None,
    device: str | torch.device | None = None,
    grad: bool = False,
    survey: Collection[str] | Mapping[str, Any] | None = None,
    activations: str | Sequence[str] | None = None,
) -> Iterator[Sight]:
    """Record every attention of a model while it runs with its fused kernels.

    w_ij = exp(s_ij - lse_i): q, k and lse are recorded; any weight is recomputed on demand

    Works with models of regard and transformers, and with any module that calls torch's attention
    functions. The outputs of the model do not change. Looks may overlap; forward passes in other
    threads are recorded too, unless those threads look at or edit the model themselves.

    Args:
        model: The model; it must not be compiled.
        at: Glob over the names or paths of attention modules.
        max_bytes: Memory limit, 2 GiB by default; attentions beyond it are listed in
            `sight.skipped`, and a warning names their number.
        tokens: Labels of the positions: a list, one list per sequence, a mapping with source and
            target, or a tokenizer that decodes the model's input ids.
        device: Device to move the recorded tensors to.
        grad: Keep the autograd graph.
        survey: Statistics, or arguments of `Site.survey`, to compute at once; no other tensor of
            an attention is recorded.
        activations: Globs over the names of `activation_names(model)`, such as "*.residual_out":
            recorded in `sight.activations`, in this thread. With `at=""` nothing else is.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> with rg.look(model, "*.0.self") as sight:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> sight["decoder.0.self"].survey().entropy.shape
    torch.Size([1, 4, 3])
    """
    sight = Sight()
    if survey is not None and not isinstance(survey, Mapping):
        survey = {"statistics": survey}
    options = RecordOptions(at, max_bytes, device, grad, survey, activations)

    # activations alone need no interception, so the model runs as it is
    alone = at == "" and activations is not None
    tracking = nullcontext(ModuleTracker(model)) if alone else patched(model)
    with tracking as tracker:
        recorder = Recorder(sight, tracker, options, TokenLabeler(tracker, tokens))
        wants = recorder.wants_call
        intercepted = intercepting(recorder, tracker, when=wants)
        mixers = intercepting_mixers(recorder.record_mixer, tracker, when=wants)
        first = nullcontext({}) if alone else first_calls(tracker.modules)
        with recorder.hook_activations(), closing(recorder), intercepted, mixers, first as calls:
            yield sight
    if not alone:
        sight.sites[:] = describe_keys(model, calls, sight.sites)
        recorder.skip(find_token_mixing(model, tracker.modules, calls, patched))
    recorder.finish()


@contextmanager
def patched(model: nn.Module) -> Iterator[ModuleTracker]:
    """Route every attention of a model through `ops.attend`, and track which module calls it.

    Use: `with patched(model) as tracker, intercepting(interceptor, tracker)`. Inside the
    interceptor, `tracker.caller` has the name, path and kind of the calling module.
    """
    tracker = ModuleTracker(model)
    with tracker.hooks(intercept_transformers, intercept_mixers, intercept_torch, intercept_sparse):
        yield tracker
