"""Sources, tokenizers and batches: real data without downloads."""

from regard.data.batches import Batches, collate, pair_encoder
from regard.data.facts import Fact, draw, split_of, variety
from regard.data.image_files import IdxImages, ImageFolder, read_idx
from regard.data.images import Glyphs, Picture
from regard.data.morse import Morse, Sound, key, tone
from regard.data.packed import Packed, Window, pack
from regard.data.parallel import Parallel
from regard.data.phrases import Pair, Phrases, say
from regard.data.report import Report
from regard.data.source import Listed, Source
from regard.data.speech import Speech, sound_encoder
from regard.data.text import Document, Text, stdlib_files
from regard.data.tokenizers import BPE, Bytes, Characters, Tokenizer, Words, texts_of

__all__ = [
    "BPE",
    "Batches",
    "Bytes",
    "Characters",
    "Document",
    "Fact",
    "Glyphs",
    "IdxImages",
    "ImageFolder",
    "Listed",
    "Morse",
    "Packed",
    "Pair",
    "Parallel",
    "Phrases",
    "Picture",
    "Report",
    "Sound",
    "Source",
    "Speech",
    "Text",
    "Tokenizer",
    "Window",
    "Words",
    "collate",
    "draw",
    "key",
    "pack",
    "pair_encoder",
    "read_idx",
    "say",
    "sound_encoder",
    "split_of",
    "stdlib_files",
    "texts_of",
    "tone",
    "variety",
]
