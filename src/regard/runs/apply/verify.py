"""Verification of a model with a tokenizer on a text."""

from typing import Any

from regard.inspection import Verification, verify
from regard.runs.text_model import TextModel

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps."
IDS = 24  # tokens where there is no tokenizer


def verify_text(
    model: TextModel, text: str | None = None, *, target: str | None = None
) -> Verification:
    """Check every look, edit and attribution of a model on a text against brute force.

    Args:
        model: with its tokenizer.
        text: what the model reads; token ids if it has no tokenizer. None is a sentence.
        target: what an encoder-decoder writes; the text by default.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=30, layers=1)).eval()
    >>> rg.runs.verify_text(rg.runs.TextModel(model, vocab=30), "3 1 4 1 5").passed
    True
    """
    text = _example(model) if text is None else text
    inputs: Any = model.encode("text", text)
    if model.is_encoder_decoder:
        other = model.encode("target", text if target is None else target, is_decoder=True)
        inputs = (inputs, other)
    if model.decoder_start_token_id is not None:
        inputs = {"input_ids": inputs[0], "decoder_input_ids": inputs[1]}
    elif hasattr(model.model, "base_model_prefix"):  # of transformers
        inputs = {"input_ids": inputs}
    return verify(model.model, inputs)


def _example(model: TextModel) -> str:
    if model.tokenizer is not None or model.hf_tokenizer is not None:
        return TEXT
    vocab = model.vocab or 100
    return " ".join(str((7 * i + 3) % vocab) for i in range(IDS))
