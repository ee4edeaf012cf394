# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checkpoints of PyTorch: the file's frame by torch.save, the data by cuFile.

Written so they are what plain torch.load reads, and read they may be what plain torch.save
wrote. Beside it, where there is no cuFile: torch.save and torch.load; and copies to pinned
memory with write(2), which no checkpoint can beat that goes through the page cache.
"""

import os

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.cuda.gds import GdsFile
from torch.utils.serialization import config

import common

TENSOR = 256 * common.MIB
case = common.Case()
posix = case.mode == "posix"
torch.cuda.init()
config.save.storage_alignment = 4096
path = case.path("checkpoint.pt")
# As large as asked for, where there is room for it.
room = os.statvfs(case.directory)
count = max(1, min(case.size, room.f_bavail * room.f_frsize * 2 // 3) // TENSOR)
state = {
    f"layer{i}": torch.randn(TENSOR // 4 // 1024, 1024, device="cuda") for i in range(count)
}
size = count * TENSOR
case.note("checkpoint, GB", round(size / 1e9, 2))


def flush():
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def offsets():
    """Where each tensor's data is in the checkpoint."""
    with FakeTensorMode():
        frame = torch.load(path, weights_only=True)
    return {
        name: tensor.untyped_storage()._checkpoint_offset for name, tensor in frame.items()
    }


def save():
    if posix:
        torch.save(state, path)
    else:
        with torch.serialization.skip_data():
            torch.save(state, path)
        file = GdsFile(path, os.O_RDWR)
        for name, offset in offsets().items():
            file.save_storage(state[name].untyped_storage(), offset=offset)
    flush()


loaded = {}


def load():
    if posix:
        loaded.update(torch.load(path, map_location="cuda", weights_only=True))
    else:
        file = GdsFile(path, os.O_RDONLY)
        for name, offset in offsets().items():
            loaded[name] = torch.empty_like(state[name])
            file.load_storage(loaded[name].untyped_storage(), offset=offset)
    torch.cuda.synchronize()


def equal():
    """Whether all that was loaded is as it was; forgets it."""
    result = loaded.keys() == state.keys() and all(
        torch.equal(state[name], loaded[name].cuda()) for name in state
    )
    loaded.clear()
    return result


def write_pinned():
    """The data alone, by pinned memory and write(2)."""
    host = [torch.empty(TENSOR, dtype=torch.uint8).pin_memory() for _ in range(2)]
    with open(path, "wb", buffering=0) as file:
        for number, tensor in enumerate(state.values()):
            buffer = host[number % 2]
            buffer.copy_(tensor.view(torch.uint8).flatten())
            data = memoryview(buffer.numpy())
            while data:
                data = data[file.write(data) :]
    flush()


def write_direct():
    """As many bytes by O_DIRECT, 16 MiB at a time: the disk's own rate."""
    import mmap

    block = mmap.mmap(-1, 16 * common.MIB)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_DIRECT, 0o600)
    for _ in range(size // len(block)):
        os.write(fd, block)
    os.close(fd)
    flush()


def prepare():
    """The first look at offsets loads seconds of PyTorch's own modules, once a process."""
    torch.save({}, path)
    offsets()


def fresh():
    if os.path.exists(path):
        os.unlink(path)


prepare()
if posix:
    fresh()
    case.rate("pinned copies and write, GB/s", size, write_pinned, times=1)
    fresh()
    try:
        case.rate("O_DIRECT alone, GB/s", size, write_direct, times=1)
    except OSError as error:
        case.note("O_DIRECT alone", error.strerror)
fresh()
case.rate("save and fsync, GB/s", size, save, times=1)
if not posix:
    loaded.update(torch.load(path, weights_only=True))
    case.note("plain torch.load equal", equal())
    # The other way round.
    fresh()
    torch.save(state, path)
common.warm(path)
case.rate("load cached, GB/s", size, load, times=1)
case.note("loaded equal", equal())
common.cold(path)
case.rate("load cold, GB/s", size, load, times=1)
case.note("loaded cold equal", equal())
os.unlink(path)
