"""The slowest hundredth of requests during full load, while operators read the admin API, and while nobody does.

Usage: python3 scripts/compare/admin_reads.py [--rounds N] [--seconds S]

The same load in turn, a quarter of it refused: left alone, and beside ten reads a second of every kind. Needs wrk, nginx and
target/release/tollgate.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request

from peers import Peer, free_port, origin, write

READS = ["/status", "/refusals?count=100", "/top?limit=writes", "/history?minutes=60", "/routes", "/overrides",
         "/audit", "/metrics"]

POLICY = """
version: 1
listeners: [{{ address: 127.0.0.1:{port} }}]
admin: {{ address: 127.0.0.1:{admin} }}
origins: {{ site: {{ servers: [127.0.0.1:{server}] }} }}
limits:
  pages: {{ tier: estimate, rate: 100000000/1m, key: client_ip }}
  writes: {{ tier: exact, rate: 5/1h, key: header:x-api-key, missing_key: skip }}
routes:
  - {{ name: writes, match: {{ path: /w/** }}, limits: [writes] }}
  - {{ name: pages, limits: [pages] }}
access_log: {{ to: none }}
"""

WRK = """
request = function()
  return wrk.format("GET", math.random(4) == 1 and "/w/a" or "/", {["x-api-key"] = "k" .. math.random(50)})
end
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("p99 %d errors %d requests %d\\n", latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.timeout, summary.requests))
end
"""


def read_all(admin, stop, count):
    turn = 0
    while not stop.wait(0.1):
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}{READS[turn % len(READS)]}", timeout=10) as answer:
            answer.read()
        turn += 1
        count.append(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        server, port, admin = free_port(), free_port(), free_port()
        conf = write(folder, "policy.yaml", POLICY.format(port=port, admin=admin, server=server))
        script = write(folder, "load.lua", WRK)
        site = origin(folder, server)
        peer = Peer("tollgate", "reads", ["target/release/tollgate", "run", "--config", conf], port, 0)
        peer.start(folder)

        def load():
            out = subprocess.run(["wrk", "-t1", "-c32", f"-d{args.seconds}s", "-s", script,
                                  f"http://127.0.0.1:{port}/"], capture_output=True, text=True).stdout
            p99, errors, requests = map(int, re.search(r"p99 (\d+) errors (\d+) requests (\d+)", out).groups())
            if errors or not requests:
                sys.exit(f"{errors} requests failed: {out}")
            return p99 / 1e3

        def load_beside_reads(count):
            stop = threading.Event()
            reader = threading.Thread(target=read_all, args=(admin, stop, count))
            reader.start()
            try:
                return load()
            finally:
                stop.set()
                reader.join()

        try:
            load()
            alone, beside, count = [], [], []
            for _ in range(args.rounds):
                alone.append(load())
                beside.append(load_beside_reads(count))
        finally:
            peer.stop()
            site.terminate()
    for name, figures in (("alone", alone), ("beside reads", beside)):
        print(f"{name}: p99 {statistics.median(figures):.2f} ms ({min(figures):.2f} to {max(figures):.2f})")
    print(f"{len(count)} reads; ratio {statistics.median(beside) / statistics.median(alone):.2f}")


main()
