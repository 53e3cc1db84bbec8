"""Instructions of the processor that tollgate and the plain proxy need for a request, counted by callgrind.

Usage: python3 scripts/compare/instructions.py [--requests N] [--profile FOLDER]

Counts repeat to a fraction of a percent where times do not. They are those of user space: what the kernel
does for sockets is not in them, and the same for both. One connection, HTTP/1, one request after the other.
What the processes do while nobody asks (timers, housekeeping) is counted over a like time and taken off.
With --profile the dumps are kept, for callgrind_annotate.
"""

import argparse
import glob
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

from peers import free_port, origin, plain, tollgate

REQUEST = b"GET /item HTTP/1.1\r\nHost: localhost\r\nUser-Agent: compare\r\nAccept: */*\r\n\r\n"


def ask(client, times, status):
    """Sends requests one by one, and reads each answer whole."""
    for _ in range(times):
        client.sendall(REQUEST)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += client.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        if int(head.split()[1]) != status:
            sys.exit(f"answered {head.decode()}, not {status}")
        length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
        while len(body) < length:
            body += client.recv(65536)


def total(pid, prefix):
    """Instructions since the last dump."""
    before = set(glob.glob(prefix + "*"))
    subprocess.run(["callgrind_control", "--dump", str(pid)], capture_output=True, check=True)
    count, new = 0, set()
    while not new:
        time.sleep(0.5)
        new = set(glob.glob(prefix + "*")) - before
    time.sleep(1)
    for name in set(glob.glob(prefix + "*")) - before:
        for line in open(name):
            if line.startswith("totals:"):
                count += int(line.split()[1])
    return count


def measure(peer, folder, requests, keep):
    prefix = os.path.join(keep or folder, f"callgrind.{peer.name}-{peer.mode}")
    peer.command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={prefix}.%p",
                    "--dump-instr=no", *peer.command]
    peer.patience = 60
    peer.start(folder)
    pid = peer.running.pid
    status = 429 if peer.mode == "refused" else 200
    with socket.create_connection(("127.0.0.1", peer.http1)) as client:
        if status == 429 and peer.name == "tollgate":
            ask(client, 1, 200)
        ask(client, 300, status)
        total(pid, prefix)
        began = time.monotonic()
        ask(client, requests, status)
        took = time.monotonic() - began
        busy = total(pid, prefix)
        began = time.monotonic()
        time.sleep(took)
        idle = total(pid, prefix) * took / (time.monotonic() - began)
    peer.stop()
    return (busy - idle) / requests


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--profile", help="a folder for the dumps")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        server = free_port()
        site = origin(folder, server)
        try:
            print("| HTTP/1 | instructions/request: tollgate | plain | ratio |\n|---|---|---|---|")
            for mode in ("forwarded", "refused"):
                counts = []
                for make in (tollgate, plain):
                    peer = make(folder, mode, (free_port(), 0), server, "", "")
                    counts.append(measure(peer, folder, args.requests, args.profile))
                own, base = counts
                print(f"| {mode} | {own:.0f} | {base:.0f} | {own / base:.2f} |", flush=True)
        finally:
            site.terminate()
            site.wait()


if __name__ == "__main__":
    main()
