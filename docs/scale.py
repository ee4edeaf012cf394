#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the figures of docs/scale.md from the assumptions below.

    docs/scale.py            print the tables
    docs/scale.py --write    put them into the document
    docs/scale.py --check    fail if the document has others

Change an assumption to that of your server, and run it.
"""

import pathlib
import re
import sys

# --- Assumptions: not measured by us ---

# PCI Express 4.0 and 5.0: transfers/s of a lane; 128b/130b encoding.
GIGATRANSFERS = {4: 16.0, 5: 32.0}
# Payload of a packet on servers, and what is around it: framing and sequence number 4, a
# header with a 64-bit address 16, CRC 4 bytes.
PAYLOAD, AROUND = 256, 24
# A drive of today's fast class: sequential reads GB/s, random reads of 4 KiB per second,
# and how long one takes, s.
DRIVE_GBPS, DRIVE_IOPS, DRIVE_LATENCY = 14.0, 3.0e6, 100e-6
# The server: per PCIe switch two GPUs (x16), two drives (x4), one way up (x16).
SWITCHES, GPUS_EACH, DRIVES_EACH = 4, 2, 2
# Two sockets of twelve DDR5-4800 channels, and the part of their rate that is reached.
DRAM_GBPS, DRAM_REACHED = 2 * 12 * 8 * 4.8, 0.8
# The processor in the kernel: instructions per cycle, cycles per second.
IPC, HERTZ = 1.0, 3.0e9
# A network card: 400 Gb/s, of a packet of 4096 + 66 bytes 4096 are data.
NIC_GBPS = 400 / 8 * 4096 / (4096 + 66)
# A storage node: drives and cards. A GPU node: cards.
NODE_DRIVES, NODE_CARDS, GPU_CARDS = 24, 4, 8
# The model that is loaded, GB.
MODEL = 140.0

# --- Measured by us ---

# Instructions of a request, `make bench-kernel` (docs/cost.md): direct by ioctl, direct by
# io_uring at depth 32, pread(2) with O_DIRECT into host RAM.
COST = {
    4 << 10: (8050, 6803, 6881),
    64 << 10: (8912, 7794, 8678),
    1 << 20: (13473, 13215, 20249),
    16 << 20: (148590, 148243, 296639),
}
# Compat engine, `make bench-gpu` on an H200 (docs/gpu.md): CPU seconds per GB, cold and
# cached; and the rate of a pinned copy over x16 of PCIe 5.0, GB/s.
COMPAT_COLD, COMPAT_CACHED, PINNED_COPY = 0.04, 0.17, 55.4

# --- Nothing but arithmetic from here on ---

DOCUMENT = pathlib.Path(__file__).with_name("scale.md")
DRIVES = SWITCHES * DRIVES_EACH
GPUS = SWITCHES * GPUS_EACH


def link(generation, lanes):
    """Raw rate of a link, and what is left of it for data, GB/s each way."""
    raw = GIGATRANSFERS[generation] * lanes * 128 / 130 / 8
    return raw, raw * PAYLOAD / (PAYLOAD + AROUND)


def table(head, rows):
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def name(size):
    """A size in words."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def links():
    rows = []
    for what, generation, lanes in [
        ("drive, PCIe 4.0 x4", 4, 4),
        ("drive, PCIe 5.0 x4", 5, 4),
        ("GPU or way up, PCIe 5.0 x16", 5, 16),
    ]:
        raw, data = link(generation, lanes)
        rows.append([what, f"{raw:.1f}", f"{data:.1f}"])
    rows.append(["network card, 400 Gb/s", "50.0", f"{NIC_GBPS:.1f}"])
    share = PINNED_COPY / link(5, 16)[1]
    return table(["link", "raw, GB/s", "for data, GB/s"], rows) + (
        f"\nThe pinned copy that we measured, {PINNED_COPY} GB/s, is {share:.2f} of the third line.\n"
    )


def server():
    drive = min(DRIVE_GBPS, link(5, 4)[1])
    x16 = link(5, 16)[1]
    drives = DRIVES * drive
    dram = DRAM_GBPS * DRAM_REACHED
    cached = min(GPUS * x16, dram / 4)
    rows = [
        ["direct, below the own switch", f"{drives:.0f}", "the drives", "0", cores(drives, 1 << 20)],
        [
            "direct, into another switch's GPU",
            f"{min(drives, SWITCHES * x16):.0f} at most",
            "the drives, or the processor's PCIe (unknown)",
            "0",
            cores(drives, 1 << 20),
        ],
        [
            "compat, cold",
            f"{drives:.0f}",
            "the drives",
            f"{2 * drives:.0f} of {dram:.0f}",
            f"{drives * COMPAT_COLD:.1f}",
        ],
        [
            "compat, cached",
            f"{cached:.0f}",
            "host memory" if cached < GPUS * x16 else "the GPUs' links",
            f"{4 * cached:.0f} of {dram:.0f}",
            f"{cached * COMPAT_CACHED:.0f}",
        ],
    ]
    head = ["way", "GB/s, all GPUs", "bound by", "host memory, GB/s", "processors busy"]
    return table(head, rows)


def seconds(instructions):
    return instructions / (IPC * HERTZ)


def cores(rate, size):
    """Processors that requests of one size by ioctl keep busy at a rate in GB/s."""
    return f"{rate * 1e9 / size * seconds(COST[size][0]):.2f}"


def requests():
    rows = []
    for size, costs in COST.items():
        rate = DRIVES * min(DRIVE_IOPS, DRIVE_GBPS * 1e9 / size)
        busy = [f"{rate * seconds(cost):.3g}" for cost in costs]
        flying = rate * max(DRIVE_LATENCY, size / (DRIVE_GBPS * 1e9))
        rows.append([name(size), f"{rate:,.0f}", f"{rate * size / 1e9:.0f}", *busy, f"{flying:,.0f}"])
    head = [
        "request",
        "per second",
        "GB/s",
        "processors: ioctl",
        "io_uring, depth 32",
        "`pread` into RAM",
        "in flight",
    ]
    return table(head, rows)


def cluster():
    drive = min(DRIVE_GBPS, link(5, 4)[1])
    store = min(NODE_DRIVES * drive, NODE_CARDS * NIC_GBPS)
    node = GPU_CARDS * NIC_GBPS
    rows = []
    for gpu_nodes, storage_nodes in [(1, 1), (1, 2), (8, 2), (8, 8), (64, 16)]:
        wanted, offered = gpu_nodes * node, storage_nodes * store
        rate = min(wanted, offered)
        rows.append(
            [
                gpu_nodes,
                storage_nodes,
                f"{rate:.0f}",
                "storage" if offered < wanted else "GPU nodes' cards",
                f"{gpu_nodes * MODEL / rate:.1f}",
                f"{2 * rate / gpu_nodes:.0f}",
            ]
        )
    head = [
        "GPU nodes",
        "storage nodes",
        "GB/s",
        "bound by",
        f"{MODEL:.0f} GB into each node, s",
        "host memory of a node by compat, GB/s",
    ]
    text = (
        f"A storage node gives {store:.0f} GB/s (its drives could {NODE_DRIVES * drive:.0f}), "
        f"a GPU node takes {node:.0f}; with its own {DRIVES} drives it loads the "
        f"{MODEL:.0f} GB in {MODEL / (DRIVES * drive):.2f} s.\n\n"
    )
    return text + table(head, rows)


BLOCKS = {"links": links, "server": server, "requests": requests, "cluster": cluster}


def main(arguments):
    if arguments not in ([], ["--write"], ["--check"]):
        sys.exit(__doc__)
    if not arguments:
        for block in BLOCKS.values():
            print(block())
        return
    old = DOCUMENT.read_text()
    new = old
    for block, make in BLOCKS.items():
        mark = re.compile(rf"(<!-- scale\.py: {block} -->\n).*?(<!-- end -->\n)", re.S)
        text = make()
        new, count = mark.subn(lambda found, text=text: found[1] + text + found[2], new)
        if count != 1:
            sys.exit(f"{DOCUMENT.name}: {count} places for the block {block}, expected 1")
    if arguments == ["--write"]:
        DOCUMENT.write_text(new)
    elif new != old:
        sys.exit(f"{DOCUMENT.name} has other figures than docs/scale.py computes: run it with --write")


main(sys.argv[1:])
