"""What makes the framework itself faster or slower: the plain proxy under other settings, beside NGINX.

Usage: python3 scripts/compare/layouts.py [--rounds N] [--seconds S]

HTTP/1, forwarded, the processor's time for each request, in turn.
"""

import argparse
import os
import sys
import tempfile

from driving import drive, spread
from peers import certificate, free_port, nginx, origin, plain

VARIANTS = {
    "as it is": [],
    "a runtime for each thread (no stealing)": ["--no-stealing"],
    "one thread": ["--threads=1"],
    "four threads": ["--threads=4"],
    "8 connections kept to the origin": ["--pool=8"],
    "1,024 connections kept to the origin": ["--pool=1024"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=2)
    args = parser.parse_args()
    found, peers = {}, []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        cert, key, _ = certificate(folder)
        server = free_port()
        site = origin(folder, server)
        try:
            for name, flags in VARIANTS.items():
                peer = plain(folder, "forwarded", (free_port(), 0), server, cert, key)
                peer.command += flags
                peer.label = name
                peers.append(peer)
            peers.append(nginx(folder, "forwarded", (free_port(), free_port()), server, cert, key))
            peers[-1].label = "nginx"
            for peer in peers:
                peer.start(folder)
                drive(peer, "HTTP/1", 1, folder)
            for turn in range(args.rounds):
                for peer in peers if turn % 2 == 0 else peers[::-1]:
                    found.setdefault(peer.label, []).append(drive(peer, "HTTP/1", args.seconds, folder))
                print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
        finally:
            for peer in peers:
                peer.stop()
            site.terminate()
            site.wait()
    base = found["as it is"]
    print("| plain, HTTP/1, forwarded | processor, us/request | against as it is, pair by pair | requests/s |\n|---|---|---|---|")
    for label, runs in found.items():
        ratios = [one["cpu"] / other["cpu"] for one, other in zip(runs, base)]
        print(f"| {label} | {spread([run['cpu'] for run in runs], 1)} | {spread(ratios, 2)} "
              f"| {spread([run['rps'] for run in runs], 0)} |")


if __name__ == "__main__":
    main()
