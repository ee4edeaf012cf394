# SPDX-License-Identifier: MIT OR Apache-2.0
"""The same calls on either library: codes, and how long the first read takes."""

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
case.note("read", library.cuFileRead(handle, address, common.MIB, 0, 0))
case.note("open and first read, ms", round((time.perf_counter() - begun) * 1e3, 1))
case.note("bytes equal", common.same(buffer[: common.MIB], path))
case.note("register again", library.register(fd)[0])
case.note("no handle", library.cuFileRead(None, address, 4096, 0, 0))
case.note("no buffer", library.cuFileRead(handle, None, 4096, 0, 0))
case.note("negative offset", library.cuFileRead(handle, address, 4096, -4096, 0))
case.note("size 0", library.cuFileRead(handle, address, 0, 0, 0))
case.note("behind the end", library.cuFileRead(handle, address, 4096, 8 * common.MIB, 0))
case.note("the end", library.cuFileRead(handle, address, 2 * common.MIB, 0, 0))
case.note("not aligned", library.cuFileRead(handle, address, 1001, 17, 3))
case.note("buffer", library.cuFileBufRegister(address, 4 * common.MIB, 0).err)
case.note("buffer again", library.cuFileBufRegister(address, 4 * common.MIB, 0).err)
case.note("part of it", library.cuFileBufRegister(address + 65536, 65536, 0).err)
case.note("end part", library.cuFileBufDeregister(address + 65536).err)
case.note("beyond it", library.cuFileRead(handle, address, 65536, 0, 4 * common.MIB))
case.note("inside it", library.cuFileRead(handle, address + 65536, 65536, 0, 0))
case.note("end", library.cuFileBufDeregister(address).err)
case.note("end again", library.cuFileBufDeregister(address).err)
case.note("size 0 buffer", library.cuFileBufRegister(address, 0, 0).err)
case.note("no memory", library.cuFileBufRegister(4096, 4096, 0).err)
other = os.open(path, os.O_RDONLY)
case.note("without O_DIRECT", library.register(other)[0])
appending = os.open(path, os.O_RDWR | os.O_APPEND)
case.note("O_APPEND", library.register(appending)[0])
case.note("close", library.cuFileDriverClose().err)
case.note("close again", library.cuFileDriverClose().err)
