"""How fast a replay reads a log, beside GoAccess and awk on the same file.

Usage: python3 scripts/compare/replay.py [--lines N] [--goaccess-lines N] [--binary FILE]

Writes a combined log of one day: 200,000 clients, the heaviest with a share of 4 %, eight kinds of paths, two of them with
100,000 targets each. Then each program reads all of it. GoAccess counts every target and takes minutes for ten million lines, so it
may get fewer. Needs goaccess, GNU time and target/release/tollgate.
"""

import argparse
import os
import random
import subprocess
import tempfile
import time

CLIENTS = 200_000
PER_SECOND = 120
BEGIN = 1_763_600_000
PATHS = ["/", "/api/v1/items", "/api/v1/items/%d", "/login", "/static/app.js", "/static/style.css", "/search?q=%d",
         "/api/orders"]
AGENTS = ["Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/129.0 Safari/537.36",
          "curl/8.5.0",
          "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Mobile Safari/604.1",
          "python-requests/2.32.3"]

POLICY = """
version: 1
listeners: [{ address: 127.0.0.1:18080 }]
origins: { site: { servers: ["127.0.0.1:18081"] } }
limits:
  per-client: { tier: estimate, key: client_ip, rate: 600/1m }
  api-writes: { tier: exact, key: client_ip, algorithm: token_bucket, rate: 60/1m, burst: 20 }
routes:
  - { name: api, match: { path: /api/**, methods: [POST, PUT, DELETE] }, limits: [api-writes] }
  - { name: site, limits: [per-client] }
"""


def write_log(name, lines):
    """Writes the log; equal numbers of lines give equal logs."""
    chance = random.Random(7)
    second, stamp, block = None, "", []
    with open(name, "w", encoding="ascii") as log:
        for line in range(lines):
            now = BEGIN + line // PER_SECOND
            if now != second:
                second, stamp = now, time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now))
            client = int(CLIENTS * chance.random() ** 4)
            path = chance.choice(PATHS)
            if "%" in path:
                path %= chance.randrange(100_000)
            method = "POST" if path in ("/api/orders", "/login") else "GET"
            status = 200 if chance.random() < 0.95 else 404
            block.append(f"10.{client >> 16}.{client >> 8 & 255}.{client & 255} - - [{stamp}] \"{method} {path} HTTP/1.1\" "
                         f"{status} {chance.randrange(20_000)} \"https://www.example.com/\" \"{AGENTS[client & 3]}\"\n")
            if len(block) == 10_000:
                log.write("".join(block))
                block.clear()
        log.write("".join(block))


def measure(name, lines, words):
    """Runs a program and prints its speed and its largest memory."""
    with tempfile.NamedTemporaryFile("r") as told:
        began = time.monotonic()
        subprocess.run(["/usr/bin/time", "-o", told.name, "-f", "%U %S %M", *words], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        user, system, memory = (float(number) for number in told.read().split())
    print(f"{name}: {lines:,} lines in {seconds:.1f} s, {lines / seconds:,.0f} a second, "
          f"{user + system:.1f} s of processor time, {memory / 1024:.0f} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--goaccess-lines", type=int, default=10_000_000)
    parser.add_argument("--binary", default="target/release/tollgate")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, policy, short = (os.path.join(folder, name) for name in ("access.log", "policy.yaml", "short.log"))
        write_log(log, arguments.lines)
        with open(policy, "w", encoding="ascii") as file:
            file.write(POLICY)
        # The file is in memory for all of them.
        with open(log, "rb") as file:
            while file.read(1 << 24):
                pass
        measure("awk '{n[$1]++}'", arguments.lines, ["awk", "{n[$1]++}", log])
        replay = [arguments.binary, "replay", "--config", policy, log]
        measure("tollgate replay", arguments.lines, replay)
        measure("tollgate replay, once more", arguments.lines, replay)
        lines = min(arguments.lines, arguments.goaccess_lines)
        if lines < arguments.lines:
            with open(short, "wb") as file:
                subprocess.run(["head", "-n", str(lines), log], check=True, stdout=file)
        read = log if lines == arguments.lines else short
        page = os.path.join(folder, "report.json")
        measure("goaccess", lines, ["goaccess", read, "--log-format=COMBINED", "--no-progress", "-o", page])


if __name__ == "__main__":
    main()
