"""The context in which a model is seen: every attention that runs inside is kept."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LookError
from regard.look.pieces import moved
from regard.look.running import Caller, Running, refuse_compiled
from regard.look.sight import Sight
from regard.look.site import Site
from regard.ops.door import Answer, Call, Proceed, attending
from regard.ops.grid import four_axes

KEEP = 2 << 30  # bytes


@contextmanager
def look(
    model: nn.Module,
    at: str = "*",
    *,
    keep: int = KEEP,
    tokens: Any = None,
    device: str | torch.device | None = None,
    grad: bool = False,
    survey: Collection[str] | Mapping[str, Any] | None = None,
) -> Iterator[Sight]:
    """See every attention of a model while it runs, with its fused kernels on.

    w_ij = exp(s_ij - lse_i): q, k and lse are kept, and any weight is computed when it is asked for

    `at` is a glob over the names of sites. At most `keep` bytes are kept; what came after is named
    in `sight.skipped`. `device="cpu"` keeps them there. `grad=True` keeps the graph. `survey` names
    statistics (or holds arguments of `rg.survey`) to find at once, keeping nothing else.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> with rg.look(model, "*.0.self") as sight:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> sight["decoder.0.self"].survey().entropy.shape
    torch.Size([1, 4, 3])
    """
    sight = Sight()
    with routed(model) as running:
        keeper = Keeper(sight, running, at, keep, device, grad, survey)
        with attending(keeper):
            yield sight
    keeper.finish()


@contextmanager
def routed(model: nn.Module) -> Iterator[Running]:
    """Lead every attention of a model, ours or not, through the one door, and say whose it is.

    Whoever edits or counts uses this too: `with routed(model) as running, attending(…)`, and in the
    attendant `running.caller` has the name, path and kind of the attention that is asked.
    """
    refuse_compiled(model)
    running = Running(model)
    with ExitStack() as ways:
        ways.enter_context(running.hooked())
        yield running


class Keeper:
    """Stands at the door and keeps what passes."""

    def __init__(
        self,
        sight: Sight,
        running: Running,
        at: str,
        keep: int,
        device: str | torch.device | None,
        grad: bool,
        survey: Collection[str] | Mapping[str, Any] | None,
    ):
        self.sight, self.running, self.at = sight, running, at
        self.room, self.keep = keep, keep
        self.device, self.grad = device, grad
        self.ask = survey if survey is None or isinstance(survey, Mapping) else {"ask": survey}
        self.calls: Counter[str] = Counter()

    def __call__(self, call: Call, proceed: Proceed) -> Answer:
        out, lse = proceed(call)
        caller = self.running.caller
        if self.running.inside and fnmatchcase(caller.name, self.at):
            self._see(caller, call, out, lse)
        return out, lse

    def _see(self, caller: Caller, call: Call, out: Tensor, lse: Tensor) -> None:
        count = self.calls[caller.path]
        self.calls[caller.path] += 1
        tensors = [self._take(four_axes(x)) for x in (call.q, call.k, call.v, out)]
        lse = self._take(four_axes(lse[..., None])[..., 0])
        if self.ask is None:
            size = sum(x.nbytes for x in (*tensors, lse))
            if size > self.room:
                self.sight.skipped.setdefault(
                    caller.name,
                    f"from call {count} on: the {self.keep} bytes to keep are full; "
                    "try at=, keep=, device= or survey=",
                )
                return
            self.room -= size
        q, k, v, out = tensors
        terms = moved(call.terms, self._take)
        site = Site(
            name=caller.name,
            path=caller.path,
            call=count,
            kind=caller.kind,
            q=q,
            k=k,
            v=v,
            out=out,
            lse=lse,
            terms=terms,
        )
        self.sight.sites.append(site if self.ask is None else _surveyed(site, self.ask))

    def _take(self, x: Tensor) -> Tensor:
        x = x if self.grad else x.detach()
        return x if self.device is None else x.to(self.device)

    def finish(self) -> None:
        """Say what was not seen; nothing at all is an error, never an empty sight."""
        if self.sight.sites:
            return
        raise LookError(f"model: needs an attention that can be seen, got none at {self.at!r}")


def _surveyed(site: Site, ask: Mapping[str, Any]) -> Site:
    """The statistics alone; the tensors keep their shapes and lose their numbers."""
    found = site.survey(**ask)
    shapes = {name: getattr(site, name).to("meta") for name in ("q", "k", "v", "out", "lse")}
    return replace(site, found=found, **shapes)
