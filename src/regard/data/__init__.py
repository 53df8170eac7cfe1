"""Sources, tokenizers and batches: real data without downloads."""

from regard.data.batches import Batches, collate, pair_preprocessor
from regard.data.catalog import PoCatalog, FillResult, PoMessage, placeholders
from regard.data.changes import SpeechAugmentation, augment_log_mel
from regard.data.digits import SpokenDigits
from regard.data.facts import Fact, draw_fact, fact_split, count_facts
from regard.data.image_files import IdxImages, ImageFolder, read_idx
from regard.data.images import Glyphs, ImageExample
from regard.data.ink import crop_to_ink
from regard.data.keying import Keying, key_text, keyed_tone
from regard.data.level import PeakNormalizer, normalize_recording
from regard.data.made import GeneratedBatches, seeded_generator
from regard.data.morse import Morse, AudioExample
from regard.data.normalize import normalize_text
from regard.data.packed import PackedText, TokenWindow, pack_text
from regard.data.parallel import ParallelCorpus
from regard.data.phrases import Pair, Phrases, format_fact
from regard.data.picture_batches import CutMixResult, ImageBatches, augment, cutmix
from regard.data.picture_file import open_image, read_image
from regard.data.report import LoadReport
from regard.data.resample import Resampler
from regard.data.sound_batches import AudioBatches, morse_batches
from regard.data.sound_files import AudioFile
from regard.data.source import InMemorySource, Source
from regard.data.speech import SpeechManifest, speech_preprocessor
from regard.data.text import Document, TextFiles, stdlib_files
from regard.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer, WordTokenizer, iter_texts
from regard.data.voices import digit_batches
from regard.data.written import RenderedGlyphs

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
