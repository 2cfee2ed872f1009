"""Takes away from this interpreter, and from those it starts, what CPython lacks on another operating system.

`JETLAKE_SYSTEM` names the system, `macos` or `windows`; the folder of this file is on PYTHONPATH. Modules of the
standard library are loaded before, because they were chosen for the system that runs them. What a system has and Linux
lacks is added: F_FULLFSYNC, which notes its files in the file that `JETLAKE_FULL_SYNCS` names, and `msvcrt`.
"""

import builtins
import errno
import io
import os
import sys

LINUX_ONLY = {
    "os": (
        "fdatasync memfd_create posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity pipe2 O_TMPFILE "
        "O_PATH O_DIRECT O_NOATIME splice copy_file_range getxattr setxattr listxattr setresuid getresuid pidfd_open "
        "eventfd eventfd_read eventfd_write EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE unshare setns getrandom "
        "sched_getparam sched_setparam sched_getscheduler sched_setscheduler sched_rr_get_interval getresgid setresgid "
        "RWF_APPEND RWF_DSYNC RWF_HIPRI RWF_NOWAIT RWF_SYNC POSIX_FADV_DONTNEED POSIX_FADV_SEQUENTIAL O_RSYNC"
    ),
    "resource": "prlimit RUSAGE_THREAD RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
    "select": "epoll EPOLLIN EPOLLOUT",
    "signal": "SIGPWR SIGSTKFLT SIGRTMIN SIGRTMAX sigtimedwait sigwaitinfo",
    "socket": (
        "AF_NETLINK AF_VSOCK SO_PEERCRED SO_BINDTODEVICE SO_MARK SO_PRIORITY SOCK_CLOEXEC SOCK_NONBLOCK MSG_MORE "
        "MSG_NOSIGNAL TCP_CORK TCP_DEFER_ACCEPT TCP_INFO TCP_KEEPIDLE TCP_QUICKACK TCP_SYNCNT TCP_USER_TIMEOUT"
    ),
    "time": "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
}
POSIX_ONLY = {
    "os": (
        "pread pwrite preadv pwritev readv writev O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_NONBLOCK O_SYNC O_DSYNC O_ACCMODE "
        "SEEK_DATA SEEK_HOLE fork forkpty getuid geteuid getgid getegid getpgid setsid killpg statvfs fstatvfs sysconf "
        "chown lchown fchown fchmod mkfifo mknod nice sync getloadavg ttyname openpty ctermid lockf ST_RDONLY "
        "set_blocking register_at_fork wait wait3 wait4 waitid getgroups getpriority setpriority setuid "
        "setgid tcgetpgrp sendfile fchdir chroot pathconf fpathconf confstr"
    ),
    "select": "poll",
    "signal": (
        "SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGQUIT SIGKILL SIGCHLD SIGPIPE SIGSTOP SIGTSTP SIGCONT SIGWINCH "
        "pthread_sigmask pthread_kill sigwait sigpending setitimer getitimer alarm pause siginterrupt"
    ),
    "socket": "AF_UNIX SO_REUSEPORT",
    "time": "tzset clock_gettime clock_gettime_ns clock_settime clock_getres CLOCK_MONOTONIC CLOCK_REALTIME",
    "asyncio": "start_unix_server open_unix_connection",
}
POSIX_MODULES = "fcntl resource pwd grp termios tty pty uvloop syslog spwd crypt readline curses"
LIBRARY = (
    "asyncio concurrent.futures ctypes logging multiprocessing pathlib random selectors shutil socket ssl subprocess "
    "tempfile"
)
DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


def take_away(names_of_modules):
    for name, attributes in names_of_modules.items():
        module = __import__(name)
        for attribute in attributes.split():
            if hasattr(module, attribute):
                delattr(module, attribute)


def hide_proc():
    """Linux's files about processes."""

    def hiding(call):
        def hidden(path, *arguments, **options):
            if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(("/proc", "/sys")):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
            return call(path, *arguments, **options)

        return hidden

    for module, names in ((os, ("open", "stat", "readlink", "listdir", "scandir")), (io, ("open",))):
        for name in names:
            setattr(module, name, hiding(getattr(module, name)))
    builtins.open = io.open


def poll_by(selectors, selector):
    selectors.DefaultSelector = selector
    selectors.EpollSelector = None


class NoLinuxCalls:
    """A C library without the calls of Linux."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        if name in ("sync_file_range", "syscall"):
            raise AttributeError(name)
        return getattr(self._library, name)


def hide_linux_calls():
    import ctypes
    import tempfile

    tempfile._O_TMPFILE_WORKS = False
    os.process_cpu_count = os.cpu_count  # From Python 3.13 on; on Linux it asks for the affinity.
    library = ctypes.CDLL
    ctypes.CDLL = lambda *arguments, **options: NoLinuxCalls(library(*arguments, **options))


def add_full_sync():
    import fcntl

    control, note = fcntl.fcntl, os.environ.get("JETLAKE_FULL_SYNCS")
    describe = "/proc/self/fd/%d"
    readlink = os.readlink

    def with_full_sync(handle, command, *arguments):
        if command != fcntl.F_FULLFSYNC:
            return control(handle, command, *arguments)
        os.fsync(handle)
        if note:
            with open(note, "a") as file:
                file.write(readlink(describe % handle) + "\n")
        return 0

    fcntl.F_FULLFSYNC = 51
    fcntl.fcntl = with_full_sync


def become_macos():
    import selectors

    poll_by(selectors, selectors.PollSelector)
    hide_linux_calls()
    add_full_sync()
    take_away(LINUX_ONLY)
    hide_proc()


class Refusal:
    """Finds no module that only POSIX systems have."""

    names = frozenset(POSIX_MODULES.split())

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class OpenFiles:
    """Files as Windows has them: none is renamed, replaced or removed while it is open, and some names are devices'."""

    def __init__(self):
        self.paths = {}
        open_file, close = os.open, os.close

        def opened(path, flags, mode=0o777, *, dir_fd=None):
            self.check_name(path)
            if os.path.isdir(path):
                raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
            handle = open_file(path, flags, mode)
            self.paths[handle] = os.path.abspath(path)
            return handle

        def closed(handle):
            self.paths.pop(handle, None)
            close(handle)

        os.open, os.close = opened, closed
        for name in ("rename", "replace", "remove", "unlink", "rmdir"):
            self.guard(name)
        make = os.mkdir
        os.mkdir = lambda path, *arguments, **options: (self.check_name(path), make(path, *arguments, **options))[1]

    def guard(self, name):
        call = getattr(os, name)

        def guarded(*paths, **options):
            for path in paths:
                whole = os.path.abspath(path)
                if any(held == whole or held.startswith(whole + os.sep) for held in self.paths.values()):
                    raise PermissionError(errno.EACCES, "The process cannot access the file, it is in use", whole)
            if name == "rename" and os.path.exists(paths[1]):
                raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists", paths[1])
            return call(*paths, **options)

        setattr(os, name, guarded)

    @staticmethod
    def check_name(path):
        name = os.path.basename(os.fsdecode(path))
        stem = name.partition(".")[0].lower()
        if stem in DEVICES or name.endswith((".", " ")) or set(name) & set('<>:"|?*'):
            raise OSError(errno.EINVAL, "The filename, directory name or volume label syntax is incorrect", path)


class ByteLocks:
    """`msvcrt`, as far as it locks."""

    LK_NBLCK = 2

    def __init__(self, flock, how):
        self._flock, self._how = flock, how

    def locking(self, handle, mode, count):
        try:
            self._flock(handle, self._how)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None


def become_windows():
    import asyncio
    import fcntl
    import selectors
    import shutil
    import socket
    import tempfile

    tempfile.TemporaryFile = tempfile.NamedTemporaryFile
    pair, family = socket.socketpair, socket.AF_UNIX
    socket.socketpair = lambda *_: pair(family)  # Windows connects two sockets of the loopback interface.
    poll_by(selectors, selectors.SelectSelector)
    hide_linux_calls()
    usage = os.statvfs

    def disk_usage(path):
        status = usage(path)
        return shutil._ntuple_diskusage(status.f_blocks * status.f_frsize, 0, status.f_bavail * status.f_frsize)

    shutil.disk_usage = disk_usage
    shutil._use_fd_functions = False
    sys.modules["msvcrt"] = ByteLocks(fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def refused(self, *arguments):
        raise NotImplementedError

    # The loop of Windows is the proactor: it watches no handles for its users, and handles no signals.
    for name in ("add_signal_handler", "add_reader", "add_writer"):
        setattr(asyncio.SelectorEventLoop, name, refused)
    for name in POSIX_MODULES.split():
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Refusal())
    take_away({name: attributes for name, attributes in LINUX_ONLY.items() if name not in Refusal.names})
    take_away(POSIX_ONLY)
    hide_proc()
    OpenFiles()


system = os.environ.get("JETLAKE_SYSTEM")
if system:
    for module in LIBRARY.split():
        __import__(module)
    if "pytest" in sys.orig_argv:  # It asks for the system's name where the attribute decides.
        import _pytest.compat
        import platformdirs  # noqa: F401

        _pytest.compat.get_user_id = lambda: None
    {"macos": become_macos, "windows": become_windows}[system]()
