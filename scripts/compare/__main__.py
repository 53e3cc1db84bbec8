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
import re
import statistics
import subprocess
import sys
import tempfile
import time

from peers import BODY, CORES, certificate, free_port, haproxy, nginx, origin, plain, tollgate

HTTP1_CONNECTIONS = 32
HTTP2_CLIENTS, HTTP2_STREAMS = 8, 4


class WrongAnswer(Exception):
    """Something answered what it was not meant to."""


def ask(peer, protocol):
    """One request by another client, whose answer is looked at in full."""
    scheme, port, more = ("http", peer.http1, ["--http1.1"]) if protocol == "HTTP/1" else (
        "https", peer.http2, ["--http2", "-k"])
    got = subprocess.run(["curl", "-s", "-i", *more, f"{scheme}://localhost:{port}/item"],
                         capture_output=True, text=True).stdout.replace("\r", "")
    head, _, body = got.partition("\n\n")
    return int(head.split()[1]) if head.startswith("HTTP/") else 0, head, body


def look(peer, protocol):
    status, head, body = ask(peer, protocol)
    if peer.mode == "refused":
        for _ in range(10):  # the first few may still be within the limit
            if status != 200:
                break
            status, head, body = ask(peer, protocol)
    want = 429 if peer.mode == "refused" else 200
    fine = status == want and (want == 429 or body == BODY)
    if peer.name == "tollgate":
        fine = fine and "ratelimit:" in head.lower() and "x-ratelimit-reset:" in head.lower()
        fine = fine and (want == 200 or ("retry-after:" in head.lower() and "violated-policies" in body))
    if not fine:
        raise WrongAnswer(f"{peer.name}, {peer.mode}, {protocol}: {status}\n{head}\n\n{body}")


def micros(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}[unit]


def wrk(peer, seconds):
    out = subprocess.run(["wrk", "-t1", f"-c{HTTP1_CONNECTIONS}", f"-d{seconds}s", "--latency",
                          f"http://localhost:{peer.http1}/item"], capture_output=True, text=True).stdout
    total = int(re.search(r"(\d+) requests in", out).group(1))
    other = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    refused = int(other.group(1)) if other else 0
    latency = {k: micros(v) for k, v in re.findall(r"(?m)^\s+(50|99)%\s+(\S+)", out)}
    if "Socket errors" in out:
        raise WrongAnswer(f"{peer.name}, {peer.mode}: {out}")
    return total, refused, latency["50"], latency["99"]


def h2load(peer, seconds, folder):
    log = os.path.join(folder, "h2load.log")
    if os.path.exists(log):
        os.remove(log)
    out = subprocess.run(["h2load", "-t1", f"-c{HTTP2_CLIENTS}", f"-m{HTTP2_STREAMS}", "-D", str(seconds),
                          f"--log-file={log}", f"https://localhost:{peer.http2}/item"],
                         capture_output=True, text=True).stdout
    ok, refused = map(int, re.search(r"status codes: (\d+) 2xx, \d+ 3xx, (\d+) 4xx", out).groups())
    times = sorted(int(line.split("\t")[2]) for line in open(log))
    if not times:
        raise WrongAnswer(f"{peer.name}, {peer.mode}: {out}")
    return ok + refused, refused, times[len(times) // 2], times[len(times) * 99 // 100]


def drive(peer, protocol, seconds, folder):
    look(peer, protocol)
    before, began = peer.cpu(), time.monotonic()
    total, refused, p50, p99 = (
        wrk(peer, seconds) if protocol == "HTTP/1" else h2load(peer, seconds, folder))
    took, spent = time.monotonic() - began, peer.cpu() - before
    look(peer, protocol)
    want = total if peer.mode == "refused" else 0
    if total == 0 or refused != want:
        raise WrongAnswer(f"{peer.name}, {peer.mode}, {protocol}: {refused} of {total} refused, not {want}")
    return {"cpu": spent / total * 1e6, "rps": total / took, "p50": p50, "p99": p99, "mib": peer.memory()}


def spread(values, digits):
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


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
