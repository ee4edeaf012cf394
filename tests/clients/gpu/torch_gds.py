# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch's torch.cuda.gds: storages to files and back."""

import os

import torch
from torch.cuda.gds import GdsFile, gds_deregister_buffer, gds_register_buffer

import common

case = common.Case()
posix = case.mode == "posix"
torch.cuda.init()
size = case.size
path = case.path("storage")
source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
target = torch.zeros(size, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()


def write_posix():
    with open(path, "wb", buffering=0) as file:
        data = memoryview(source.cpu().numpy())
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())


def read_posix():
    host = torch.from_file(path, size=size, dtype=torch.uint8)
    target.copy_(host)
    torch.cuda.synchronize()


if posix:
    case.rate("write and fsync, GB/s", size, write_posix)
    case.rate("read cached, GB/s", size, read_posix)
else:
    with open(path, "wb"):
        pass
    file = GdsFile(path, os.O_CREAT | os.O_RDWR)

    def write_gds():
        file.save_storage(source.untyped_storage(), offset=0)
        os.fsync(file.fd)

    def read_gds():
        file.load_storage(target.untyped_storage(), offset=0)

    case.rate("write and fsync, GB/s", size, write_gds)
    case.note("file right", common.same(source, path))
    common.warm(path)
    case.rate("read cached, GB/s", size, read_gds)
    gds_register_buffer(target.untyped_storage())
    target.zero_()
    case.rate("read cached, registered, GB/s", size, read_gds)
    gds_deregister_buffer(target.untyped_storage())
case.note("bytes equal", bool(torch.equal(source, target)))
common.cold(path)
target.zero_()
torch.cuda.synchronize()
case.rate("read cold, GB/s", size, read_posix if posix else read_gds, times=1)
case.note("bytes equal, cold", bool(torch.equal(source, target)))
os.unlink(path)
