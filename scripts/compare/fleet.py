"""Instructions of the processor for a request of a limit with scope: fleet, against scope: node, counted by callgrind.

Usage: python3 scripts/compare/fleet.py [--requests N] [--profile FOLDER]

A second node, without callgrind, has counted the same keys and published them, so that each request of the first finds what
another node counted. How it is counted: instructions.py.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

from fleet_nodes import node, value
from instructions import Client, ask, measure
from peers import free_port, origin

KEYS = 16
RATES = {"forwarded": 5000, "refused": 20}


def request(key):
    return f"GET /item HTTP/1.1\r\nHost: localhost\r\nUser-Agent: compare\r\nX-Key: {key}\r\nAccept: */*\r\n\r\n".encode()


def meet(peers):
    """Waits until each knows of the other, and has read what the other counted so far."""
    ok = 'tollgate_fleet_calls_total{outcome="ok"}'
    goals = [value(peer, ok) + 4 for peer in peers]
    for peer, goal in zip(peers, goals):
        for _ in range(600):
            if value(peer, "tollgate_fleet_nodes") == len(peers) and value(peer, ok) >= goal:
                break
            time.sleep(0.1)
        else:
            sys.exit("the nodes do not meet")


def spend(peer, mode):
    """Counts more of each key than a node keeps to itself; where requests are to be refused, all of it."""
    for key in range(KEYS):
        ask([Client(peer.http1, request(key))], RATES[mode] // 4 if mode == "forwarded" else RATES[mode], 200)


def count(folder, mode, scope, server, store, args):
    limit = (f"{{ tier: estimate, rate: {RATES[mode]}/10d, key: header:x-key, missing_key: deny, scope: {scope}, "
             "expect: { requests: 100/1s } }")
    first, second = (node(folder, f"{name}-{scope}", mode, (server, store), limit) for name in ("first", "second"))
    second.start(folder)

    def prepare():
        if scope == "fleet":
            meet([first, second])
            spend(second, mode)
            meet([first, second])
            if value(first, 'tollgate_fleet_keys{limit="pages"}') < KEYS:
                sys.exit("not every key was published")
        elif mode == "refused":
            spend(first, mode)

    counted, _ = measure(first, folder, args, [request(key) for key in range(KEYS)], prepare)
    second.stop()
    return counted


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--profile", help="a folder for the dumps")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        server, store = free_port(), free_port()
        site = origin(folder, server)
        redis = subprocess.Popen(["redis-server", "--port", str(store), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
                                 stdout=subprocess.DEVNULL)
        try:
            print("| HTTP/1 | instructions/request: scope: node | scope: fleet | ratio |\n|---|---|---|---|")
            for mode in RATES:
                alone, fleet = (count(folder, mode, scope, server, store, args) for scope in ("node", "fleet"))
                print(f"| {mode} | {alone:.0f} | {fleet:.0f} | {fleet / alone:.3f} |", flush=True)
        finally:
            for running in (site, redis):
                running.terminate()
                running.wait()


if __name__ == "__main__":
    main()
