"""The context in which a model is seen: every attention that runs inside is kept."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.inspection.adapters import torch_attention, transformers_attention
from regard.inspection.adapters.module_tracker import ModuleTracker
from regard.inspection.record.recorder import DEFAULT_MAX_BYTES, Recorder, RecordOptions
from regard.inspection.record.sight import Sight
from regard.inspection.sites.tokens import TokenLabeler
from regard.ops.intercept import intercepting


@contextmanager
def look(
    model: nn.Module,
    at: str = "*",
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    tokens: Any = None,
    device: str | torch.device | None = None,
    grad: bool = False,
    survey: Collection[str] | Mapping[str, Any] | None = None,
) -> Iterator[Sight]:
    """See every attention of a model while it runs, with its fused kernels on.

    w_ij = exp(s_ij - lse_i): q, k and lse are kept, and any weight is computed when it is asked for

    Works on models of ours, of transformers, and on whatever calls torch's attention; what the
    model returns stays the same. `at` is a glob over the names of sites. At most `keep` bytes are
    kept (2 GiB); what came after is named in `sight.skipped`. `device="cpu"` keeps them there.
    `grad=True` keeps the graph. `survey` names statistics (or holds arguments of `rg.survey`) to
    find at once, keeping nothing else. `tokens` are the words: a list, a list a sequence, a mapping
    with source and target, or a tokenizer that names the ids the model is given. Looks may overlap,
    and runs in other threads are seen too, unless those threads look at or edit the model
    themselves.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> with rg.look(model, "*.0.self") as sight:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> sight["decoder.0.self"].survey().entropy.shape
    torch.Size([1, 4, 3])
    """
    sight = Sight()
    wish = RecordOptions(at=at, max_bytes=max_bytes, device=device, grad=grad, survey=survey)
    with patched(model) as running, TokenLabeler(model, sight, tokens) as reader:
        keeper = Recorder(sight, running, wish, reader)
        try:
            with intercepting(keeper, running):
                yield sight
        finally:
            keeper.close()
    keeper.finish()


@contextmanager
def patched(model: nn.Module) -> Iterator[ModuleTracker]:
    """Lead every attention of a model, ours or not, through the one door, and say whose it is.

    Whoever edits or counts uses this too: `with patched(model) as running, intercepting(…, running)`.
    In the attendant `running.caller` has the name, path and kind of the attention that is asked.
    """
    running = ModuleTracker(model)
    torch_attention.intercept_torch(running)
    with running.hooks():
        transformers_attention.intercept_transformers(running)
        yield running
