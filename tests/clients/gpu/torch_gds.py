# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch's torch.cuda.gds: storages to files and back, and checkpoints."""

import os
import time

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
del source, target

# A checkpoint of some tensors: the file's frame by torch.save, the data by cuFile.
from torch.utils.serialization import config

config.save.storage_alignment = 4096
state = {
    f"layer{i}": torch.randn(size // 16 // 4 // 1024, 1024, device="cuda") for i in range(8)
}
bytes_ = sum(tensor.numel() * 4 for tensor in state.values())
checkpoint = case.path("checkpoint.pt")


def offsets(path):
    """Where each tensor's data is in a checkpoint."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        frame = torch.load(path, weights_only=True)
    return {
        name: tensor.untyped_storage()._checkpoint_offset for name, tensor in frame.items()
    }


def save():
    if posix:
        torch.save(state, checkpoint)
    else:
        with torch.serialization.skip_data():
            torch.save(state, checkpoint)
        file = GdsFile(checkpoint, os.O_RDWR)
        for name, offset in offsets(checkpoint).items():
            file.save_storage(state[name].untyped_storage(), offset=offset)
    fd = os.open(checkpoint, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def load():
    if posix:
        return torch.load(checkpoint, map_location="cuda", weights_only=True)
    file = GdsFile(checkpoint, os.O_RDONLY)
    loaded = {}
    for name, offset in offsets(checkpoint).items():
        loaded[name] = torch.empty_like(state[name])
        file.load_storage(loaded[name].untyped_storage(), offset=offset)
    return loaded


def equal(loaded):
    return all(torch.equal(state[name], loaded[name].cuda()) for name in state)


case.rate("checkpoint save and fsync, GB/s", bytes_, save)
case.note("plain torch.load equal", equal(torch.load(checkpoint, weights_only=True)))
loaded = None


def load_again():
    global loaded
    loaded = load()
    torch.cuda.synchronize()


torch.save(state, checkpoint)
common.warm(checkpoint)
case.rate("checkpoint load cached, GB/s", bytes_, load_again)
case.note("loaded from plain torch.save equal", equal(loaded))
for name in ("storage", "checkpoint.pt"):
    os.unlink(case.path(name))
