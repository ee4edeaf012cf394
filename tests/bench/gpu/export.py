# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which CUDA memory can be exported as a dma-buf here, and what is known of the GPU.

Needs cuda.bindings and, for its allocators, PyTorch. Prints a table; changes nothing.
"""
import ctypes
import os
import platform
import subprocess
import sys

cu = ctypes.CDLL("libcuda.so.1")
SIZE = 64 << 20
DMA_BUF = 1


def call(name, *args):
    """Calls the driver and gives the name of the result."""
    code = getattr(cu, name)(*args)
    text = ctypes.c_char_p()
    cu.cuGetErrorName(code, ctypes.byref(text))
    return code, (text.value or b"?").decode()


def attribute(which, pointer, kind=ctypes.c_uint64):
    value = kind()
    code, name = call("cuPointerGetAttribute", ctypes.byref(value), which, ctypes.c_uint64(pointer))
    return value.value if code == 0 else name


def export(title, pointer, size):
    """One row: the export with and without the PCIe-mapping flag."""
    row = []
    for flags in (0, 1):
        fd = ctypes.c_int(-1)
        code, name = call(
            "cuMemGetHandleForAddressRange", ctypes.byref(fd), ctypes.c_uint64(pointer),
            ctypes.c_size_t(size), DMA_BUF, ctypes.c_ulonglong(flags))
        if code == 0:
            row.append(f"works ({os.lseek(fd.value, 0, os.SEEK_END) >> 20} MiB)")
            os.close(fd.value)
        else:
            row.append(name)
    start, length = attribute(11, pointer), attribute(12, pointer, ctypes.c_size_t)
    capable = attribute(15, pointer, ctypes.c_int)
    context = attribute(1, pointer)
    print(f"| {title} | {row[0]} | {row[1]} | rdma-capable {capable} | "
          f"range {length} from {pointer - start if isinstance(start, int) else start} | "
          f"context {'none' if context == 0 else 'yes' if isinstance(context, int) else context} | "
          f"buffer id {attribute(7, pointer)} |", flush=True)


def device_attributes():
    for name, number in (("DMA_BUF_SUPPORTED", 124), ("GPU_DIRECT_RDMA_SUPPORTED", 116),
                         ("FLUSH_WRITES_OPTIONS", 117), ("WRITES_ORDERING", 118),
                         ("RDMA_WITH_CUDA_VMM", 110), ("HOST_REGISTER_SUPPORTED", 99),
                         ("ASYNC_ENGINES", 40)):
        value = ctypes.c_int()
        code, text = call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
        print(f"{name}: {value.value if code == 0 else text}")


def virtual(rdma):
    """Memory of cuMemCreate, with the RDMA-capable flag or without."""
    from cuda.bindings import driver as d
    prop = d.CUmemAllocationProp()
    prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    prop.allocFlags.gpuDirectRDMACapable = 1 if rdma else 0
    result, handle = d.cuMemCreate(SIZE, prop, 0)
    if result != d.CUresult.CUDA_SUCCESS:
        print(f"| cuMemCreate, RDMA-capable {rdma} | {result} |")
        return
    _, address = d.cuMemAddressReserve(SIZE, 0, 0, 0)
    d.cuMemMap(address, SIZE, 0, handle, 0)
    access = d.CUmemAccessDesc()
    access.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    d.cuMemSetAccess(address, SIZE, [access], 1)
    export(f"cuMemCreate, RDMA-capable flag {int(rdma)}", int(address), SIZE)


def torch_memory(title):
    import torch
    tensor = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    start, length = attribute(11, tensor.data_ptr()), attribute(12, tensor.data_ptr(), ctypes.c_size_t)
    print(f"tensor at {tensor.data_ptr():#x}, its range {start:#x} + {length}")
    export(title, tensor.data_ptr(), SIZE)


def main():
    if len(sys.argv) > 1:
        torch_memory(sys.argv[1])
        return
    print("kernel", platform.release())
    subprocess.run("nvidia-smi --query-gpu=name,driver_version,pci.bus_id --format=csv,noheader;"
                   "nvidia-smi -q -d MEMORY | sed -n '/BAR1/,/Free/p';"
                   "cat /proc/driver/nvidia/version; cat /proc/driver/nvidia/params | grep -i -E 'Registry|Resizable';"
                   "ls -la /dev/nvme* /dev/nvidia* 2>&1 | head -20; df -T /tmp; ulimit -l; ldd --version | head -1;"
                   "cat /sys/block/*/queue/scheduler /sys/kernel/mm/transparent_hugepage/enabled;"
                   "lscpu | grep -E 'Model name|L3|NUMA'; cat /proc/sys/kernel/io_uring_disabled", shell=True, check=False)
    print(call("cuInit", 0))
    context = ctypes.c_void_p()
    print(call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0), call("cuCtxSetCurrent", context))
    device_attributes()
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(SIZE))
    export("cudaMalloc", pointer.value, SIZE)
    export("cudaMalloc, 2 MiB inside it", pointer.value + (2 << 20), 2 << 20)
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    pooled = ctypes.c_uint64()
    call("cuMemAllocAsync", ctypes.byref(pooled), ctypes.c_size_t(SIZE), stream)
    call("cuStreamSynchronize", stream)
    export("cudaMallocAsync", pooled.value, SIZE)
    managed = ctypes.c_uint64()
    call("cuMemAllocManaged", ctypes.byref(managed), ctypes.c_size_t(SIZE), 1)
    export("cudaMallocManaged", managed.value, SIZE)
    pinned = ctypes.c_void_p()
    call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(SIZE), 0)
    export("cudaMallocHost", pinned.value, SIZE)
    for rdma in (False, True):
        virtual(rdma)
    for title, config in (("PyTorch, default", ""), ("PyTorch, expandable segments", "expandable_segments:True")):
        env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=config)
        subprocess.run([sys.executable, __file__, title], env=env, check=False)


main()
