"""Data sources, tokenizers, augmentation and batching; real data sets without a download.

Names that need Babel or Pillow are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.data.audio.audio_file import AudioExample, AudioFile, Resampler
from regard.data.audio.augmentation import SpeechAugmentation, augment_log_mel
from regard.data.audio.peak_normalization import PeakNormalizer, normalize_recording
from regard.data.audio.speech_batches import AudioBatches
from regard.data.audio.speech_manifest import SpeechManifest, speech_preprocessor
from regard.data.batches import Batches, GeneratedBatches, collate, seeded_generator
from regard.data.content.morse.channel import key_text, keyed_tone
from regard.data.content.morse.source import Morse, morse_batches
from regard.data.content.phrases.facts import Fact, count_facts, draw_fact, fact_split
from regard.data.image.idx import read_idx
from regard.data.image.image_batches import (
    CutMixResult,
    ImageBatches,
    ImageExample,
    augment,
    cutmix,
)
from regard.data.source import InMemorySource, LoadReport, NumberedSource, Source
from regard.data.split import Split, hash_split
from regard.data.table import read_table
from regard.data.text.annotated import (
    LabeledText,
    TaggedTokens,
    read_labeled_texts,
    read_tagged_tokens,
)
from regard.data.text.documents import (
    Document,
    PackedText,
    TextFiles,
    TokenWindow,
    pack_text,
    stdlib_files,
)
from regard.data.text.engine_tokenizers import (
    BPETokenizer,
    HuggingFaceTokenizer,
    TokenizerStats,
    TokenizerType,
    UnigramTokenizer,
    measure_tokenizer,
    train_tokenizer,
)
from regard.data.text.normalizers import normalize_text
from regard.data.text.parallel_corpus import Pair, ParallelCorpus, pair_preprocessor
from regard.data.text.po_catalog import FillResult, PoCatalog, PoMessage, placeholders
from regard.data.text.sentencepiece_tokenizer import SentencePieceTokenizer
from regard.data.text.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    iter_texts,
)
from regard.data.text.word_split import split_words
from regard.data.token_cache import TokenCache, write_token_cache

if TYPE_CHECKING:
    from regard.data.content.glyphs.rendered import Glyphs, RenderedGlyphs
    from regard.data.content.phrases.source import Phrases, format_fact
    from regard.data.image.image_collection import ImageCollection, load_images
    from regard.data.image.image_file import crop_to_ink, open_image, read_image

_LAZY = {
    "content.glyphs.rendered": ("Glyphs", "RenderedGlyphs"),
    "content.phrases.source": ("Phrases", "format_fact"),
    "image.image_collection": ("ImageCollection", "load_images"),
    "image.image_file": ("crop_to_ink", "open_image", "read_image"),
}

__all__ = [
    "AudioBatches",
    "AudioExample",
    "AudioFile",
    "BPETokenizer",
    "Batches",
    "ByteTokenizer",
    "CharTokenizer",
    "CutMixResult",
    "Document",
    "Fact",
    "FillResult",
    "GeneratedBatches",
    "Glyphs",
    "HuggingFaceTokenizer",
    "ImageBatches",
    "ImageCollection",
    "ImageExample",
    "InMemorySource",
    "LabeledText",
    "LoadReport",
    "Morse",
    "NumberedSource",
    "PackedText",
    "Pair",
    "ParallelCorpus",
    "PeakNormalizer",
    "Phrases",
    "PoCatalog",
    "PoMessage",
    "RenderedGlyphs",
    "Resampler",
    "SentencePieceTokenizer",
    "Source",
    "SpeechAugmentation",
    "SpeechManifest",
    "Split",
    "TaggedTokens",
    "TextFiles",
    "TokenCache",
    "TokenWindow",
    "Tokenizer",
    "TokenizerStats",
    "TokenizerType",
    "UnigramTokenizer",
    "WordTokenizer",
    "augment",
    "augment_log_mel",
    "collate",
    "count_facts",
    "crop_to_ink",
    "cutmix",
    "draw_fact",
    "fact_split",
    "format_fact",
    "hash_split",
    "iter_texts",
    "key_text",
    "keyed_tone",
    "load_images",
    "measure_tokenizer",
    "morse_batches",
    "normalize_recording",
    "normalize_text",
    "open_image",
    "pack_text",
    "pair_preprocessor",
    "placeholders",
    "read_idx",
    "read_image",
    "read_labeled_texts",
    "read_table",
    "read_tagged_tokens",
    "seeded_generator",
    "speech_preprocessor",
    "split_words",
    "stdlib_files",
    "train_tokenizer",
    "write_token_cache",
]


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"regard.data.{module}"), name)
    raise AttributeError(f"module 'regard.data' has no attribute {name!r}")
