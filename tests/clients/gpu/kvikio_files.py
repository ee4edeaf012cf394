# SPDX-License-Identifier: MIT OR Apache-2.0
"""KvikIO: reads and writes, futures, a stream, and its thread settings."""

import os
import time

import cupy
import torch

import common
import kvikio
import kvikio.defaults

case = common.Case()
torch.cuda.init()
size = case.size
path = case.path("data")
common.make(path, size)
buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
array = cupy.asarray(buffer)
case.note("POSIX mode", bool(kvikio.defaults.is_compat_mode_preferred()))
case.note("pinned copy, GB/s", round(common.pinned_rate(), 1))

for threads in (1, 8, 16):
    kvikio.defaults.set({"num_threads": threads})
    with kvikio.CuFile(path, "r") as file:

        def read():
            assert file.read(array) == size

        read()
        case.rate(f"read cached, {threads} threads, GB/s", size, read)
        if threads == 1:
            case.note("bytes equal", common.same(buffer, path))
            buffer.zero_()
            assert file.pread(array).get() == size
            case.note("pread equal", common.same(buffer, path))
            buffer.zero_()
            begun, cpu = time.perf_counter(), common.cpu_seconds()
            assert file.raw_read(array) == size
            case.note("raw_read cached, GB/s", round(size / (time.perf_counter() - begun) / 1e9, 2))
            case.note(
                "raw_read cached, CPU s/GB", round((common.cpu_seconds() - cpu) / size * 1e9, 3)
            )
            case.note("raw_read equal", common.same(buffer, path))

            def small():
                for i in range(2000):
                    file.raw_read(array, 4096, (i * 7919 % 10000) * 4096)

            small()
            begun = time.perf_counter()
            small()
            case.note("4 KiB raw_read, us", round((time.perf_counter() - begun) / 2000 * 1e6, 1))
        if threads != 8:
            common.cold(path)
            case.rate(f"read cold, {threads} threads, GB/s", size, read, times=1)
            common.warm(path)

stream = cupy.cuda.Stream(non_blocking=True)
buffer.zero_()
torch.cuda.synchronize()
try:
    with kvikio.CuFile(path, "r") as file:
        future = file.raw_read_async(array, stream.ptr)
        case.note("async bytes", future.check_bytes_done() == size)
    case.note("async equal", common.same(buffer, path))
except Exception as error:
    case.note("async", repr(error)[:200])

kvikio.defaults.set({"num_threads": 1})
copy = case.path("copy")
with kvikio.CuFile(copy, "w") as file:

    def write():
        assert file.write(array) == size
        os.fsync(file.fileno())

    case.rate("write and fsync, 1 thread, GB/s", size, write, times=2)
case.note("written equal", common.same(buffer, copy))
with kvikio.CuFile(copy, "w") as file:
    assert file.pwrite(array[: 64 * common.MIB]).get() == 64 * common.MIB
case.note("pwrite equal", common.same(buffer[: 64 * common.MIB], copy))
os.unlink(copy)
