# SPDX-License-Identifier: MIT OR Apache-2.0
"""fastsafetensors: a model of several gigabytes."""

import os
import time
import warnings

import torch
from fastsafetensors import fastsafe_open
from safetensors.torch import save_file

import common

case = common.Case()
torch.cuda.init()
path = case.path("model.safetensors")
# At least 3 GB.
count = max(96, case.size // (32 * common.MIB))
model = {
    f"layer{i}.weight": torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda").cpu()
    for i in range(count)
}
save_file(model, path)
size = os.path.getsize(path)
case.note("model, GB", round(size / 1e9, 2))
nogds = case.mode == "posix"
loaded = {}


def load():
    with fastsafe_open(filenames=[path], nogds=nogds, device="cuda:0") as file:
        for name in file.keys():
            loaded[name] = file.get_tensor(name).clone() if check else file.get_tensor(name)
        torch.cuda.synchronize()


with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    check = True
    load()
    for warning in said:
        if "nogds" in str(warning.message):
            case.note("warning", str(warning.message)[:120])
case.note("bytes equal", all(torch.equal(loaded[name].cpu(), model[name]) for name in model))
loaded.clear()
check = False


def load_and_forget():
    load()
    loaded.clear()


common.warm(path)
case.rate("load cached, GB/s", size, load_and_forget, times=4)
common.cold(path)
case.rate("load cold, GB/s", size, load_and_forget, times=1)
os.unlink(path)
