"""Labels recorded sites with tokens, given by the caller or decoded by a tokenizer."""

import threading
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.inspection.adapters.module_tracker import ModelHook, ModuleTracker
from regard.inspection.sites.labels import label_site, parse_tokens
from regard.inspection.sites.mixer_site import MixerSite, label_mixers
from regard.inspection.sites.patches import is_ids
from regard.inspection.sites.site import Site, Tokens

S = TypeVar("S", Site, MixerSite)
Ids = tuple[Tensor | None, Tensor | None]  # source and target token ids of one forward pass
TokenHistory = tuple[list[Ids], int]  # all forward passes of a thread, and how many came before


class TokenLabeler:
    """Labels the positions of every recorded site with tokens.

    With a tokenizer it records the token ids that the model gets; a generation step continues the
    text so far if its attention covers that text.
    """

    def __init__(self, tracker: ModuleTracker, tokens: Any):
        self.tokenizer = tokens if hasattr(tokens, "convert_ids_to_tokens") else None
        self.tokens = (None, None) if self.tokenizer is not None else parse_tokens(tokens)
        self._all: list[Ids] = []
        self._here = threading.local()  # .runs of the current thread
        if self.tokenizer is not None:
            hook = tracker.model.register_forward_pre_hook(
                ModelHook(self._record_ids), with_kwargs=True
            )
            tracker.exit_stack.callback(hook.remove)

    def token_history(self) -> TokenHistory:
        """The inputs so far of this thread; a worker thread without inputs has all."""
        runs = getattr(self._here, "runs", self._all)
        return runs, len(runs)

    def label(self, site: S, history: TokenHistory) -> S:
        """Label a site with the tokenizer's tokens for the recorded ids."""
        if self.tokenizer is None:
            return site
        runs, count = history
        source = [s for s, _ in runs[:count] if s is not None]
        target = [t for _, t in runs[:count] if t is not None]
        if isinstance(site, MixerSite):
            tokens = self._decode(target or source, site.keys)
            return label_mixers([site], tokens, allow_longer=True)[0]
        keys = site.keys if site.kind == "self" else None
        sides = self._decode(source, None if target else keys), self._decode(target, keys)
        return label_site(site, *sides, allow_longer=True) if any(sides) else site

    def _record_ids(
        self, model: nn.Module, args: tuple, kwargs: dict[str, Any] | None = None
    ) -> None:
        kwargs = kwargs or {}  # another thread may call a half-registered hook without kwargs
        ids = [x for x in args if is_ids(x)]
        source = kwargs.get("input_ids", ids[0] if ids else None)
        target = kwargs.get("decoder_input_ids", ids[1] if len(ids) > 1 else None)
        if not hasattr(self._here, "runs"):
            self._here.runs = []
        self._here.runs.append((source, target))
        self._all.append((source, target))

    def _decode(self, ids: list[Tensor], keys: int | None) -> Tokens | None:
        """The tokens of the last ids, and of as many earlier ids as the attention has keys."""
        if not ids or self.tokenizer is None:
            return None
        text = ids.pop()
        while ids and keys is not None and text.shape[1] < keys and len(ids[-1]) == len(text):
            text = torch.cat([ids.pop(), text], 1)
        return [list(self.tokenizer.convert_ids_to_tokens(row.tolist())) for row in text]
