# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the cases have in common: files, times, results."""

import ctypes
import json
import os
import resource
import sys
import time

GIB = 1 << 30
MIB = 1 << 20


class Case:
    """A case: where it may write, how much, and what it found."""

    def __init__(self):
        arguments = json.loads(sys.argv[1])
        self.directory = arguments["directory"]
        self.size = arguments["size"]
        self.mode = arguments["mode"]
        self.found = {}

    def path(self, name):
        return os.path.join(self.directory, name)

    def note(self, name, value):
        """Tells a figure, at once: a case that ends early has told what it had."""
        self.found[name] = value
        print("FOUND " + json.dumps([name, value]), flush=True)

    def rate(self, name, bytes_, run, times=3):
        """The best of some runs, in GB/s, and its CPU seconds for each GB."""
        best = None
        for _ in range(times):
            cpu, begun = cpu_seconds(), time.perf_counter()
            run()
            took = time.perf_counter() - begun
            result = (bytes_ / took / 1e9, (cpu_seconds() - cpu) / (bytes_ / 1e9))
            if best is None or result[0] > best[0]:
                best = result
        self.note(name, round(best[0], 2))
        self.note(name + ", CPU s/GB", round(best[1], 3))
        return best[0]


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def make(path, size):
    """A file of random bytes, in the page cache and on the disk."""
    if os.path.exists(path) and os.path.getsize(path) == size:
        warm(path)
        return
    block = os.urandom(16 * MIB)
    with open(path, "wb") as file:
        left, number = size, 0
        while left > 0:
            piece = bytearray(block[: min(left, len(block))])
            # No two blocks are the same.
            piece[:8] = number.to_bytes(8, "little")[: len(piece)]
            file.write(piece)
            left -= len(piece)
            number += 1
        file.flush()
        os.fsync(file.fileno())


def warm(path):
    buffer = bytearray(16 * MIB)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def cold(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def same(tensor, path, offset=0):
    """Whether GPU memory holds a file's bytes, all of them."""
    import torch

    length = tensor.numel() * tensor.element_size()
    flat = tensor.contiguous().view(torch.uint8).flatten()
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        at = 0
        while at < length:
            piece = file.read(min(64 * MIB, length - at))
            if not piece:
                return False
            host = torch.frombuffer(bytearray(piece), dtype=torch.uint8)
            if not torch.equal(flat[at : at + len(piece)].cpu(), host):
                return False
            at += len(piece)
    return True


def pinned_rate():
    """The bus's rate: copies of pinned memory, in GB/s."""
    import torch

    host = torch.empty(GIB, dtype=torch.uint8).pin_memory()
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    device.copy_(host)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(8):
        device.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return 8 * GIB / (time.perf_counter() - begun) / 1e9


def cufile():
    """The libcufile that this process has, by ctypes."""
    library = ctypes.CDLL("libcufile.so.0", use_errno=True)

    class Error(ctypes.Structure):
        _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]

    class Descr(ctypes.Structure):
        _fields_ = [("type", ctypes.c_uint64), ("fd", ctypes.c_int64), ("ops", ctypes.c_void_p)]

    for name in (
        "cuFileDriverOpen cuFileDriverClose cuFileHandleRegister cuFileBufRegister "
        "cuFileBufDeregister cuFileReadAsync cuFileSetStatsLevel cuFileStatsStart"
    ).split():
        getattr(library, name, lambda: None).restype = Error
    for name in ("cuFileRead", "cuFileWrite"):
        function = getattr(library, name)
        function.restype = ctypes.c_ssize_t
        function.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int64,
            ctypes.c_int64,
        ]
    library.cuFileBufRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.cuFileBufDeregister.argtypes = [ctypes.c_void_p]
    library.cuFileHandleDeregister.argtypes = [ctypes.c_void_p]

    def counted(name):
        function = getattr(library, name)

        def call(*arguments):
            ctypes.set_errno(0)
            result = function(*arguments)
            return result if result != -1 else f"-1, {os.strerror(ctypes.get_errno())}"

        return call

    library.read, library.write = counted("cuFileRead"), counted("cuFileWrite")

    def register(fd):
        handle = ctypes.c_void_p()
        descr = Descr(1, fd, None)
        error = library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(descr))
        return error.err, handle

    library.register = register
    return library
