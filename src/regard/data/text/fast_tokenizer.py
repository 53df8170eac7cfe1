"""Our tokenizers as files of Hugging Face's fast tokenizers, with the same ids."""

import json
from collections.abc import Sequence
from typing import Any

from regard.data.text.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from regard.errors import ConfigError


def fast_tokenizer_files(
    tokenizer: Tokenizer, *, prefix: Sequence[int] = (), suffix: Sequence[int] = ()
) -> dict[str, str]:
    """The texts of tokenizer.json and tokenizer_config.json for transformers' AutoTokenizer.

    Args:
        tokenizer: of bytes, characters or subwords, without text normalisation.
        prefix, suffix: special tokens before and after each text.

    >>> from tokenizers import Tokenizer as Engine
    >>> files = fast_tokenizer_files(ByteTokenizer(), prefix=[1])
    >>> Engine.from_str(files["tokenizer.json"]).encode("Aé").ids
    [1, 69, 199, 173]
    """
    if tokenizer.normalizers:
        steps = ", ".join(tokenizer.normalizers)
        raise ConfigError(f"normalizers: needs none for a fast tokenizer, got {steps}")
    names = [tokenizer.id_to_token(i) for i in range(tokenizer.first_text_id)]
    engine = _engine(tokenizer, names)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    engine["added_tokens"] = [
        {"id": i, "content": name, **flags, "special": True} for i, name in enumerate(names)
    ]
    if edges := {*prefix, *suffix}:
        before, after = (
            [{"SpecialToken": {"id": names[i], "type_id": 0}} for i in ids]
            for ids in (prefix, suffix)
        )
        first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        engine["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [*before, first, *after],
            "pair": [*before, first, *after, second, *after],
            "special_tokens": {
                names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in edges
            },
        }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": names[tokenizer.pad_id],
        "bos_token": names[prefix[0] if prefix else tokenizer.bos_id],
        "eos_token": names[tokenizer.eos_id],
        "unk_token": names[tokenizer.unk_id],
        "split_special_tokens": True,  # "<pad>" in a text is five ordinary characters
        "clean_up_tokenization_spaces": False,
    }
    texts = {"tokenizer.json": json.dumps(engine, ensure_ascii=False)}
    return texts | {"tokenizer_config.json": json.dumps(config, indent=1) + "\n"}


def _engine(tokenizer: Tokenizer, names: Sequence[str]) -> dict[str, Any]:
    """The JSON of an engine whose ids are those of our tokenizer."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Engine

    first, special = len(names), {name: i for i, name in enumerate(names)}
    if type(tokenizer) is CharTokenizer:
        vocab = special | {token: first + i for i, token in enumerate(tokenizer.tokens)}
        built = Engine(models.WordLevel(vocab, unk_token=names[tokenizer.unk_id]))
        built.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        built.decoder = decoders.Fuse()
        return json.loads(built.to_str())
    if type(tokenizer) is ByteTokenizer:
        built = Engine(models.BPE(_byte_characters(), []))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        built.decoder = decoders.ByteLevel()
    elif (built := getattr(tokenizer, "_engine", None)) is None:
        kind = type(tokenizer).__name__
        raise ConfigError(
            f"tokenizer: needs bytes, characters or subwords for a fast tokenizer, got {kind}"
        )
    engine = json.loads(built.to_str())
    model, vocab = engine["model"], engine["model"]["vocab"]
    if not isinstance(vocab, dict) or model["type"] != "BPE":
        raise ConfigError(f"tokenizer: needs byte pairs among subwords, got {model['type']}")
    if taken := sorted(special.keys() & vocab.keys()):
        raise ConfigError(f"vocab: needs no {taken[0]!r} made of text, got one")
    model["vocab"] = special | {token: first + i for token, i in vocab.items()}
    return engine


def _byte_characters() -> dict[str, int]:
    """The printable character of each byte in byte-level encodings, as GPT-2 has them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + n): byte for n, byte in enumerate(others)}
