# SPDX-License-Identifier: MIT OR Apache-2.0
"""cuFileReadAsync on more streams than the GPU has queues for, with copies before and
behind, while other streams stand still: nothing hangs, and each stream keeps its order."""

import ctypes
import os
import time

import torch

import common

case = common.Case()
torch.cuda.init()
torch.zeros(1, device="cuda")
library = common.cufile()
path = case.path("streams")
piece = 4 * common.MIB
STREAMS = 96
common.make(path, STREAMS * piece)
fd = os.open(path, os.O_RDONLY)
error, handle = library.register(fd)
assert error == 0, error
memory = torch.zeros(STREAMS * piece, dtype=torch.uint8, device="cuda")
copies = torch.zeros(STREAMS * piece, dtype=torch.uint8).pin_memory()
more = torch.zeros(STREAMS * piece, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
streams = [torch.cuda.Stream() for _ in range(32)]
# Streams of torch come from a pool of 32; these are real ones.
driver = ctypes.CDLL("libcuda.so.1")
handles = []
for _ in range(STREAMS):
    raw = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(raw), 1) == 0
    handles.append(torch.cuda.ExternalStream(raw.value))

parameters = (ctypes.c_int64 * 4 * STREAMS)()
begun = time.perf_counter()
for number, stream in enumerate(handles):
    at = number * piece
    parameters[number][:] = [piece, at, at, -1]
    address = ctypes.addressof(parameters[number])
    with torch.cuda.stream(stream):
        more[at : at + piece].copy_(copies[at : at + piece], non_blocking=True)
        torch.cuda._sleep(2_000_000)
        error = library.cuFileReadAsync(
            handle,
            ctypes.c_void_p(memory.data_ptr()),
            ctypes.c_void_p(address),
            ctypes.c_void_p(address + 8),
            ctypes.c_void_p(address + 16),
            ctypes.c_void_p(address + 24),
            ctypes.c_void_p(stream.cuda_stream),
        )
        assert error.err == 0, (error.err, error.cu_err)
        copies[at : at + piece].copy_(memory[at : at + piece], non_blocking=True)
        more[at : at + piece].copy_(memory[at : at + piece], non_blocking=True)
case.note("enqueued, ms", round((time.perf_counter() - begun) * 1e3, 1))
end = time.perf_counter() + 30
while any(not stream.query() for stream in handles):
    if time.perf_counter() > end:
        stuck = sum(not stream.query() for stream in handles)
        case.note("streams that hang", stuck)
        os._exit(1)
    time.sleep(0.001)
case.note("done, ms", round((time.perf_counter() - begun) * 1e3, 1))
case.note("results", all(parameters[i][3] == piece for i in range(STREAMS)))
case.note("bytes equal", common.same(memory, path))
case.note("order kept", common.same(copies.cuda(), path) and common.same(more, path))
os.unlink(path)
