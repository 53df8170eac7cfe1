"""`TextModel`: a model with its tokenizer, to record attention on a text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import models
from regard.data import Pair, Tokenizer
from regard.errors import LookError, ShapeError, library_errors
from regard.inspection.adapters.activation_points import activation_names
from regard.inspection.edits.activations import ActivationEdit
from regard.inspection.edits.base import Edit
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight
from regard.inspection.report.report import Predictions, top_predictions
from regard.models.config import get_config
from regard.tasks.pipeline import model_on
from regard.tasks.translation.alignment import editing, record_translation

PUNCTUATION = frozenset(".,;:!?")  # separators beside a tokenizer's own special tokens
ENCODER_DECODERS = (models.Translator, models.RecurrentTranslator)
SINGLE_STACKS = (models.LanguageModel, models.Classifier)
ROUTED = (".router.choice", ".router.logits")  # activations that a page shows
MAX_LOGITS = 1 << 26  # of a reading: 256 MB of float32


class Reading(NamedTuple):
    """What a model did with a text."""

    sight: Sight
    target: str | None  # what an encoder-decoder wrote
    predictions: Predictions | None = None  # None for a model without logits
    logits: Tensor | None = None  # (position, token); None without them, or where they are many


@dataclass(frozen=True)
class TextModel:
    """A model and the mapping from text to its token ids.

    With `tokenizer` (of a run) or `hf_tokenizer` (of a Hugging Face folder) inputs are texts;
    without either, they are token ids such as "3 1 4".

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> sight = rg.runs.TextModel(model, vocab=10).look("3 1 4", at="*.1.self")
    >>> sight["decoder.1.self"].query_tokens
    [['3', '1', '4']]
    """

    model: nn.Module
    hf_tokenizer: Any = None
    is_encoder_decoder: bool = False
    vocab: int | None = None
    max_length: int | None = None
    decoder_start_token_id: int | None = None  # of a Hugging Face decoder
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()  # names of the classes or tags
    prefix: tuple[int, ...] = ()  # special tokens before a text, of a model with `tokenizer`
    suffix: tuple[int, ...] = ()  # and after it

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether a model of ours reads token ids."""
        return isinstance(model, ENCODER_DECODERS + SINGLE_STACKS)

    @staticmethod
    def from_model(
        model: nn.Module, tokenizer: Tokenizer | None = None, labels: tuple[str, ...] = ()
    ) -> "TextModel":
        """A model of ours that reads token ids."""
        if not isinstance(model, ENCODER_DECODERS + SINGLE_STACKS):
            raise LookError(
                f"model: needs one that reads tokens, got {type(model).__name__}; "
                "try rg.look(model) in Python with its own input"
            )
        pair = isinstance(model, ENCODER_DECODERS)
        vocab = model.config.source_vocab if pair else model.config.vocab
        return TextModel(
            model, is_encoder_decoder=pair, vocab=vocab, tokenizer=tokenizer, labels=labels
        )

    @property
    def separators(self) -> frozenset[str]:
        """Tokens that end a part of a text: punctuation and special tokens."""
        if (tokenizer := self.tokenizer) is not None:
            ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
            return PUNCTUATION | {tokenizer.special_tokens[i] for i in ids}
        special = () if self.hf_tokenizer is None else self.hf_tokenizer.all_special_tokens
        return PUNCTUATION | set(special)

    @property
    def default_language(self) -> str | None:
        """The first target language of a translator's tokenizer."""
        return None if self.tokenizer is None else next(iter(self.tokenizer.languages), None)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def on(self, device: str | torch.device | None) -> "TextModel":
        """This with the model on a device, as `model_on` returns it."""
        model = model_on(self.model, device)
        return self if model is self.model else replace(self, model=model)

    def untrained(self, seed: int = 0) -> "TextModel":
        """This with a newly initialised model."""
        with torch.random.fork_rng(), torch.device(self.device):
            torch.manual_seed(seed)
            return replace(self, model=models.build(get_config(self.model)).eval())

    @torch.no_grad()
    def look(
        self,
        text: str,
        target: str | None = None,
        at: str = "*",
        *,
        to: str | None = None,
        edits: Sequence[Edit | ActivationEdit] = (),
    ) -> Sight:
        """Record the attention of one forward pass over a text.

        Args:
            text: what the model reads; token ids if it has no tokenizer.
            target: what an encoder-decoder writes; a run's translator decodes its own if None.
            at: glob over attention sites.
            to: target language of a run's translator.
            edits: of the recorded pass, as `rg.what_if` takes them; a target that is not given is
                decoded without them.
        """
        if self.is_encoder_decoder and self.tokenizer is not None:
            pair = Pair(text, self.complete_target(text, target, to) or "", to)
            return record_translation(self.model, self.tokenizer, pair, at, edits)
        if self.is_encoder_decoder and target is None:
            kind = type(self.model).__name__
            raise LookError(
                f"target: needs the decoder input of {kind} beside its source, got none; "
                "try --target"
            )
        ids = self.encode("text", text)
        inputs, tokens = [ids], {"source": self._tokens(ids)}
        if self.is_encoder_decoder:
            assert target is not None
            decoder_ids = self.encode("target", target, is_decoder=True)
            inputs, tokens["target"] = [ids, decoder_ids], self._tokens(decoder_ids)
        routers = [x for x in activation_names(self.model) if x.endswith(ROUTED)] or None
        looking = look(self.model, at, tokens=tokens, activations=routers)
        # edits inside the look: it records the edited queries, keys and masks
        with looking as sight, editing(self.model, edits):
            if self.decoder_start_token_id is not None:
                self.model(input_ids=inputs[0], decoder_input_ids=inputs[1])
            else:
                self.model(*inputs)
        return sight

    def read(
        self,
        text: str,
        target: str | None = None,
        at: str = "*",
        *,
        to: str | None = None,
        edits: Sequence[Edit | ActivationEdit] = (),
    ) -> Reading:
        """Record as `look` does, with the target and the predictions of the same forward pass.

        >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
        >>> len(rg.runs.TextModel(model, vocab=10).read("3 1 4").predictions.rows)
        3
        """
        target, outputs = self.complete_target(text, target, to), []
        hook = self.model.register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            sight = self.look(text, target, at, to=to, edits=edits)
        finally:
            hook.remove()
        predictions = self._predictions(outputs[-1])
        mask = str(getattr(self.hf_tokenizer, "mask_token", None))
        labels = (x.query_tokens for x in reversed(sight.sites) if x.query_tokens)
        tokens = next(labels, [[]])[0]
        if predictions is not None and predictions.kind == "token" and mask in tokens:
            predictions = predictions._replace(at=tokens.index(mask))
        logits = self._logits(outputs[-1])
        if logits is not None:
            logits = logits.detach() if logits.ndim == 2 else logits[0].detach()
            logits = logits if logits.numel() <= MAX_LOGITS else None
        return Reading(sight, target, predictions, logits)

    def _logits(self, output: Any) -> Tensor | None:
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        is_headless = isinstance(self.model, models.Classifier) and self.model.head is None
        if not isinstance(logits, Tensor) or is_headless or logits.shape[-1] < 2:
            return None
        return logits

    def _predictions(self, output: Any) -> Predictions | None:
        if (logits := self._logits(output)) is None:
            return None
        if logits.ndim == 2 or self.labels:
            labels = self.labels or [str(n) for n in range(logits.shape[-1])]
            kind, rows = ("class", logits) if logits.ndim == 2 else ("tag", logits[0])
            return top_predictions(kind, rows, lambda ids: [labels[i] for i in ids])
        kind = "token" if type(self.model).__name__.endswith("MaskedLM") else "next token"
        return top_predictions(kind, logits[0], self.token_names)

    def complete_target(self, text: str, target: str | None, to: str | None) -> str | None:
        """The target, or what a run's translator decodes for the text where none is given."""
        if self.tokenizer is None or not self.is_encoder_decoder:
            return target
        languages = self.tokenizer.languages
        if to is None and languages:
            raise LookError(
                f"to: needs a target language, one of {' '.join(languages)}, got none; "
                f"try --to {languages[0]}"
            )
        if not self.tokenizer.encode_input(text):
            raise ShapeError(f"text: needs at least one token, got {text!r}")
        if target is not None:
            return target
        from regard.tasks import translate_texts

        return translate_texts(self.model, self.tokenizer, [text], [to])[0]

    def encode(self, name: str, text: str, is_decoder: bool = False) -> Tensor:
        """The token ids of a text, (1, time); `name` is the argument that errors name."""
        if self.tokenizer is not None:
            ids = [*self.prefix, *self.tokenizer.encode_input(text), *self.suffix]
        elif self.hf_tokenizer is None:
            ids = self._parse_ids(name, text)
        else:
            with library_errors(name, "a tokenizer in its folder that encodes it"):
                ids = [index(x) for x in self.hf_tokenizer(text).input_ids]
        if is_decoder and self.decoder_start_token_id is not None:
            ids = [self.decoder_start_token_id, *ids]
        if not ids:
            raise ShapeError(f"{name}: needs at least one token, got {text!r}")
        if self.max_length is not None and len(ids) > self.max_length:
            raise ShapeError(
                f"{name}: needs at most {self.max_length} tokens for this model, got {len(ids)}"
            )
        if self.vocab is not None and not 0 <= min(ids) <= max(ids) < self.vocab:
            unknown = next(x for x in ids if not 0 <= x < self.vocab)
            raise ShapeError(f"{name}: needs tokens from 0 to {self.vocab - 1}, got {unknown}")
        return torch.tensor([ids], device=self.device)

    def _parse_ids(self, name: str, text: str) -> list[int]:
        try:
            return [int(part) for part in text.replace(",", " ").split()]
        except ValueError:
            raise ShapeError(
                f"{name}: needs token ids, as this model has no tokenizer beside it, "
                f"got {text[:40]!r}; try '3 1 4'"
            ) from None

    def _tokens(self, ids: Tensor) -> list[str]:
        return self.token_names(ids[0].tolist())

    def token_names(self, ids: list[int]) -> list[str]:
        """Tokens by id."""
        if self.tokenizer is not None:
            return [self.tokenizer.id_to_token(x) for x in ids]
        names = [] if self.hf_tokenizer is None else self.hf_tokenizer.convert_ids_to_tokens(ids)
        # logits may have more columns than the tokenizer has tokens
        return [str(x) if name is None else name for x, name in zip_longest(ids, names)]
