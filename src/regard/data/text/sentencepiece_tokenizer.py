"""SentencePiece models as tokenizers, by the `sentencepiece` package."""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from regard.data.text.tokenizers import Tokenizer, merge_pairs
from regard.errors import FileError
from regard.files import import_extra

SPACE = "\u2581"  # stands for a space in pieces


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece .model file, such as unigram or byte pairs (Kudo and Richardson 2018).

    Ids are those of the file, whose bytes `state` holds in base64. What it lacks of PAD, BOS and
    EOS comes after them, as do languages.

    >>> SentencePieceTokenizer("aGVsbG8=")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: model: needs a SentencePiece model, got other content
    """

    _scores: dict[str, float] | None = None  # of the pieces that merges make

    def __init__(self, state: str, languages: Sequence[str] = ()):
        package: Any = import_extra("sentencepiece", "sentencepiece", "to read a .model")
        package.set_min_log_level(3)  # what is wrong is in the error
        self._base64, self._model = state, package.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(b64decode(state))
        except (RuntimeError, ValueError):
            raise FileError("model: needs a SentencePiece model, got other content") from None
        model, size = self._model, self._model.piece_size()
        special = [i for i in range(size) if model.is_control(i) or model.is_unknown(i)]
        roles = {role: getattr(model, f"{role}_id")() for role in ("pad", "bos", "eos", "unk")}
        roles = {role: i for role, i in roles.items() if i >= 0}
        super().__init__(languages, size, {i: model.id_to_piece(i) for i in special}, roles)
        self.is_bpe = self._is_bpe()

    def encode(self, text: str) -> list[int]:
        text = _without_surrogates(text)
        if self._drop is None:
            return self._model.encode(text)
        # dropout of the package has no seed per text; this gives the symbols before any merge
        symbols = self._model.sample_encode_as_pieces(text, nbest_size=-1, alpha=1.0)
        whole = {symbol for symbol in symbols if len(symbol) > 1}  # those of the user, and bytes
        scores = self._scores or {}

        def rank(pair: tuple[str, str]) -> float | None:
            return scores.get("".join(pair)) if whole.isdisjoint(pair) else None

        return self._model.piece_to_id(merge_pairs(symbols, rank, self._drop))

    def with_dropout(self, rate: float, key: str) -> Tokenizer:
        if self.is_bpe and self._scores is None:  # before a copy is made: it takes long
            model = self._model
            pieces = (i for i in range(model.piece_size()) if i not in self.special_tokens)
            self._scores = {
                model.id_to_piece(i): -model.get_score(i)
                for i in pieces
                if not (model.is_byte(i) or model.is_unused(i))
            }
        return super().with_dropout(rate, key)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        text = _without_surrogates(text)
        return self._model.encode(text, return_type="offset_mapping")["offsets"]

    def decode(self, ids: Sequence[int]) -> str:
        self._texts(ids)  # raises for ids out of range
        hidden = self.special_tokens.keys() - {self.unk_id}
        return self._model.decode([i for i in map(int, ids) if i not in hidden])

    def _token(self, index: int) -> str:
        return self._model.id_to_piece(index).replace(SPACE, " ")

    def _state(self) -> str:
        return self._base64

    def _is_bpe(self) -> bool:
        """Of the kinds of models, byte pairs alone can be sampled but not listed."""
        try:
            self._model.sample_encode_as_ids("a", nbest_size=-1, alpha=0.1)
        except RuntimeError:
            return False
        try:
            self._model.nbest_encode_as_ids("a", nbest_size=2)
        except RuntimeError:
            return True
        return False


def _without_surrogates(text: str) -> str:
    return text.encode(errors="replace").decode()
