# SPDX-License-Identifier: MIT OR Apache-2.0
"""cuda.bindings.cufile: NVIDIA's Python binding of every function."""

import ctypes
import os

import torch
from cuda.bindings import cufile

import common

case = common.Case()
torch.cuda.init()
torch.zeros(1, device="cuda")
path = case.path("bindings")
size = 16 * common.MIB
common.make(path, size)
case.note("version", cufile.get_version())
case.note("allow compat", bool(cufile.get_parameter_bool(1)))
cufile.set_stats_level(3)
cufile.driver_open()
cufile.stats_start()
fd = os.open(path, os.O_RDWR)
descr = cufile.Descr()
descr.type = cufile.FileHandleType.OPAQUE_FD
descr.handle.fd = fd
descr.fs_ops = 0
handle = cufile.handle_register(descr.ptr)
buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
cufile.buf_register(buffer.data_ptr(), size, 0)
case.note("read", cufile.read(handle, buffer.data_ptr(), size, 0, 0) == size)
case.note("bytes equal", common.same(buffer, path))
case.note("write", cufile.write(handle, buffer.data_ptr(), size, 0, 0) == size)

batch = cufile.batch_io_set_up(8)
entries = cufile.IOParams(8)
for i in range(8):
    entries[i].mode = cufile.BatchMode.BATCH
    entries[i].fh = handle
    entries[i].opcode = cufile.Opcode.READ
    entries[i].cookie = i
    entries[i].u.batch.dev_ptr_base = buffer.data_ptr()
    entries[i].u.batch.file_offset = i * common.MIB
    entries[i].u.batch.dev_ptr_offset = i * common.MIB
    entries[i].u.batch.size_ = common.MIB
cufile.batch_io_submit(batch, 8, entries.ptr, 0)
count = ctypes.c_uint(8)
events = cufile.IOEvents(8)
cufile.batch_io_get_status(batch, 8, ctypes.addressof(count), events.ptr, 0)
case.note("batch", count.value == 8 and all(events[i].ret == common.MIB for i in range(8)))
cufile.batch_io_destroy(batch)
cufile.buf_deregister(buffer.data_ptr())
cufile.handle_deregister(handle)
cufile.stats_stop()
try:
    stats = cufile.StatsLevel1()
    cufile.get_stats_l1(stats.ptr)
    case.note("reads counted", int(stats.read_ops.ok))
    case.note("bytes counted", int(stats.read_bytes))
except Exception as error:
    case.note("statistics", repr(error)[:120])
case.note("use count", cufile.use_count())
cufile.driver_close()
os.close(fd)
