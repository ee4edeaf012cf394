# SPDX-License-Identifier: MIT OR Apache-2.0
"""The same calls on either library: codes, and how long the first read takes."""

import ctypes
import os
import time

import torch

import common

case = common.Case()
torch.cuda.init()
buffer = torch.zeros(8 * common.MIB, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
path = case.path("codes")
common.make(path, common.MIB + 1000)
begun = time.perf_counter()
library = common.cufile()
case.note("open", library.cuFileDriverOpen().err)
fd = os.open(path, os.O_RDWR | os.O_DIRECT)
error, handle = library.register(fd)
case.note("register", error)
address = buffer.data_ptr()
case.note("read", library.read(handle, address, common.MIB, 0, 0))
case.note("open and first read, ms", round((time.perf_counter() - begun) * 1e3, 1))
case.note("bytes equal", common.same(buffer[: common.MIB], path))
case.note("register again", library.register(fd)[0])
case.note("no handle", library.read(None, address, 4096, 0, 0))
case.note("no buffer", library.read(handle, None, 4096, 0, 0))
case.note("negative offset", library.read(handle, address, 4096, -4096, 0))
case.note("size 0", library.read(handle, address, 0, 0, 0))
case.note("behind the end", library.read(handle, address, 4096, 8 * common.MIB, 0))
case.note("the end", library.read(handle, address, 2 * common.MIB, 0, 0))
case.note("not aligned", library.read(handle, address, 1001, 17, 3))
case.note("buffer", library.cuFileBufRegister(address, 4 * common.MIB, 0).err)
case.note("buffer again", library.cuFileBufRegister(address, 4 * common.MIB, 0).err)
case.note("part of it", library.cuFileBufRegister(address + 65536, 65536, 0).err)
case.note("end part", library.cuFileBufDeregister(address + 65536).err)
case.note("beyond it", library.read(handle, address, 65536, 0, 4 * common.MIB))
case.note("inside it", library.read(handle, address + 65536, 65536, 0, 0))
case.note("beyond the allocation", library.read(handle, address, 1 << 40, 0, 0))
case.note("bad address", library.read(handle, 4096, 65536, 0, 0))
case.note("end", library.cuFileBufDeregister(address).err)
case.note("end again", library.cuFileBufDeregister(address).err)
case.note("size 0 buffer", library.cuFileBufRegister(address, 0, 0).err)
case.note("no memory", library.cuFileBufRegister(4096, 4096, 0).err)
other = os.open(path, os.O_RDONLY)
case.note("without O_DIRECT", library.register(other)[0])
appending = os.open(path, os.O_RDWR | os.O_APPEND)
error, reading = library.register(os.open(path, os.O_RDONLY))
case.note("write to a file open for reading", library.write(reading, address, 4096, 0, 0))
case.note("O_APPEND", library.register(appending)[0])


def microseconds(run, times=3000):
    """The best of three."""
    best = None
    for _ in range(3):
        begun = time.perf_counter()
        for i in range(times):
            run(i * 7919 % 256 * 4096)
        took = (time.perf_counter() - begun) / times * 1e6
        best = took if best is None else min(best, took)
    return best


# 4 KiB from the page cache, and by hand: pread and a copy. What Python's calls cost is
# taken off: one and two of them.
common.warm(path)
driver = ctypes.CDLL("libcuda.so.1")
pinned = torch.empty(4096, dtype=torch.uint8).pin_memory()
c = ctypes.CDLL(None)
nothing = microseconds(lambda at: library.cuFileRead(handle, address, 0, at, 0))
c.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]
driver.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]


def by_hand(at):
    c.pread(other, pinned.data_ptr(), 4096, at)
    driver.cuMemcpyHtoD_v2(address, pinned.data_ptr(), 4096)


cached = microseconds(lambda at: library.cuFileRead(handle, address, 4096, at, 0))
case.note("a call of nothing, us", round(nothing, 2))
case.note("4 KiB cached, us", round(cached - nothing, 2))
case.note("4 KiB by pread and copy, us", round(microseconds(by_hand) - 2 * nothing, 2))
case.note("close", library.cuFileDriverClose().err)
case.note("close again", library.cuFileDriverClose().err)
