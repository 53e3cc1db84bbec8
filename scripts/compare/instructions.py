"""Instructions of the processor that tollgate and the plain proxy need for a request, counted by callgrind.

Usage: python3 scripts/compare/instructions.py [--requests N] [--connections N] [--profile FOLDER]

Beside them: how often the clock is read (by tollgate's own code; by all that there is), and how often memory
is allocated or made larger. Counts repeat to a fraction of a percent where times do not. They are those of user space: what the kernel
does for sockets is not in them, and the same for both. HTTP/1, one request after the other on each connection.
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


class Client:
    """A connection that sends one request again and again."""

    def __init__(self, port, request=REQUEST):
        self.request, self.socket = request, socket.create_connection(("127.0.0.1", port))


def ask(clients, times, status):
    """Sends so many requests over each connection, one by one, and reads each answer whole."""
    for _ in range(times):
        for client in clients:
            client.socket.sendall(client.request)
        for client in clients:
            read_answer(client.socket, status)


def read_answer(client, status):
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += client.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    if int(head.split()[1]) != status:
        sys.exit(f"answered {head.decode()}, not {status}")
    length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
    while len(body) < length:
        body += client.recv(65536)


CALLS = {
    "own clock": re.compile(r"SystemClock as .*Clock>::now"),
    "clock": re.compile(r"clock_gettime"),
    "allocations": re.compile(r"^_rjem_(malloc|mallocx|calloc|realloc|rallocx)$"),
}


def read(dump):
    """Instructions of a dump, and calls of what is named above."""
    count, calls, names, callee = 0, dict.fromkeys(CALLS, 0), {}, ""
    for line in open(dump, errors="replace"):
        if line.startswith(("fn=", "cfn=")):
            number, _, name = line.rstrip().partition("=")[2].partition(" ")
            if name:
                names[number] = name
            callee = names.get(number, "")
        elif line.startswith("calls="):
            for what, pattern in CALLS.items():
                if pattern.search(callee):
                    calls[what] += int(line[6:].split()[0])
        elif line.startswith("totals:"):
            count = int(line.split()[1])
    return count, calls


def total(pid, prefix):
    """Instructions since the last dump, calls, and when that was."""
    before = set(glob.glob(prefix + "*"))
    subprocess.run(["callgrind_control", "--dump", str(pid)], capture_output=True, check=True)
    at = time.monotonic()
    new = set()
    while not new:
        time.sleep(0.5)
        new = set(glob.glob(prefix + "*")) - before
    time.sleep(1)
    dumps = [read(name) for name in set(glob.glob(prefix + "*")) - before]
    count = sum(count for count, _ in dumps)
    return count, {what: sum(calls[what] for _, calls in dumps) for what in CALLS}, at


def measure(peer, folder, args, requests, prepare):
    """Instructions and calls for a request of the peer, each connection with its own request. `prepare` is called when the
    peer listens, and makes it answer as its mode says."""
    prefix = os.path.join(args.profile or folder, f"callgrind.{peer.name}-{peer.mode}")
    peer.command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={prefix}.%p",
                    "--dump-instr=no", *peer.command]
    peer.patience = 60
    peer.start(folder)
    pid = peer.running.pid
    status = 429 if peer.mode == "refused" else 200
    prepare()
    clients = [Client(peer.http1, request) for request in requests]
    ask(clients, 500 // len(clients) + 1, status)
    _, _, began = total(pid, prefix)
    rounds = args.requests // len(clients)
    ask(clients, rounds, status)
    busy, busy_calls, answered = total(pid, prefix)
    time.sleep(max(0, answered - time.monotonic() + answered - began))
    idle, idle_calls, ended = total(pid, prefix)
    share = (answered - began) / (ended - answered)
    for client in clients:
        client.socket.close()
    peer.stop()
    asked = rounds * len(clients)
    calls = {what: (busy_calls[what] - idle_calls[what] * share) / asked for what in CALLS}
    return (busy - idle * share) / asked, calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--profile", help="a folder for the dumps")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        server = free_port()
        site = origin(folder, server)
        try:
            print("| HTTP/1 | instructions/request: tollgate | plain | ratio | clock read: by tollgate, in all; plain "
                  "| allocations: tollgate, plain |\n|---|---|---|---|---|---|")
            for mode in ("forwarded", "refused"):
                counts = []
                for make in (tollgate, plain):
                    peer = make(folder, mode, (free_port(), 0), server, "", "")

                    def prepare(peer=peer):
                        if peer.name == "tollgate" and peer.mode == "refused":
                            ask([Client(peer.http1)], 1, 200)

                    counts.append(measure(peer, folder, args, [REQUEST] * args.connections, prepare))
                (own, calls), (base, others) = counts
                print(f"| {mode} | {own:.0f} | {base:.0f} | {own / base:.3f} "
                      f"| {calls['own clock']:.1f}, {calls['clock']:.1f}; {others['clock']:.1f} "
                      f"| {calls['allocations']:.1f}, {others['allocations']:.1f} |", flush=True)
        finally:
            site.terminate()
            site.wait()


if __name__ == "__main__":
    main()
