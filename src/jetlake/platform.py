"""What differs between Linux, macOS and Windows: durable syncs, reads and writes at a position, locks, limits, signals.

No other module asks which system it runs on. Each function is chosen once, when this module is loaded, by what the
interpreter offers rather than by the system's name; `docs/reliability.md` has the table of what each system promises.

- A sync of a file is `fdatasync` on Linux. macOS answers `fsync` before the data is on disk, so there it is
  `F_FULLFSYNC`, which also empties the disk's cache. Windows has `FlushFileBuffers` behind `fsync`.
- A sync of a directory makes created, renamed and removed names durable. Windows cannot open a directory for it: NTFS
  logs names in its journal and writes the log in order, within seconds and not when asked.
- Windows has no read or write at a position. A lock makes one of seek and read there.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def _module(name: str) -> Any:
    """Return a module of the standard library, or None where the system lacks it."""
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl = _module("fcntl")  # None on Windows, as the next one
resource = _module("resource")

_WINDOWS_FILES_MAX = 8192
"""How many files the C library of Windows keeps open at most."""
_UNKNOWN_MEMORY = 4 << 30
_BEGIN_TO_WRITE = 2  # SYNC_FILE_RANGE_WRITE: the system begins to write and does not wait.
# A call is unknown, or refused to this process or for this file: nothing was begun.
_CALL_REFUSED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ESPIPE)
# A file system without F_FULLFSYNC, such as a network share.
_NO_FULL_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY, errno.EOPNOTSUPP)

OPEN_FLAGS: int = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))
"""For the files of a store: bytes as they are, no link is followed, and nothing that is no file makes anybody wait."""
HAS_DIRECTORY_HANDLES: bool = hasattr(os, "O_DIRECTORY")
"""Whether a directory can be opened, to sync or lock it."""
_has_full_sync = hasattr(fcntl, "F_FULLFSYNC")  # macOS
LOCKS_OPEN_FILES: bool = not HAS_DIRECTORY_HANDLES
"""Whether a file that is open can be neither renamed nor removed, as on Windows."""
NAMES_IGNORE_CASE: bool = _has_full_sync or not HAS_DIRECTORY_HANDLES
"""Whether `A` and `a` may be names of one file, as on macOS and Windows."""
DEVICE_NAMES = frozenset(
    ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)))
)
"""What no file on Windows may be called, in any case."""


# Durable syncs


def _full_sync(handle: int) -> None:
    try:
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    except OSError as error:
        if error.errno not in _NO_FULL_SYNC:
            raise
        os.fsync(handle)


sync_data: Callable[[int], None] = _full_sync if _has_full_sync else getattr(os, "fdatasync", os.fsync)
"""Return when the content of an open file, and the length it needs, is on disk."""
SYNC_CALL = "F_FULLFSYNC" if _has_full_sync else "fdatasync" if hasattr(os, "fdatasync") else "fsync"
"""The name of that call, for people."""


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Return when the names in a directory are on disk; at once where the system cannot tell."""
    if not HAS_DIRECTORY_HANDLES:
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _has_full_sync:
            _full_sync(handle)
        else:
            os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _sync_file_range() -> Any:
    if not hasattr(os, "posix_fadvise"):  # Linux has both; macOS and Windows have neither.
        return None
    import ctypes  # Not before the first write: loading it takes a part of a start.

    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


def begin_writeback(handle: int, offset: int, size: int) -> None:
    """Let the disk begin to write a part of a file; nothing where the system offers no such call."""
    call = _sync_file_range()
    if call is not None and call(handle, offset, size, _BEGIN_TO_WRITE) < 0:
        import ctypes

        number = ctypes.get_errno()
        if number not in _CALL_REFUSED:
            raise OSError(number, os.strerror(number))


# Positioned reads and writes

_position = threading.Lock()


def _seek_and_read(handle: int, size: int, offset: int) -> bytes:
    with _position:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)


def _seek_and_write(handle: int, data: bytes | memoryview, offset: int) -> int:
    with _position:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, data)


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)
"""Read up to a number of bytes of an open file from a position on."""
write_at: Callable[[int, bytes | memoryview, int], int] = getattr(os, "pwrite", _seek_and_write)
"""Write to an open file from a position on, and return how many bytes were written."""


def data_size(handle: int) -> int:
    """Return the length of a file up to its last byte that was ever written; its length where holes are unknown."""
    if not hasattr(os, "SEEK_DATA"):
        return os.fstat(handle).st_size
    end = 0
    try:
        while True:
            end = os.lseek(handle, os.lseek(handle, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end  # Only a hole follows, or nothing.
        raise


def refused_write(handle: int, error: OSError) -> OSError:
    """Return why a file takes no write: of a handle for reading the system only says that it is a bad one."""
    if fcntl is None or fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return error
    number = errno.EROFS if os.fstatvfs(handle).f_flag & os.ST_RDONLY else errno.EACCES
    return OSError(number, os.strerror(number))


# Users' own files


def user_folder(variable: str, *default: str) -> Path:
    """Return the folder that an environment variable names, or a default below the user's home.

    A user without a home, such as a container's with a number and no name, has the root directory in its place: nothing
    is found there, and nothing can be written.
    """
    configured = os.environ.get(variable)
    if configured:
        return Path(configured)
    try:
        return Path.home().joinpath(*default)
    except RuntimeError:
        return Path("/", *default)


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home in the place of `~`; the path as it is where there is no such user or home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


# Locks


def lock_file(handle: int) -> None:
    """Lock an open file for this process until the handle is closed or the process ends.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    msvcrt = import_module("msvcrt")
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(errno.EAGAIN, "locked by another process") from error


# Limits and memory


def open_files_max() -> int | None:
    """Return how many files this process may open; None for any number."""
    if resource is None:
        return _WINDOWS_FILES_MAX
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> None:
    """Raise the limit of open files to the hard limit, or as far as the system allows."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS names no hard limit and refuses one above `kern.maxfilesperproc`, whose smallest default is 10,240.
    for limit in (hard, 10_240):
        if limit == soft or (limit == 10_240 and limit < soft):
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue  # the limit stays
        return


def resident_bytes() -> int:
    """Return the memory of this process in RAM; its peak where the system tells no more, 0 where it tells nothing."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    if resource is not None:
        peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return _windows_memory().get("resident", 0)


def free_bytes(folder: Path | str) -> int:
    """Return how many bytes the file system of a folder has left for this user."""
    if hasattr(os, "statvfs"):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    import shutil  # It loads the compressors, which takes a part of a start.

    return shutil.disk_usage(folder).free


def thread_run_times() -> tuple[float, float]:
    """Return how long the calling thread has run, and how long it was ready to run and had no processor, in seconds.

    Zeros where the system does not tell.
    """
    ran, _, rest = _first_line("/proc/thread-self/schedstat").partition(" ")
    try:
        return int(ran) / 1e9, int(rest.split()[0]) / 1e9
    except (ValueError, IndexError):
        return 0.0, 0.0


def machine_memory() -> int:
    """Return the memory of the machine."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _windows_memory().get("machine", _UNKNOWN_MEMORY)


def _windows_memory() -> dict[str, int]:
    import ctypes

    libraries: Any = getattr(ctypes, "windll", None)
    if libraries is None:
        return {}
    # MEMORYSTATUSEX and PROCESS_MEMORY_COUNTERS: two numbers of 32 bits, the first of them the length, and more of 64.
    status, process = (ctypes.c_uint64 * 8)(), (ctypes.c_uint64 * 9)()
    found = {}
    for numbers in (status, process):
        ctypes.c_uint32.from_buffer(numbers).value = ctypes.sizeof(numbers)
    if libraries.kernel32.GlobalMemoryStatusEx(status):
        found["machine"] = int(status[1])
    current = libraries.kernel32.GetCurrentProcess
    current.restype = ctypes.c_void_p
    if libraries.psapi.GetProcessMemoryInfo(ctypes.c_void_p(current()), process, ctypes.sizeof(process)):
        found["resident"] = int(process[2])
    return found


# Processes and signals


def user_name() -> str:
    """Return the name of the user who runs this process, or a number where there is no name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def processes_name(host: str) -> str:
    """Name the set of processes in which a process id means something: the host, its boot, its namespace of ids."""
    boot = _first_line("/proc/sys/kernel/random/boot_id") or _output("sysctl", "-n", "kern.boottime")
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except (OSError, NotImplementedError):
        namespace = ""
    return f"{host}/{boot}/{namespace}"


def process_start(pid: int) -> str:
    """Return when a process was started; empty when there is none, it has ended, or the system does not say.

    A process that was killed stays a zombie until its parent reaps it, which in containers often never happens.
    """
    if _first_line("/proc/self/stat"):
        words = _first_line(f"/proc/{pid}/stat").rpartition(")")[2].split()  # The name in brackets may hold blanks.
        return words[19] if len(words) > 19 and words[0] not in ("Z", "X", "x") else ""
    state, _, started = _output("ps", "-o", "stat=,lstart=", "-p", str(pid)).partition(" ")
    return "" if state.startswith("Z") else started.strip()


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _output(*command: str) -> str:
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find_signals(*names: str) -> tuple[int, ...]:
    """Return the signals of this list that the system has."""
    import signal

    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


def block_signals(numbers: tuple[int, ...]) -> set[int]:
    """Hold signals back, where the system can, and return the ones that were held back before."""
    import signal

    return set(signal.pthread_sigmask(signal.SIG_BLOCK, numbers)) if hasattr(signal, "pthread_sigmask") else set()


def unblock_signals(numbers: tuple[int, ...]) -> None:
    """Let signals through again."""
    import signal

    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def restore_signals(held_back: set[int]) -> None:
    """Hold back these signals and no others."""
    import signal

    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, held_back)


def on_signal(loop: asyncio.AbstractEventLoop, name: str, callback: Callable[..., object], *args: object) -> None:
    """Call a function on the loop at each signal of this name; nothing where the system has no such signal."""
    import signal

    for number in find_signals(name):
        try:
            loop.add_signal_handler(number, callback, *args)
        except NotImplementedError:  # the loops of Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback, *args))
