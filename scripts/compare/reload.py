"""The slowest thousandth of requests while a policy of 10,000 routes is reloaded, and while it is not.

Usage: python3 scripts/compare/reload.py [--rounds N] [--seconds S]

The same load in turn: left alone, and with a reload every half second. Needs wrk, nginx, curl and
target/release/tollgate.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from peers import free_port, origin, Peer

ROUTES = 10_000

WRK = """
done = function(summary, latency, requests)
  io.write(string.format("p999 %d p50 %d errors %d requests %d\\n", latency:percentile(99.9),
    latency:percentile(50), summary.errors.connect + summary.errors.read + summary.errors.write
    + summary.errors.status + summary.errors.timeout, summary.requests))
end
"""


def policy(port, admin, server, generation):
    routes = "\n".join(
        f"  - {{ name: r{n}, match: {{ path: /api/v1/item{n}/** }}, limits: [l{n % 100}] }}" for n in range(ROUTES))
    limits = "\n".join(
        f"  l{n}: {{ tier: exact, rate: {4000000000 - generation}/1h, key: client_ip }}" for n in range(100))
    return f"""
version: 1
listeners: [{{ address: 127.0.0.1:{port} }}]
admin: {{ address: 127.0.0.1:{admin} }}
origins: {{ site: {{ servers: [127.0.0.1:{server}] }} }}
limits:
{limits}
routes:
{routes}
access_log: {{ to: none }}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        server, port, admin = free_port(), free_port(), free_port()
        conf, script = os.path.join(folder, "policy.yaml"), os.path.join(folder, "done.lua")
        texts = [policy(port, admin, server, generation) for generation in range(2)]
        open(conf, "w").write(texts[0])
        open(script, "w").write(WRK)
        site = origin(folder, server)
        peer = Peer("tollgate", "reload", ["target/release/tollgate", "run", "--config", conf], port, 0)
        peer.start(folder)

        def load():
            out = subprocess.run(["wrk", "-t1", f"-c{args.connections}", f"-d{args.seconds}s", "-s", script,
                                  f"http://127.0.0.1:{port}/api/v1/item{ROUTES - 1}/x"],
                                 capture_output=True, text=True).stdout
            p999, p50, errors, requests = map(int, re.search(
                r"p999 (\d+) p50 (\d+) errors (\d+) requests (\d+)", out).groups())
            if errors or not requests:
                sys.exit(f"{errors} requests failed: {out}")
            return p999 / 1e3

        def reloading(stop):
            turn = 0
            while not stop.wait(0.5):
                turn += 1
                new = conf + ".new"
                open(new, "w").write(texts[turn % 2])
                os.rename(new, conf)
                peer.running.send_signal(signal.SIGHUP)

        def generation():
            status = subprocess.run(["curl", "-s", f"http://127.0.0.1:{admin}/metrics"],
                                    capture_output=True, text=True).stdout
            return int(float(re.search(r"(?m)^tollgate_config_generation (\S+)", status).group(1)))

        try:
            load()
            alone, under, began = [], [], generation()
            for _ in range(args.rounds):
                alone.append(load())
                stop = threading.Event()
                thread = threading.Thread(target=reloading, args=(stop,))
                thread.start()
                under.append(load())
                stop.set()
                thread.join()
                time.sleep(0.5)
            reloads = generation() - began
        finally:
            peer.stop()
            site.terminate()
            site.wait()
        if reloads < args.rounds * args.seconds / 2:
            sys.exit(f"only {reloads} reloads came into force")
        show = lambda all: f"{statistics.median(all):.2f} ({min(all):.2f}-{max(all):.2f}) ms"
        print(f"p99.9 of requests on the last of {ROUTES} routes, {args.connections} connections, "
              f"{args.rounds} rounds of {args.seconds} s: left alone {show(alone)}; "
              f"with {reloads} reloads {show(under)}; "
              f"medians differ by {statistics.median(under) - statistics.median(alone):+.2f} ms")


if __name__ == "__main__":
    main()
