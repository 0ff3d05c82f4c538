#!/usr/bin/env python3
"""Ten loads on the kernel that runs here, recorded and replayed: tests/sim/live.py USLAB FOLDER [LOAD...], as root.

Each load is recorded into FOLDER/LOAD (new) with `uslab record` and replayed with `--design linux`. The table has slabs that are wrong at
`after`, of the design, of a prediction that nothing changed, and of one line that knows the free objects of `before.slabinfo`: a cache
grows only by what they do not hold.
"""

import json
import math
import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

SCRATCH = os.path.join(tempfile.gettempdir(), "uslab-live")

# Name: seconds (0: as long as it takes), what it does. Fixed before any of them was recorded.
LOADS = {
    "create": (0, "6,000 files of 100 bytes made and removed"),
    "keep": (0, "20,000 files made in 200 folders"),
    "remove": (0, "these files removed"),
    "drop": (0, "dentries and inodes dropped (drop_caches 2)"),
    "walk": (10, "all of /usr listed with its attributes, after that"),
    "read": (0, "600 MiB of files of /usr read"),
    "processes": (0, "900 short processes"),
    "sockets": (0, "3,000 TCP connections, held"),
    "maps": (0, "four processes with 12,000 mappings each, held"),
    "mixed": (8, "files, pipes, mappings, processes and messages by turns, by six processes"),
}


def files(folder, count, size, folders=1):
    for number in range(count):
        path = os.path.join(folder, str(number % folders))
        if number < folders:
            os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, str(number)), "wb") as file:
            file.write(b"x" * size)


def walk(seconds):
    until = time.time() + seconds
    for folder, _, names in os.walk("/usr"):
        for name in names:
            os.lstat(os.path.join(folder, name))
            if time.time() > until:
                return


def read(most):
    for folder, _, names in os.walk("/usr"):
        for name in names:
            path = os.path.join(folder, name)
            if most > 0 and os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    most -= len(file.read())


def hold(make):
    """Runs `make` in a process that stays; returns when it is done."""
    out, into = os.pipe()
    if os.fork() == 0:
        kept = make()
        os.write(into, b".")
        os.setsid()
        for number in (0, 1, 2, out, into):
            os.close(number)
        time.sleep(25)
        os._exit(0 if kept else 1)
    os.close(into)
    os.read(out, 1)


def sockets(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 * count, 3 * count))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    pairs = []
    for _ in range(count):
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
        one.send(b"x" * 100)
        pairs.append((one, other))
    return pairs


def maps(count):
    import mmap

    # Neighbours with other rights are not merged.
    rights = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)
    return [mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, rights[n % 2]) for n in range(count)]


def mixed(seconds, number):
    until, turn, kept = time.time() + seconds, 0, []
    folder = os.path.join(SCRATCH, f"mixed{number}")
    while time.time() < until:
        turn += 1
        if turn % 5 == 0:
            files(folder, 200, turn % 3000)
            shutil.rmtree(folder)
        elif turn % 5 == 1:
            pipes = [os.pipe() for _ in range(60)]
            for one, other in pipes:
                os.write(other, b"x" * 500)
                os.close(one)
                os.close(other)
        elif turn % 5 == 2:
            kept = (kept + maps(300))[-2000:]
        elif turn % 5 == 3:
            for _ in range(4):
                subprocess.run(["true"], check=True)
        else:
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            poll = select.epoll()
            poll.register(other, select.EPOLLIN)
            for size in range(8):
                one.send(b"x" * (100 + 200 * size))
            for _ in range(8):
                other.recv(4096)
    return kept


def load(name):
    seconds, _ = LOADS[name]
    if name == "create":
        files(os.path.join(SCRATCH, "created"), 6000, 100)
        shutil.rmtree(os.path.join(SCRATCH, "created"))
    elif name == "keep":
        files(os.path.join(SCRATCH, "kept"), 20000, 100, 200)
    elif name == "remove":
        shutil.rmtree(os.path.join(SCRATCH, "kept"))
    elif name == "drop":
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("2")
    elif name == "walk":
        walk(seconds)
    elif name == "read":
        read(600 << 20)
    elif name == "processes":
        for _ in range(900):
            subprocess.run(["true"], check=True)
    elif name == "sockets":
        hold(lambda: sockets(3000))
    elif name == "maps":
        for _ in range(4):
            hold(lambda: maps(12000))
    elif name == "mixed":
        workers = []
        for number in range(6):
            worker = os.fork()
            if worker == 0:
                mixed(seconds, number)
                os._exit(0)
            workers.append(worker)
        for worker in workers:
            os.waitpid(worker, 0)


def rows(folder, moment):
    """Slabs, free objects and objects of a slab by cache."""
    found = {}
    for line in open(os.path.join(folder, f"{moment}.slabinfo")):
        words = line.split()
        if "slabdata" in words and words[0] != "#":
            active, objects, per_slab = int(words[1]), int(words[2]), int(words[4])
            found[words[0]] = (int(words[words.index("slabdata") + 2]), objects - active, per_slab)
    return found


def compared(uslab, folder):
    """Slabs of the kernel, and wrong ones: of the design, if nothing changed, and of the line that knows free objects."""
    args = [uslab, "replay", os.path.join(folder, "trace.txt.zst"), "--design", "linux", "--json", "-"]
    report = json.loads(subprocess.run(args, check=True, capture_output=True).stdout)
    before = rows(folder, "before")
    moment = next(moment for moment in report["designs"][0]["moments"] if moment["name"] == "after")
    slabs, line = moment["slabs"], 0
    for cache in moment["caches"]:
        then, free, per_slab = before.get(cache["name"], (0, 0, 1))
        more = max(0, math.ceil((cache["design"]["used_change"] - free) / per_slab))
        line += abs(then + more - cache["kernel"]["slabs"])
    return slabs["kernel"], slabs["absolute_error"], slabs["unchanged_error"], line, slabs["skill"]


def main():
    if sys.argv[1:2] == ["--load"]:
        return load(sys.argv[2])
    uslab, place, names = sys.argv[1], sys.argv[2], sys.argv[3:] or LOADS
    os.makedirs(SCRATCH, exist_ok=True)
    print("| load | slabs | wrong: `linux` | nothing changed | free objects known | skill |\n|---|---:|---:|---:|---:|---:|")
    for name in names:
        folder = os.path.join(place, name)
        if not os.path.exists(folder):
            args = [uslab, "record", "--out", folder, "--buffer", "256M"]
            args += ["--", sys.executable, os.path.abspath(__file__), "--load", name]
            subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
        kernel, wrong, unchanged, line, skill = compared(uslab, folder)
        print(f"| {LOADS[name][1]} | {kernel:,} | {wrong:,} | {unchanged:,} | {line:,} | {skill or 0:.2f} |", flush=True)


main()
