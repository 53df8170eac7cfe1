"""Atomic file writing, text reading in any Unicode encoding, and HTML pages."""

from regard.files.atomic import SCRATCH_SUFFIX, atomic_path, atomic_write
from regard.files.partial import PartialFile
from regard.files.paths import (
    file_descriptor,
    fsync_path,
    import_extra,
    import_file,
    is_stream,
    list_tree,
    make_folder,
)
from regard.files.text import (
    CHUNK_BYTES,
    DETECTION_BYTES,
    detect_encoding,
    fill_page,
    iter_chunks,
    iter_lines,
    iter_utf8_lines,
    open_binary,
    parse_json,
    parse_toml,
    read_text,
    write_text,
)

__all__ = [
    "CHUNK_BYTES",
    "DETECTION_BYTES",
    "PartialFile",
    "SCRATCH_SUFFIX",
    "atomic_path",
    "atomic_write",
    "detect_encoding",
    "file_descriptor",
    "fill_page",
    "fsync_path",
    "import_extra",
    "import_file",
    "is_stream",
    "iter_chunks",
    "iter_lines",
    "iter_utf8_lines",
    "list_tree",
    "make_folder",
    "open_binary",
    "parse_json",
    "parse_toml",
    "read_text",
    "write_text",
]
