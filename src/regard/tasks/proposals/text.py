"""A recipe for plain text: split, units, window and model of a language model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from regard.errors import FileError, counted
from regard.models import LanguageConfig
from regard.tasks.language.text import TextTask
from regard.tasks.proposals.proposal import (
    Proposal,
    choose_size,
    inspect_or_raise,
    make_proposal,
    one_path,
)

BATCH_TOKENS = 1024
EPOCHS = 20
MAX_EVAL_CHARS = 2_000_000  # of valid and of test: more would take longer than the training
MIN_FILES = 40  # from which whole files are held out
MAX_NGRAM_CHARS = 2_000_000  # above it the network is far better, and their tables are large
# (characters below which it applies, units, vocabulary, layers, dim, characters per token)
SIZES = [
    (300_000, "characters", 256, 2, 128, 1.0),
    (500_000, "bpe", 1000, 3, 128, 2.5),
    (1_000_000, "bpe", 2000, 3, 128, 3.0),
    (5_000_000, "bpe", 4000, 3, 128, 3.5),
    (float("inf"), "bpe", 4000, 4, 192, 3.5),
]


def propose_text(paths: Sequence[Path], name: str) -> Proposal:
    """A language model of a text file or a folder of them."""
    path, comments = one_path(paths, "one file or folder of text"), dict[str, str]()
    task = TextTask(folder=str(path.resolve()))
    by_files = inspect_or_raise(task, "text", paths, split=None)
    files, characters = by_files.total, sum(x.total for x in by_files.lengths["text"].values())
    enough = files >= MIN_FILES and by_files.sizes["valid"] > 1 and by_files.sizes["test"] > 1
    task = replace(task, split_by="files" if enough else "halves")
    report = by_files if enough else inspect_or_raise(task, "text", paths)
    report.skipped = by_files.skipped
    comments["data.split_by"] = (
        f"5% of {files:,} files each become valid and test, by a hash of the text"
        if enough
        else f"the last tenth of the text is valid, then test: {files:,} file{'s' * (files > 1)}"
    )
    units, vocab, layers, dim, per_token = choose_size(SIZES, characters)
    tokens = 0.9 * characters / per_token
    # the train split needs two windows, the held-out tenth one token
    length = next((n for n in (256, 128, 64, 32, 16) if tokens / 20 > n), 8)
    if tokens < 2 * length + 1:
        raise FileError(f"{path}: needs 20 characters or more, got {characters:,.0f}")
    rule = f"for {characters:,.0f} characters in all"
    comments |= {
        "data.tokenizer_type": rule,
        "data.length": "tokens of a window, at most a twentieth of the text",
        "data.valid_windows": "of the valid split, to evaluate quickly",
        "model.layers": f"{counted(layers, 'layer')} of {dim} {rule}",
    }
    if units == "bpe":
        comments["data.vocab_size"] = rule
        if characters > task.tokenizer_chars:
            comments["data.vocab_size"] += f", trained on {task.tokenizer_chars:,} of them"
    held_out = max(report.lengths["text"][split].total for split in ("valid", "test"))
    if held_out > MAX_EVAL_CHARS:
        comments["data.eval_chars"] = f"of up to {held_out:,.0f} held-out characters, to be quick"
    if ngrams := characters <= MAX_NGRAM_CHARS:
        comments["data.ngrams"] = "of tokens, mixed in as the valid split decides"
    data = replace(
        task, ngrams=ngrams, tokenizer_type=units,
        vocab_size=vocab if units == "bpe" else task.vocab_size,
        eval_chars=MAX_EVAL_CHARS if held_out > MAX_EVAL_CHARS else None,
        length=length, valid_windows=64, overlap=length // 4,
    )  # fmt: skip
    model = LanguageConfig(
        vocab=1, layers=layers, dim=dim, heads=dim // 32, positions="none",
        rope_theta=10000.0, norm="rms", bias=False, scale_embedding=False, dropout=0.1,
    )  # fmt: skip
    return make_proposal(
        name, data, model, report, comments, epoch_steps=tokens / BATCH_TOKENS, epochs=EPOCHS,
        lr=3e-3, batch_tokens=BATCH_TOKENS,
    )  # fmt: skip
