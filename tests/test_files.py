"""A file is written completely or not at all, and keeps its kind, mode and owner."""

import ast
import os
import re
import resource
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.errors import FileError
from regard.files import (
    SCRATCH_SUFFIX,
    PartialFile,
    atomic_write,
    detect_encoding,
    iter_utf8_lines,
    read_text,
    write_text,
)

SOURCE = Path(__file__).resolve().parents[1] / "src/regard"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def umask(mask: int):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# ---- what stays


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    file, link, far = tmp_path / "there/a.txt", tmp_path / "link", tmp_path / "far"
    file.write_text("old")
    link.symlink_to("there/a.txt")
    far.symlink_to(link)
    write_text(far, "new")
    assert (link.is_symlink(), far.is_symlink(), file.read_text()) == (True, True, "new")
    assert names(tmp_path / "there") == ["a.txt"]


def test_a_dangling_link_makes_the_file_it_points_to(tmp_path):
    (tmp_path / "link").symlink_to("not-yet")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "not-yet").read_text() == "new"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(FileError, match="round: cannot be written, Too many levels"):
        write_text(tmp_path / "round", "new")


def test_other_hard_links_keep_what_they_had(tmp_path):
    (tmp_path / "a").write_text("old")
    os.link(tmp_path / "a", tmp_path / "backup")
    write_text(tmp_path / "a", "new")
    assert ((tmp_path / "a").read_text(), (tmp_path / "backup").read_text()) == ("new", "old")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_an_existing_file_keeps_its_mode(tmp_path, mode):
    file = tmp_path / "a"
    file.touch()
    file.chmod(mode)
    write_text(file, "new")
    assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_existing_file_keeps_its_owner(tmp_path):
    (tmp_path / "a").touch()
    os.chown(tmp_path / "a", 1234, 2345)
    write_text(tmp_path / "a", "new")
    assert ((tmp_path / "a").stat().st_uid, (tmp_path / "a").stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_of_the_umask(tmp_path, mask, mode):
    with umask(mask):
        with atomic_write(tmp_path / "a") as place:  # as safetensors does, which makes it 0600
            place.touch(mode=0o600)
        write_text(tmp_path / "b", "new")
    assert [stat.S_IMODE((tmp_path / x).stat().st_mode) for x in "ab"] == [mode, mode]


def test_a_fifo_stays_one_and_its_reader_gets_everything(tmp_path):
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()), daemon=True)
    reader.start()
    write_text(fifo, "text\n" * 50_000)
    reader.join(10)
    assert got == ["text\n" * 50_000]
    assert fifo.is_fifo()
    assert names(tmp_path) == ["fifo"]


def test_a_device_stays_one(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_text("")
    except OSError:
        pytest.skip("devices cannot be made or used here")
    (tmp_path / "link").symlink_to("null")
    for name in ("null", "link"):
        write_text(tmp_path / name, "new")
    assert device.is_char_device()
    assert (tmp_path / "link").is_symlink()


def test_standard_output_by_its_name_comes_after_what_was_printed(tmp_path):
    code = (
        "from regard.files import write_text; print('first'); "
        "write_text('/dev/stdout', 'second\\n'); print('third')"
    )
    with (tmp_path / "log").open("w") as log:
        log.write("before\n")
        log.flush()
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "before\nfirst\nsecond\nthird\n"


# ---- what goes wrong


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "a").write_text("old")
    for kind in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(kind), atomic_write(tmp_path / "a") as place:  # noqa: PT012
            place.write_text("new")
            raise kind
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_full_disk_leaves_the_old_file_and_is_one_line(tmp_path):
    (tmp_path / "a").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))  # no file may be larger
    try:
        with pytest.raises(FileError, match=r"a: cannot be written, File too large$"):
            write_text(tmp_path / "a", "new" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_name_as_long_as_the_file_system_allows(tmp_path):
    for name in ("n" * 251 + ".txt", "ü" * 127):
        write_text(tmp_path / name, "new")
        assert (tmp_path / name).read_text() == "new"
    assert len(names(tmp_path)) == 2
    with pytest.raises(FileError, match="cannot be written, File name too long"):
        write_text(tmp_path / ("n" * 256), "new")


def test_a_file_in_a_folder_that_cannot_be_written_is_overwritten_in_place(tmp_path, unprivileged):
    (tmp_path / "a").write_text("old, and longer")
    os.link(tmp_path / "a", tmp_path / "same")
    tmp_path.chmod(0o555)
    try:
        with unprivileged():
            write_text(tmp_path / "a", "new")
            with pytest.raises(FileError, match="b: cannot be written, Permission denied"):
                write_text(tmp_path / "b", "new")
    finally:
        tmp_path.chmod(0o755)
    assert (tmp_path / "same").read_text() == "new"
    assert names(tmp_path) == ["a", "same"]


def test_a_write_protected_file_is_not_replaced(tmp_path, unprivileged):
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o444)
    with unprivileged(), pytest.raises(FileError, match="a: cannot be written, Permission denied"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"


def test_a_killed_process_leaves_a_named_folder_that_the_next_one_removes(tmp_path):
    code = (
        "import sys, time; from regard.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as place:\n"
        "    place.write_text('half'); print(place, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        place = Path(process.stdout.readline().strip())
        assert place.parent.name == f".a{SCRATCH_SUFFIX}"
        write_text(tmp_path / "a", "while it is at work")
        assert place.read_text() == "half"  # nobody took it away from a process at work
        process.kill()
    assert names(tmp_path) == [f".a{SCRATCH_SUFFIX}", "a"]
    write_text(tmp_path / "a", "new")
    assert names(tmp_path) == ["a"]


def test_many_writers_of_one_file_each_write_all_of_it(tmp_path):
    def write(n: int) -> None:
        for _ in range(20):
            write_text(tmp_path / "a", str(n) * 1000)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = (tmp_path / "a").read_text()
    assert text == text[0] * 1000
    assert names(tmp_path) == ["a"]


class SignalAt:
    """Raises SystemExit, as the handler of SIGTERM does, before line number `point` of writing."""

    def __init__(self, point: int):
        self.point, self.lines = point, 0

    def __enter__(self) -> "SignalAt":
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def enter(self, frame: Any, event: str, argument: object) -> Any:
        return self.line if "regard/files/" in frame.f_code.co_filename else None

    def line(self, frame: Any, event: str, argument: object) -> Any:
        self.lines += event == "line"
        if event == "line" and self.lines == self.point:
            raise SystemExit(143)
        return self.line


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("text", [None, "all of it\n"])
def test_a_signal_at_any_point_of_completing_loses_nothing(tmp_path, monkeypatch, text, links):
    if not links:  # as on a file system without hard links

        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("regard.files.partial.SAVE_SECONDS", -1.0)
    point, ends = 0, set()
    while True:
        point += 1
        folder = tmp_path / str(point)
        folder.mkdir()
        out = folder / "out.txt"
        out.write_text("old\n")

        def write(signal: SignalAt, out: Path = out) -> None:
            partial, done = PartialFile(out, {}), False
            if not partial.state:
                partial.write("all of it\n")
                partial.commit({"lines": 1})
            try:
                with signal:
                    partial.complete(text)
                done = True
            finally:
                if not done and (rest := partial.close()):
                    ends.add("kept")
                    assert rest.read_text() == "all of it\n"  # what the message of a job says
                elif not done:
                    ends.add("there")
                    assert out.read_text() == "all of it\n"

        signal = SignalAt(point)
        try:
            write(signal)
        except SystemExit:
            assert out.read_text() in ("old\n", "all of it\n")
            write(SignalAt(0))  # the same job again
        # a signal while it cleans up leaves its folder, as a killed process does
        rest = [name for name in names(folder) if not name.endswith(SCRATCH_SUFFIX)]
        assert (out.read_text(), rest) == ("all of it\n", ["out.txt"])
        if signal.lines < point:
            break
    assert (point > 40, ends) == (True, {"kept", "there"})


def test_a_killed_process_that_had_completed_is_not_written_into(tmp_path, monkeypatch):
    out = tmp_path / "out.txt"
    partial = PartialFile(out, {})
    partial.write("all of it\n")
    partial.commit({"lines": 1})
    monkeypatch.setattr(PartialFile, "_remove", lambda self: None)  # killed before it
    partial.complete()
    monkeypatch.undo()
    again = PartialFile(out, {"another": "job"})
    assert (again.state, out.read_text()) == ({}, "all of it\n")
    again.write("new\n")
    again.complete()
    assert (out.read_text(), names(tmp_path)) == ("new\n", ["out.txt"])


def test_a_deleted_part_starts_again_and_a_folder_without_permission_is_refused_at_once(
    tmp_path, unprivileged
):
    first = PartialFile(tmp_path / "out.txt", {})
    first.write("one\n")
    first.commit({"lines": 1})
    assert first.close() == tmp_path / "out.txt.partial"
    (tmp_path / "out.txt.partial").unlink()  # as messages advise
    again = PartialFile(tmp_path / "out.txt", {})
    assert (again.state, again.close()) == ({}, None)
    (tmp_path / "locked").mkdir(mode=0o555)
    with unprivileged(), pytest.raises(FileError, match="cannot be written, Permission denied"):
        PartialFile(tmp_path / "locked/out.txt", {})


# ---- text, in the encoding it has

WORDS = "drei Tage\nžluťoučký kůň\n三つの日\n\N{CAT FACE} end"
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_text_is_read_in_any_unicode_encoding_however_it_comes(tmp_path, encoding, size):
    data = WORDS.encode(encoding)
    (tmp_path / "a").write_bytes(data)
    assert read_text(tmp_path / "a") == WORDS
    head = data[:64]  # the first piece tells the encoding; those after may be cut anywhere
    pieces = [head, *(data[n : n + size] for n in range(64, len(data), size))]
    lines = [line.decode() for some in iter_utf8_lines(pieces) for line in some]
    assert lines == WORDS.split("\n")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_chinese_without_a_byte_order_mark_is_known_by_its_line_ends(encoding):
    assert detect_encoding(("一二三四五，六七八九十\n" * 9).encode(encoding)) == encoding


def test_bytes_that_are_no_text_in_any_encoding_stay_invalid():
    assert detect_encoding(bytes(range(256))) == "utf-8"
    cut = "zwei\n".encode("utf-16") + b"x"  # half a character at its end
    assert list(iter_utf8_lines([cut])) == [[b"zwei"], [b"\xff"]]


def test_one_long_line_takes_linear_time_and_an_endless_one_ends():
    pieces = [b"a" * 1000] * 10_000
    began = time.process_time()
    assert [len(line) for some in iter_utf8_lines(pieces) for line in some] == [10_000_000]
    assert time.process_time() - began < 1  # joined piece by piece it took 50 GB of copies
    with pytest.raises(FileError, match="zero: needs lines of at most 16777216 bytes"):
        list(iter_utf8_lines(iter(lambda: b"a" * 65536, b""), "zero"))


def printed(encoding: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    code = "from regard.cli import app, main\n@app.command()\ndef say(x: str): print(x)\nmain()"
    env = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", code, "say", "žluť 三 ü"]
    return subprocess.run(command, env=env, check=False, **{"capture_output": True} | more)


def test_characters_that_a_terminal_lacks_are_escaped_and_reported():
    whole, less = printed("utf-8"), printed("latin-1")
    assert (whole.returncode, whole.stdout.decode(), whole.stderr) == (0, "žluť 三 ü\n", b"")
    assert (less.returncode, less.stdout) == (1, b"\\u017elu\\u0165 \\u4e09 \xfc\n")
    said = b"regard: standard output: needs UTF-8 for 3 characters, got iso8859-1: "
    assert less.stderr.startswith(said)


def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "wb") as full:
        done = printed("utf-8", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.endswith(b"No space left on device\n")
    assert done.stderr.count(b"\n") == 1


# ---- on the disk, and nowhere else


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_is_too(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def noted_fsync(handle):
        done.append(("fsync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def noted_replace(source, target):
        done.append(("replace", str(source), str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    with atomic_write(tmp_path / "a") as place:
        place.write_text("new")
    assert done == [
        ("fsync", str(place)),
        ("replace", str(place), str(tmp_path / "a")),
        ("fsync", str(tmp_path)),
    ]


@pytest.mark.skipif(not Path("/usr/bin/strace").exists(), reason="needs strace")
def test_a_file_is_flushed_before_it_is_renamed(tmp_path):
    code = f"from regard.files import write_text; write_text({str(tmp_path / 'a')!r}, 'new')"
    traced = ["strace", "-f", "-qq", "-e", "trace=fsync,rename,renameat,renameat2"]
    # without .pyc files, which are renamed too
    command = [*traced, sys.executable, "-B", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    if "Operation not permitted" in done.stderr:
        pytest.skip("processes cannot be traced here")
    calls = [line.split("(")[0].split()[-1] for line in done.stderr.splitlines() if "(" in line]
    assert calls in ([["fsync", x, "fsync"] for x in ("rename", "renameat", "renameat2")])


def test_every_file_is_written_by_atomic_write():
    """Each call that writes a file is in a function that uses `regard.files`."""
    alone = []
    for module in sorted(SOURCE.rglob("*.py")):
        if not re.search(r"umask|open\(|write_|savefig|save_|mkstemp|tofile", module.read_text()):
            continue
        for function in ast.walk(ast.parse(module.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            if (module.name, function.name) in (("partial.py", "_open"), ("canvas.py", "render")):
                continue  # NAME.partial, which `complete` links by atomic_write; into a buffer
            text = ast.unparse(function)
            if "os.umask(" in text:
                alone.append(f"{module.name}: umask")
            ways = ("atomic_write(", "atomic_path(", "temporary_path(")
            ways += ("os.fdopen(os.dup(", "is_stream(")
            if any(way in text for way in ways):  # a stream is written to, not replaced
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _writes(call):
                    alone.append(f"{module.name}: {ast.unparse(call)}")
    assert alone == []


def _writes(call: ast.Call) -> bool:
    """Whether a call makes or empties a file; appending to a log is another thing."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("write_bytes", "savefig", "save_file", "mkstemp", "tofile", "save_svg"):
        return True
    if name == "write_text":
        return isinstance(call.func, ast.Attribute)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [x.value for x in given if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return name == "open" and any(mode in ("w", "wb", "x", "xb", "w+", "wb+") for mode in modes)
