"""Starts tollgate in a state directory with ten million cells, and looks at its memory while it serves and saves.

Usage: python3 scripts/compare/state.py [--cells N] [--rounds N] [--seconds S]

`cargo bench --bench saving -- fill` fills the directory. Prints how long a start takes until it is
ready, what the directory takes, the memory before the load, under the load, and at its peak, and how long a successor takes to
take over under the load. The memory of a process
without a state directory under the same load is beside it. Needs wrk, nginx and target/release/tollgate.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from peers import free_port, origin, write

POLICY = """
version: 1
listeners: [{{ address: 127.0.0.1:{port} }}]
admin: {{ address: 127.0.0.1:{admin} }}
{store}
origins: {{ site: {{ servers: [127.0.0.1:{server}] }} }}
limits_of_this_proxy: {{ max_keys: 20000000, drain: 0s }}
limits:
  l: {{ tier: exact, algorithm: sliding_window, rate: 10000/1h, key: header:x-key, missing_key: deny }}
routes: [{{ name: r, limits: [l] }}]
access_log: {{ to: none }}
"""

WRK = """
request = function()
  return wrk.format("GET", "/", {["x-key"] = "k" .. math.random(%d)})
end
"""


def status(pid, field):
    return int(re.search(rf"{field}:\s+(\d+) kB", open(f"/proc/{pid}/status").read()).group(1)) / 1024


def start(conf, admin):
    began = time.monotonic()
    process = subprocess.Popen(["target/release/tollgate", "run", "--config", conf], stdout=subprocess.DEVNULL,
                               stderr=open(conf + ".log", "a"))
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{admin}/ready", timeout=10).read()
            return process, time.monotonic() - began
        except OSError:
            if process.poll() is not None:
                sys.exit(open(conf + ".log").read())
            time.sleep(0.01)


def stop(process):
    process.terminate()
    process.wait()


def hand_over(conf, old, admin, load):
    """Replaces a process under load. Returns the new one, the seconds from QUIT to the end of the old one, and those for
    which requests waited."""
    log = conf + ".log"
    waiting = open(log).read().count("a successor is waiting")
    new = subprocess.Popen(["target/release/tollgate", "run", "--upgrade", "--config", conf], stdout=subprocess.DEVNULL,
                           stderr=open(log, "a"))
    while open(log).read().count("a successor is waiting") == waiting:
        time.sleep(0.01)
    busy = load()
    began = time.monotonic()
    old.send_signal(signal.SIGQUIT)
    old.wait()
    took = time.monotonic() - began
    busy.wait()
    return new, took, metric(admin, "tollgate_handover_pause_seconds")


def metric(admin, name):
    text = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10).read().decode()
    return float(re.search(rf"(?m)^{name} (\S+)", text).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20)
    args = parser.parse_args()
    # Not where the system keeps temporary files, which may be memory.
    with tempfile.TemporaryDirectory(dir="target") as folder:
        os.chmod(folder, 0o755)
        state = os.path.abspath(os.path.join(folder, "state"))
        fill = [os.environ.get("CARGO", "cargo"), "bench", "-q", "--bench", "saving", "--", "fill", state, str(args.cells)]
        subprocess.run(fill, check=True)
        size = sum(os.path.getsize(os.path.join(state, name)) for name in os.listdir(state))
        print(f"{args.cells} cells: {size / args.cells:.1f} bytes of the directory each")
        server, port, admin = free_port(), free_port(), free_port()
        site = origin(folder, server)
        script = write(folder, "load.lua", WRK % args.cells)

        def conf(name, store):
            return write(folder, name, POLICY.format(port=port, admin=admin, server=server, store=store))

        def begin_load():
            return subprocess.Popen(["wrk", "-t1", "-c32", f"-d{args.seconds}s", "-s", script, f"http://127.0.0.1:{port}/"],
                                    stdout=subprocess.DEVNULL)

        def load():
            assert begin_load().wait() == 0

        saved = conf("with.yaml", f"store: {{ embedded: {{ state: {state} }} }}")
        try:
            times = []
            for _ in range(args.rounds):
                process, took = start(saved, admin)
                times.append(took)
                cells = metric(admin, "tollgate_state_recovered_cells")
                idle = status(process.pid, "VmRSS")
                stop(process)
            print(f"start until ready: {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f}), "
                  f"{cells:.0f} cells, {idle:.0f} MiB then")
            process, _ = start(saved, admin)
            before = status(process.pid, "VmRSS")
            with open(f"/proc/{process.pid}/clear_refs", "w") as refs:
                refs.write("5")
            load()
            print(f"with the state: {before:.0f} MiB restored, {status(process.pid, 'VmRSS'):.0f} under load, "
                  f"{status(process.pid, 'VmHWM'):.0f} at the peak of {args.seconds} s")
            process, took, pause = hand_over(saved, process, admin, begin_load)
            cells = metric(admin, "tollgate_handover_cells")
            print(f"handover of {cells:.0f} cells under the load: {took:.1f} s, requests waited for {pause * 1000:.1f} ms")
            stop(process)
            process, _ = start(conf("without.yaml", ""), admin)
            before = status(process.pid, "VmRSS")
            load()
            print(f"without: {before:.0f} MiB empty, {status(process.pid, 'VmRSS'):.0f} under the same load, "
                  f"{status(process.pid, 'VmHWM'):.0f} at the peak")
            stop(process)
        finally:
            site.terminate()


main()
