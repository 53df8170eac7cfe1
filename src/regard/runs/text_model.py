"""A model on disk, ours or a Hugging Face folder, made to read a text while it is looked at."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard import models
from regard.data import Pair, Tokenizer
from regard.data.text.tokenizers import SPECIAL_TOKENS
from regard.errors import FileError, LookError, ShapeError
from regard.inspection.record.look import look
from regard.inspection.record.sight import Sight
from regard.runs.translation_sight import record_translation

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model")
PUNCTUATION = frozenset(".,;:!?")  # count as separators beside a tokenizer's own special tokens


@dataclass(frozen=True)
class TextModel:
    """A model and the way from text to its tokens: a tokenizer, or numbers where there is none.

    A run has `words`, a tokenizer of ours; what its translator writes need not be given then.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> sight = rg.TextModel(model, vocab=10).look("3 1 4", at="*.1.self")
    >>> sight["decoder.1.self"].query_tokens
    [['3', '1', '4']]
    """

    model: nn.Module
    hf_tokenizer: Any = None
    is_encoder_decoder: bool = False  # reads one sequence and writes another
    vocab: int | None = None
    max_length: int | None = None
    decoder_start_token_id: int | None = None  # the token that a Hugging Face decoder begins with
    tokenizer: Tokenizer | None = None

    @property
    def separators(self) -> frozenset[str]:
        """What ends a part of a text, as tokens."""
        special = SPECIAL_TOKENS if self.tokenizer is not None else ()
        special = special if self.hf_tokenizer is None else self.hf_tokenizer.all_special_tokens
        return PUNCTUATION | set(special)

    @torch.no_grad()
    def look(
        self, text: str, target: str | None = None, at: str = "*", *, to: str | None = None
    ) -> Sight:
        """The sight of one run over the text, and the target where the model writes one.

        `to` is the language that a run's translator writes, where it knows several.
        """
        if self.is_encoder_decoder and self.tokenizer is not None:
            return self._read_pair(self.tokenizer, text, target, at, to)
        if self.is_encoder_decoder and target is None:
            kind = type(self.model).__name__
            raise LookError(
                f"target: needs what {kind} writes beside what it reads, got none; try --target"
            )
        ids = self._ids("text", text)
        inputs = [ids]
        words = {"source": self._words(ids)}
        if self.is_encoder_decoder:
            assert target is not None
            written = self._ids("target", target, begin=True)
            inputs, words = [ids, written], words | {"target": self._words(written)}
        with look(self.model, at, tokens=words) as sight:
            if self.decoder_start_token_id is not None:
                self.model(input_ids=inputs[0], decoder_input_ids=inputs[1])
            else:
                self.model(*inputs)
        return sight

    def _read_pair(
        self, words: Tokenizer, text: str, target: str | None, at: str, to: str | None
    ) -> Sight:
        if to is None and words.languages:
            raise LookError(
                f"to: needs the language to write, one of {' '.join(words.languages)}, got none; "
                f"try --to {words.languages[0]}"
            )
        if not words.encode_input(text):
            raise ShapeError(f"text: needs at least one token, got {text!r}")
        if target is None:
            from regard.tasks import translate_texts

            (target,) = translate_texts(self.model, words, [text], [to])
        return record_translation(self.model, words, Pair(text, target, to), at)

    def _ids(self, name: str, text: str, begin: bool = False) -> Tensor:
        if self.tokenizer is not None:
            ids = self.tokenizer.encode_input(text)
        elif self.hf_tokenizer is None:
            ids = self._numbers(name, text)
        else:
            ids = self.hf_tokenizer(text).input_ids
        if begin and self.decoder_start_token_id is not None:
            ids = [self.decoder_start_token_id, *ids]
        if not ids:
            raise ShapeError(f"{name}: needs at least one token, got {text!r}")
        if self.max_length is not None and len(ids) > self.max_length:
            raise ShapeError(
                f"{name}: needs at most {self.max_length} tokens for this model, got {len(ids)}"
            )
        if self.vocab is not None and not 0 <= min(ids) <= max(ids) < self.vocab:
            odd = next(x for x in ids if not 0 <= x < self.vocab)
            raise ShapeError(f"{name}: needs tokens from 0 to {self.vocab - 1}, got {odd}")
        return torch.tensor([ids])

    def _numbers(self, name: str, text: str) -> list[int]:
        try:
            return [int(part) for part in text.replace(",", " ").split()]
        except ValueError:
            raise ShapeError(
                f"{name}: needs token numbers, as this model has no tokenizer beside it, "
                f"got {text[:40]!r}; try '3 1 4'"
            ) from None

    def _words(self, ids: Tensor) -> list[str]:
        if self.tokenizer is not None:
            return [self.tokenizer.id_to_token(x) for x in ids[0].tolist()]
        if self.hf_tokenizer is None:
            return [str(x) for x in ids[0].tolist()]
        return list(self.hf_tokenizer.convert_ids_to_tokens(ids[0].tolist()))


def load_text_model(path: str | Path) -> TextModel:
    """The model at a path: a run, a specimen's name, a file of ours, a Hugging Face folder.

    >>> import tempfile
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10))
    >>> reader = load_text_model(rg.models.save(model, tempfile.mkdtemp()))
    >>> reader.look("3 1 4").names
    ['decoder.0.self', 'decoder.1.self']
    """
    from regard.runs import find_run, load_run  # only who opens one waits for it
    from regard.runs.run import RECIPE_FILE

    path = find_run(path)
    if (path / RECIPE_FILE).is_file():
        run = load_run(path)
        return replace(_reader(run.model), tokenizer=run.tokenizer)
    if path.is_dir() and (path / "config.json").is_file():
        return _theirs(path)
    if path.is_dir() and not (path / "model.safetensors").is_file():
        raise FileError(
            f"{path}: needs model.safetensors of ours or config.json of Hugging Face, got neither"
        )
    return _ours(path)


def _ours(path: Path) -> TextModel:
    return _reader(models.load(path))


def _reader(model: nn.Module) -> TextModel:
    config: Any = model.config
    match model:
        case models.Translator() | models.RecurrentTranslator():
            return TextModel(model, is_encoder_decoder=True, vocab=config.source_vocab)
        case models.LanguageModel() | models.Classifier():
            return TextModel(model, vocab=config.vocab)
    raise LookError(
        f"model: needs one that reads tokens, got {type(model).__name__}; "
        "try rg.look(model) in Python with its own input"
    )


def _theirs(path: Path) -> TextModel:
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise LookError(
            "model: needs transformers for a Hugging Face folder, got no such package; "
            "try pip install transformers"
        ) from None
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        model = AutoModel.from_pretrained(path, config=config, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise FileError(f"{path}: cannot be loaded by transformers, {said[0]}") from error
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise LookError(
            f"model: needs one that reads tokens, got {type(model).__name__}, which reads "
            f"{model.main_input_name}; try rg.look(model) in Python with its own input"
        )
    pair = bool(getattr(config, "is_encoder_decoder", False))
    start = getattr(config, "decoder_start_token_id", None)
    return TextModel(
        model.eval(),
        hf_tokenizer=_tokenizer(path),
        is_encoder_decoder=pair,
        vocab=getattr(config, "vocab_size", None),
        max_length=getattr(config, "max_position_embeddings", None),
        decoder_start_token_id=(0 if start is None else start) if pair else None,
    )


def _tokenizer(path: Path) -> Any:
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise FileError(f"{path}: has a tokenizer that cannot be loaded, {said[0]}") from error
