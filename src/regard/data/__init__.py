"""Sources, tokenizers and batches: real data without downloads."""

from regard.data.audio.audio_batches import AudioBatches, morse_batches
from regard.data.audio.audio_file import AudioFile
from regard.data.audio.augmentation import SpeechAugmentation, augment_log_mel
from regard.data.audio.digit_frames import digit_batches
from regard.data.audio.digits import SpokenDigits
from regard.data.audio.morse.keying import Keying, key_text, keyed_tone
from regard.data.audio.morse.source import AudioExample, Morse
from regard.data.audio.peak_normalization import PeakNormalizer, normalize_recording
from regard.data.audio.resampler import Resampler
from regard.data.audio.speech_manifest import SpeechManifest, speech_preprocessor
from regard.data.batches import Batches, collate, pair_preprocessor
from regard.data.generated_batches import GeneratedBatches, seeded_generator
from regard.data.image.glyphs.rendered import RenderedGlyphs
from regard.data.image.glyphs.single_font import Glyphs, ImageExample
from regard.data.image.idx import IdxImages, ImageFolder, read_idx
from regard.data.image.image_batches import CutMixResult, ImageBatches, augment, cutmix
from regard.data.image.image_file import open_image, read_image
from regard.data.image.ink_crop import crop_to_ink
from regard.data.load_report import LoadReport
from regard.data.source import InMemorySource, Source
from regard.data.text.documents import Document, TextFiles, stdlib_files
from regard.data.text.normalizers import normalize_text
from regard.data.text.packed import PackedText, TokenWindow, pack_text
from regard.data.text.parallel_corpus import ParallelCorpus
from regard.data.text.phrases.facts import Fact, count_facts, draw_fact, fact_split
from regard.data.text.phrases.source import Pair, Phrases, format_fact
from regard.data.text.po_catalog import FillResult, PoCatalog, PoMessage, placeholders
from regard.data.text.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    iter_texts,
)

__all__ = [
    "BPETokenizer",
    "Batches",
    "ByteTokenizer",
    "PoCatalog",
    "SpeechAugmentation",
    "CharTokenizer",
    "SpokenDigits",
    "Document",
    "Fact",
    "FillResult",
    "Glyphs",
    "IdxImages",
    "ImageFolder",
    "Keying",
    "PeakNormalizer",
    "InMemorySource",
    "GeneratedBatches",
    "PoMessage",
    "CutMixResult",
    "Morse",
    "PackedText",
    "Pair",
    "ParallelCorpus",
    "Phrases",
    "ImageExample",
    "ImageBatches",
    "LoadReport",
    "Resampler",
    "AudioExample",
    "AudioBatches",
    "AudioFile",
    "Source",
    "SpeechManifest",
    "TextFiles",
    "Tokenizer",
    "TokenWindow",
    "WordTokenizer",
    "RenderedGlyphs",
    "augment",
    "collate",
    "digit_batches",
    "draw_fact",
    "crop_to_ink",
    "key_text",
    "normalize_recording",
    "seeded_generator",
    "cutmix",
    "morse_batches",
    "normalize_text",
    "open_image",
    "augment_log_mel",
    "pack_text",
    "pair_preprocessor",
    "placeholders",
    "read_idx",
    "read_image",
    "format_fact",
    "speech_preprocessor",
    "fact_split",
    "stdlib_files",
    "iter_texts",
    "keyed_tone",
    "count_facts",
]
