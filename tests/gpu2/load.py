#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loads a safetensors model into one GPU and over two, by vramio and by the format's own
library, where that is installed: cached, and cold once. Says what it found as a table, and as
JSON."""

import argparse
import json
import os
import struct
import subprocess
import sys
import threading
import time


def make(path, mib):
    """A file like a model's: large matrices, and small vectors in between."""
    sizes, left = [], mib << 20
    while left > 0:
        for size in (64 << 20, 14336):
            size = min(size, left)
            if size:
                sizes.append(size)
                left -= size
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for number, size in enumerate(sizes):
        header[f"layer.{number}.weight"] = {
            "dtype": "BF16",
            "shape": [size // 2],
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = os.urandom(16 << 20)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        done = 0
        while done < at:
            done += file.write(block[: at - done])
        file.flush()
        os.fsync(file.fileno())
    return at


def cool(path):
    """Drops the file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def warm(path):
    """Brings it in."""
    with open(path, "rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


class Vramio:
    """The command-line tool."""

    def __init__(self, program):
        self.program = program
        self.places = {}

    def load(self, path, gpus, *options):
        begin = time.monotonic()
        done = subprocess.run(
            [self.program, "load", path, "--policy", "allow", "--gpu", gpus, "--json", *options],
            stdout=subprocess.PIPE,
            check=False,
        )
        process = time.monotonic() - begin
        found = json.loads(done.stdout)
        if done.returncode != 0:
            raise SystemExit(f"vramio load: {found.get('error')}")
        self.places = {
            tensor["name"]: int(tensor["gpu"].removeprefix("gpu:")) for tensor in found["tensors"]
        }
        return found, process


def baseline():
    """The format's own library, if it is here and there are GPUs for it."""
    try:
        import torch
        from safetensors import safe_open
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"safetensors' own loader is not here: {error}")
        return None
    if torch.cuda.device_count() < 2:
        print(f"safetensors' own loader sees {torch.cuda.device_count()} GPUs")
        return None
    for number in range(2):
        torch.zeros(1, device=f"cuda:{number}")
        torch.cuda.synchronize(number)

    def one(path, _places):
        tensors = load_file(path, device="cuda:0")
        torch.cuda.synchronize(0)
        return tensors

    def two(path, places):
        parts = [{}, {}]

        def shard(number):
            with safe_open(path, framework="pt", device=f"cuda:{number}") as file:
                for name in file.keys():
                    if places[name] == number:
                        parts[number][name] = file.get_tensor(name)
            torch.cuda.synchronize(number)

        threads = [threading.Thread(target=shard, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return parts[0] | parts[1]

    def timed(load):
        def run(path, places):
            begin = time.monotonic()
            tensors = load(path, places)
            seconds = time.monotonic() - begin
            size = sum(t.numel() * t.element_size() for t in tensors.values())
            del tensors
            # Each time as the first time: from the driver, not from what PyTorch has kept.
            torch.cuda.empty_cache()
            return seconds, size

        return run

    return timed(one), timed(two)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vramio", required=True, help="the command-line tool")
    parser.add_argument("--file", required=True, help="where the model is made")
    parser.add_argument("--size", type=int, default=8192, help="its size, MiB")
    parser.add_argument("--rounds", type=int, default=3, help="how often each thing is measured")
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()

    size = make(args.file, args.size)
    print(f"model of {size} bytes, cached: best of {args.rounds}; cold: once")
    vramio = Vramio(args.vramio)
    found, _ = vramio.load(args.file, "0,1", "--verify")
    if found["verified"] != size or found["tensor_bytes"] != size:
        raise SystemExit(f"not all of it is there: {found['tensor_bytes']} of {size} bytes")
    shares = {gpu["name"]: gpu["tensor_bytes"] for gpu in found["gpus"]}
    print(f"right: over both, compared with the file; bytes: {shares}")

    rows = []

    def add(name, state, seconds, process=None):
        rate = size / seconds / 1e9
        rows.append({"name": name, "state": state, "seconds": seconds, "process": process})
        beside = f"  (process {process:.2f} s)" if process else ""
        print(f"{name:<44} {state:<7} {seconds:7.3f} s {rate:7.2f} GB/s{beside}", flush=True)

    own = baseline()
    for state, rounds in (("cached", args.rounds), ("cold", 1)):
        prepare = warm if state == "cached" else cool
        best = {}

        def keep(name, seconds, process=None):
            if name not in best or seconds < best[name][0]:
                best[name] = (seconds, process)

        for _ in range(rounds):
            for gpus in ("0", "0,1"):
                prepare(args.file)
                found, process = vramio.load(args.file, gpus)
                keep(f"vramio load --gpu {gpus}", found["seconds"], process)
            for name, load in zip(("one GPU", "two GPUs, a thread each"), own or ()):
                prepare(args.file)
                seconds, got = load(args.file, vramio.places)
                if got != size:
                    raise SystemExit(f"safetensors' own loader: {got} of {size} bytes")
                keep(f"safetensors, {name}", seconds)
        for name, (seconds, process) in best.items():
            add(name, state, seconds, process)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"model_bytes": size, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    sys.exit(main())
