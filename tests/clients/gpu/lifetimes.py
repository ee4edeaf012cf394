# SPDX-License-Identifier: MIT OR Apache-2.0
"""A process that ends in one way or another after it used the library."""

import atexit
import ctypes
import os
import sys

import torch

import common

case = common.Case()
how, level = sys.argv[2].split(",")
torch.cuda.init()
buffer = torch.zeros(common.MIB, dtype=torch.uint8, device="cuda")
path = case.path(f"life{how}{level}")
common.make(path, common.MIB)
library = common.cufile()
library.cuFileSetStatsLevel(int(level))
assert library.cuFileDriverOpen().err == 0
library.cuFileStatsStart()
error, handle = library.register(os.open(path, os.O_RDONLY))
assert error == 0, error
assert library.cuFileRead(handle, buffer.data_ptr(), common.MIB, 0, 0) == common.MIB
assert common.same(buffer, path)
os.unlink(path)
if how == "close":
    assert library.cuFileDriverClose().err == 0
elif how == "atexit":
    atexit.register(library.cuFileDriverClose)
elif how == "dlclose":
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))
case.note("ended", how)
