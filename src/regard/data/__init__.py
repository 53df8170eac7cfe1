"""Sources, tokenizers and batches: real data without downloads."""

from regard.data.batches import Batches, collate, pair_encoder
from regard.data.catalog import Catalog, Filled, Message, placeholders
from regard.data.changes import Change, other_voice
from regard.data.digits import Digits
from regard.data.facts import Fact, draw, split_of, variety
from regard.data.image_files import IdxImages, ImageFolder, read_idx
from regard.data.images import Glyphs, Picture
from regard.data.ink import frame_ink
from regard.data.keying import Keying, key, tone
from regard.data.level import Level, level_recording
from regard.data.made import Made, luck
from regard.data.morse import Morse, Sound
from regard.data.normalize import normalized
from regard.data.packed import Packed, Window, pack
from regard.data.parallel import Parallel
from regard.data.phrases import Pair, Phrases, say
from regard.data.picture_batches import Mixed, PictureBatches, altered, mixed
from regard.data.picture_file import open_picture, read_picture
from regard.data.report import Report
from regard.data.resample import Resample
from regard.data.sound_batches import SoundBatches, morse_batches
from regard.data.sound_files import SoundFile
from regard.data.source import Listed, Source
from regard.data.speech import Speech, sound_encoder
from regard.data.text import Document, Text, stdlib_files
from regard.data.tokenizers import BPE, Bytes, Characters, Tokenizer, Words, texts_of
from regard.data.voices import digit_batches
from regard.data.written import Written

__all__ = [
    "BPE",
    "Batches",
    "Bytes",
    "Catalog",
    "Change",
    "Characters",
    "Digits",
    "Document",
    "Fact",
    "Filled",
    "Glyphs",
    "IdxImages",
    "ImageFolder",
    "Keying",
    "Level",
    "Listed",
    "Made",
    "Message",
    "Mixed",
    "Morse",
    "Packed",
    "Pair",
    "Parallel",
    "Phrases",
    "Picture",
    "PictureBatches",
    "Report",
    "Resample",
    "Sound",
    "SoundBatches",
    "SoundFile",
    "Source",
    "Speech",
    "Text",
    "Tokenizer",
    "Window",
    "Words",
    "Written",
    "altered",
    "collate",
    "digit_batches",
    "draw",
    "frame_ink",
    "key",
    "level_recording",
    "luck",
    "mixed",
    "morse_batches",
    "normalized",
    "open_picture",
    "other_voice",
    "pack",
    "pair_encoder",
    "placeholders",
    "read_idx",
    "read_picture",
    "say",
    "sound_encoder",
    "split_of",
    "stdlib_files",
    "texts_of",
    "tone",
    "variety",
]
