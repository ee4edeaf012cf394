# SPDX-License-Identifier: MIT OR Apache-2.0
"""cuFileRead by request size, one after the other, of a cached file."""

import os
import time

import torch

import common

case = common.Case()
torch.cuda.init()
size = min(case.size, common.GIB)
path = case.path("sizes")
common.make(path, size)
buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
library = common.cufile()
error, handle = library.register(os.open(path, os.O_RDONLY))
assert error == 0, error
assert library.cuFileBufRegister(buffer.data_ptr(), size, 0).err == 0
for kib in (4, 64, 256, 1024, 2048, 4096, 8192, 16384, 65536):
    piece = kib << 10
    count = min(size // piece, 2000)
    best = None
    for _ in range(3):
        begun, cpu = time.perf_counter(), common.cpu_seconds()
        for i in range(count):
            assert library.cuFileRead(handle, buffer.data_ptr(), piece, i * piece, i * piece) == piece
        took = time.perf_counter() - begun
        used = common.cpu_seconds() - cpu
        if best is None or took < best[0]:
            best = took, used
    bytes_ = count * piece
    case.note(f"{kib} KiB, us", round(best[0] / count * 1e6, 1))
    case.note(f"{kib} KiB, GB/s", round(bytes_ / best[0] / 1e9, 2))
    case.note(f"{kib} KiB, CPU s/GB", round(best[1] / bytes_ * 1e9, 3))
case.note("bytes equal", common.same(buffer, path))
os.unlink(path)
