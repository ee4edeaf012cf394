#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Real clients on a machine with a CUDA GPU: on our libcufile, on NVIDIA's, and without one.

usage: main.py --vramio PROGRAM --library LIBCUFILE [--size MIB] [--timeout SECONDS] [--out DIR]
               [--only CASE,...] [--modes ours,nvidia,posix] DIRECTORY...

Each case is a program of its own, run in each mode in each directory. Ours is `vramio run`;
what it reports must hold the bytes that the case moved. A case that a mode can't run, or a
client that is not installed, is in the table as such.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = {
    # name: modes, the module that it needs
    "torch_gds": (("ours", "nvidia", "posix"), "torch"),
    "checkpoints": (("ours", "nvidia", "posix"), "torch"),
    "kvikio_files": (("ours", "nvidia", "posix"), "kvikio"),
    "safetensors_files": (("ours", "nvidia", "posix"), "fastsafetensors"),
    "bindings": (("ours", "nvidia"), "cuda.bindings"),
    "codes": (("ours", "nvidia"), "torch"),
    "streams": (("ours",), "torch"),
    "sizes": (("ours", "nvidia"), "torch"),
}
ENDS = ("close", "none", "atexit", "dlclose")


def filesystem(directory):
    answer = subprocess.run(
        ["stat", "--file-system", "--format=%T", directory], capture_output=True, text=True
    )
    return answer.stdout.strip().replace("ext2/ext3", "ext4")


def installed(module):
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


def udev_entry(directory):
    """NVIDIA's library looks there for the device; some machines have no udev."""
    device = os.stat(directory).st_dev
    path = f"/run/udev/data/b{os.major(device)}:{os.minor(device)}"
    if os.major(device) == 0 or os.path.exists(path):
        return None
    made = not os.path.isdir("/run/udev")
    os.makedirs("/run/udev/data", exist_ok=True)
    with open(path, "w") as file:
        file.write("E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n")
    return path, made


def remove_udev_entry(entry):
    if entry:
        path, made = entry
        os.unlink(path)
        if made:
            subprocess.run(["rm", "-rf", "/run/udev"])


def run(options, case, mode, directory, extra=(), timeout=None):
    """Runs a case. Gives what it found, and what our library reported."""
    timeout = timeout or options.timeout
    arguments = {"directory": directory, "size": options.size << 20, "mode": mode}
    command = [sys.executable, os.path.join(HERE, case + ".py"), json.dumps(arguments), *extra]
    environment = dict(os.environ)
    report = os.path.join(options.out, "report.json")
    entry = None
    if mode == "ours":
        if os.path.exists(report):
            os.unlink(report)
        command = [
            options.vramio, "run", "--library", options.library, "--report", report, "--", *command,
        ]
    elif mode == "nvidia":
        config = os.path.join(options.out, "nvidia.json")
        with open(config, "w") as file:
            file.write('{"properties": {"allow_compat_mode": true}, "logging": {"dir": "%s"}}' % options.out)
        environment.update(KVIKIO_COMPAT_MODE="OFF", CUFILE_ENV_PATH_JSON=config)
        entry = udev_entry(directory)
    elif mode == "posix":
        environment.update(KVIKIO_COMPAT_MODE="ON")
    found, status = {}, "works"
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        output, errors = result.stdout, result.stderr
        if result.returncode:
            status = f"ends with {result.returncode}"
    except subprocess.TimeoutExpired as late:
        output, errors = [(text or b"").decode(errors="replace") for text in (late.stdout, late.stderr)]
        status = f"hangs ({timeout} s)"
    finally:
        remove_udev_entry(entry)
    for line in output.splitlines():
        if line.startswith("FOUND "):
            name, value = json.loads(line[6:])
            found[name] = value
    with open(os.path.join(options.out, f"{case}.{mode}.{filesystem(directory)}.log"), "a") as log:
        log.write(output + "\n--- standard error\n" + errors + "\n")
    reports = []
    if mode == "ours" and os.path.exists(report):
        with open(report) as file:
            reports = json.load(file)
    if status != "works":
        print(f"{case} {mode}: {status}: " + " | ".join(errors.strip().splitlines()[-3:])[:600], flush=True)
    return {"found": found, "status": status, "reports": reports, "stderr": errors}


def judge(case, mode, result):
    """What must be so. Gives what is not."""
    wrong = []
    if mode == "ours":
        if result["status"] != "works":
            wrong.append(result["status"])
        moved = sum(sum(report["bytes"]) for report in result["reports"])
        by_path = sum(
            sum(report["paths"].values()) + report["zeroed"] for report in result["reports"]
        )
        if moved == 0:
            wrong.append("no byte went through our library")
        if moved != by_path:
            wrong.append(f"{moved} bytes, but {by_path} by path")
    for name, value in result["found"].items():
        if ("equal" in name or name in ("file right", "order kept", "results")) and value is not True:
            wrong.append(f"{name}: {value}")
    return wrong


def end(options, how, level):
    """A process that ends in a certain way. Says what went wrong."""
    report = os.path.join(options.out, f"end-{how}-{level}.json")
    arguments = {"directory": options.directories[0], "size": 0, "mode": "ours"}
    command = [
        options.vramio, "run", "--library", options.library, "--report", report, "--",
        sys.executable, os.path.join(HERE, "lifetimes.py"), json.dumps(arguments), f"{how},{level}",
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return f"lifetimes {how} {level}: hangs"
    if result.returncode or f'FOUND ["ended", "{how}"]' not in result.stdout:
        return f"lifetimes {how} {level}: {result.returncode}: {result.stderr[-300:]}"
    return None


def save(options, results):
    with open(os.path.join(options.out, "results.json"), "w") as file:
        json.dump(results, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directories", nargs="+")
    parser.add_argument("--vramio", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--out", default=None)
    parser.add_argument("--timeout", type=int, default=120)
    parser.add_argument("--only", default=",".join(CASES) + ",lifetimes,search")
    parser.add_argument("--modes", default="ours,nvidia,posix")
    options = parser.parse_args()
    options.out = options.out or tempfile.mkdtemp(prefix="clients-")
    os.makedirs(options.out, exist_ok=True)
    only, modes = options.only.split(","), options.modes.split(",")
    results, failed = {}, []
    for name, (case_modes, module) in CASES.items():
        if name not in only:
            continue
        if not installed(module):
            print(f"{name}: not run, {module} is not installed", flush=True)
            continue
        for directory in options.directories:
            for mode in case_modes:
                if mode not in modes:
                    continue
                begun = time.time()
                result = run(options, name, mode, directory)
                wrong = judge(name, mode, result)
                key = f"{name} {filesystem(directory)} {mode}"
                results[key] = {k: result[k] for k in ("found", "status", "reports")}
                results[key]["wrong"] = wrong
                if wrong and mode == "ours":
                    failed.append(f"{key}: {'; '.join(wrong)}")
                print(f"{key}: {result['status']}, {time.time() - begun:.0f} s, {'; '.join(wrong) or 'right'}", flush=True)
                save(options, results)
                if mode == "ours":
                    for report in result["reports"]:
                        print(f"    {sum(report['bytes'])} bytes, {report['paths']}, {report['reasons']}", flush=True)
    if "lifetimes" in only:
        ways = [(how, level) for how in ENDS for level in (0, 3)]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            ends = list(pool.map(lambda way: end(options, *way), ways))
        failed += [line for line in ends if line]
        print(f"lifetimes: {len(ways)} processes, {sum(map(bool, ends))} ended badly", flush=True)
    if "search" in only:
        # A program's own search path comes before LD_LIBRARY_PATH; LD_PRELOAD before both.
        names = os.path.join(options.out, "names")
        os.makedirs(names, exist_ok=True)
        for name in ("libcufile.so", "libcufile.so.0"):
            link = os.path.join(names, name)
            if not os.path.islink(link):
                os.symlink(os.path.abspath(options.library), link)
        look = (
            "import ctypes, torch\n"
            "maps = {l.split()[-1] for l in open('/proc/self/maps') if 'libcufile.so' in l}\n"
            "class Info(ctypes.Structure):\n"
            "    _fields_ = [('file', ctypes.c_char_p), ('base', ctypes.c_void_p), ('name', ctypes.c_char_p), ('at', ctypes.c_void_p)]\n"
            "info, program = Info(), ctypes.CDLL(None)\n"
            "found = program.dladdr(program.cuFileRead, ctypes.byref(info))\n"
            "print('calls', info.file.decode() if found else 'none', 'of', sorted(maps))\n"
        )
        for name, value in (("LD_LIBRARY_PATH", names), ("LD_PRELOAD", os.path.abspath(options.library))):
            answer = subprocess.run(
                [sys.executable, "-c", look], env={**os.environ, name: value}, capture_output=True, text=True
            )
            results["search " + name] = answer.stdout.strip()
            print(f"PyTorch with {name}: {answer.stdout.strip()}", flush=True)
    save(options, results)
    table(results)
    for line in failed:
        print("FAILED " + line)
    print("clients: " + ("FAILED" if failed else "PASS"))
    return bool(failed)


def table(results):
    """Each figure of a case beside the other modes' figures."""
    rows = {}
    for key, result in results.items():
        if not isinstance(result, dict):
            continue
        case, place, mode = key.split()
        for name, value in result["found"].items():
            rows.setdefault((case, place, name), {})[mode] = value
        rows.setdefault((case, place, "(status)"), {})[mode] = result["status"]
    print("| case | files on | | ours | NVIDIA's | POSIX |")
    print("|---|---|---|---|---|---|")
    for (case, place, name), values in rows.items():
        cells = [str(values.get(mode, "")) for mode in ("ours", "nvidia", "posix")]
        print(f"| {case} | {place} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
