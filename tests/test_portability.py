"""Calls and paths in the package that some system lacks."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import permutohedral
from permutohedral.lattice import memory

PACKAGE = Path(permutohedral.__file__).parent

# "Availability: Unix" in the documentation of the standard library, and os.rename, which raises on Windows where the
# target exists
MODULES = {"crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
FUNCTIONS = {
    "os": """chown chroot confstr ctermid fchdir fchmod fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid
        getgid getgroups getloadavg getpgid getpgrp getpriority getresuid getsid getuid kill killpg lchown lockf mkfifo
        mknod nice openpty pathconf pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite
        pwritev readv register_at_fork rename sched_getaffinity sched_setaffinity sched_yield sendfile setegid seteuid
        setgid setpgid setpriority setsid setuid statvfs sync sysconf tcgetpgrp uname wait wait3 wait4 waitid writev
        O_CLOEXEC O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC O_TMPFILE""",
    "signal": """SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH alarm
        getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait""",
    "mmap": "MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED MADV_HUGEPAGE PROT_READ PROT_WRITE",
    "select": "epoll kqueue poll",
    "socket": "AF_UNIX socketpair",
    "time": "clock_gettime pthread_getcpuclockid tzset",
}
CALLS = {f"{module}.{name}" for module, names in FUNCTIONS.items() for name in names.split()}
ARGUMENTS = {"preexec_fn", "start_new_session", "process_group", "pass_fds", "dir_fd"}
TEXTS = {"fork", "forkserver"}
FOLDERS = ("/dev/", "/etc/", "/proc/", "/sys/", "/tmp/", "/usr/", "/var/")

# each has a fallback where it is missing
ALLOWED = {
    ("dask/workers.py", "signal.pthread_sigmask"),
    ("files/atomic.py", "os.chown"),
    ("lattice/memory.py", "/proc/meminfo"),
    ("lattice/memory.py", "/proc/self/statm"),
    ("lattice/memory.py", "/sys/fs/cgroup"),
    ("lattice/memory.py", "/sys/fs/cgroup/memory"),
    ("lattice/memory.py", "os.sysconf"),
    ("lattice/memory.py", "resource"),
    ("ops/native/bridge.py", "/sys/fs/cgroup"),
}


def find_calls(source: str) -> set[str]:
    """Return the names in a module that are not available on every system."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names if name.name in MODULES}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module} & MODULES | {f"{module}.{name.name}" for name in names} & CALLS
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in CALLS:
                found.add(f"{module}.{name}")
            case ast.keyword(arg=str(name)) if name in ARGUMENTS:
                found.add(name)
            case ast.Constant(value=str(text)) if text in TEXTS or text.startswith(FOLDERS):
                found.add(text)
    return found


def test_package_has_no_posix_only_calls() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for name in find_calls(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED


def test_free_memory_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Mac: the file is hidden and the pages are injected, since no such system is here."""
    page = os.sysconf("SC_PAGE_SIZE")

    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert memory._free_memory() == os.sysconf("SC_PHYS_PAGES") * page
    counts = {b"vm.page_free_count": 70, b"vm.page_pageable_external_count": 30}
    monkeypatch.setattr(memory, "_read_pages", counts.__getitem__)
    assert memory._free_memory() == 100 * page
