"""Sets tollgate beside a Pingora proxy without a policy, NGINX and HAProxy, all on this machine.

Usage: python3 scripts/compare [--rounds N] [--seconds S] [--only WORD] [--json FILE]

All four stand before the same origin and are driven in turn, one at a time, round after round, so that
whatever else the machine does hits all alike. Every proxy is told to use as many threads as there are
cores, keeps connections to its clients and to the origin, and logs nothing. Two things are asked:

  forwarded  the request passes; tollgate judges an estimate limit and an exact limit and writes headers
  refused    the request is over the limit and answered 429

over HTTP/1 (wrk) and over HTTP/2 with TLS (h2load). Printed is the median of the rounds with the least
and the most: processor time of the proxy per request (user and system, from /proc/PID/stat), requests/s,
latencies, memory. An answer that is not what it should be ends the run without a table.

Needs target/release/tollgate, target/release/examples/plain, nginx, haproxy, wrk, h2load, curl, openssl.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

from driving import HTTP1_CONNECTIONS, HTTP2_CLIENTS, HTTP2_STREAMS, WrongAnswer, drive, spread
from peers import CORES, certificate, free_port, haproxy, nginx, origin, plain, tollgate


def table(found, names, protocol, mode):
    rows = [f"| {protocol}, {mode} | processor, us/request | against plain, pair by pair | requests/s "
            "| p50, p99, ms | memory, MiB |", "|---|---|---|---|---|---|"]
    base = found["plain", protocol, mode]
    for name in names:
        runs = found[name, protocol, mode]
        ratios = [one["cpu"] / other["cpu"] for one, other in zip(runs, base)]
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        rows.append(f"| {name} | {spread([run['cpu'] for run in runs], 1)} | {spread(ratios, 2)} "
                    f"| {spread([run['rps'] for run in runs], 0)} "
                    f"| {middle['p50'] / 1e3:.2f}, {middle['p99'] / 1e3:.2f} | {middle['mib']:.1f} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--only", default="", help="names of proxies, modes and protocols, with commas")
    parser.add_argument("--json", help="where every single measurement goes")
    args = parser.parse_args()
    only = [word for word in args.only.split(",") if word]
    wanted = lambda words: [w for w in words if w in only] or words
    names = wanted(["tollgate", "plain", "nginx", "haproxy"])
    modes, protocols = wanted(["forwarded", "refused"]), wanted(["HTTP/1", "HTTP/2"])
    makers = {"tollgate": tollgate, "plain": plain, "nginx": nginx, "haproxy": haproxy}
    found, peers = {}, []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        cert, key, both = certificate(folder)
        server = free_port()
        site = origin(folder, server)
        try:
            for name in names:
                for mode in modes:
                    ports = (free_port(), free_port())
                    secret = both if name == "haproxy" else key
                    peer = makers[name](folder, mode, ports, server, cert, secret)
                    peer.start(folder)
                    peers.append(peer)
            for peer in peers:  # once for nobody's table: caches, connections, pools
                for protocol in protocols:
                    drive(peer, protocol, 1, folder)
            for turn in range(args.rounds):
                order = peers if turn % 2 == 0 else peers[::-1]
                for protocol in protocols:
                    for peer in order:
                        run = drive(peer, protocol, args.seconds, folder)
                        found.setdefault((peer.name, protocol, peer.mode), []).append(run)
                print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
        except WrongAnswer as wrong:
            sys.exit(f"an answer was not what it should be; no table.\n{wrong}")
        finally:
            for peer in peers:
                peer.stop()
            site.terminate()
            site.wait()
    if args.json:
        with open(args.json, "w") as file:
            json.dump([[*which, runs] for which, runs in found.items()], file)
    for protocol in protocols:
        for mode in modes:
            print(table(found, names, protocol, mode) + "\n")
    print(f"{args.rounds} rounds of {args.seconds} s each, alternating, {CORES} cores; median (least-most). "
          f"HTTP/1: {HTTP1_CONNECTIONS} connections; HTTP/2 with TLS: {HTTP2_CLIENTS} connections of "
          f"{HTTP2_STREAMS} streams.")


if __name__ == "__main__":
    main()
