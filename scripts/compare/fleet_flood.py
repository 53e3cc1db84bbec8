"""What a flood of addresses costs a fleet: memory of the nodes and of Redis, calls and bytes, with scope: node and scope: fleet.

Usage: python3 scripts/compare/fleet_flood.py [--addresses N] [--nodes N]

Each address sends three requests to one node: more than a node keeps to itself (two of 60 a minute, with four nodes), and less
than the limit. Meanwhile 200 honest clients send 50 requests a minute each, to each node in turn. wrk writes the addresses into
X-Forwarded-For, with all cores that the proxies leave.
"""

import argparse
import http.client
import os
import re
import subprocess
import sys
import tempfile
import time

from fleet_nodes import node, value
from peers import free_port, origin, write

HONEST = 200
HONEST_EVERY = 1.2

WRK = """
local sent, node, nodes, addresses, done = 0, %d, %d, %d, "%s"
function request()
  local n = math.floor(sent / 3) * nodes + node
  sent = sent + 1
  if n >= addresses then
    wrk.thread:stop()
    io.open(done, "w"):close()
  end
  local address = string.format("11.%%d.%%d.%%d", math.floor(n / 65536) %% 256, math.floor(n / 256) %% 256, n %% 256)
  return wrk.format("GET", "/item", { ["X-Forwarded-For"] = address })
end
"""


def info(store):
    told = subprocess.run(["redis-cli", "-p", str(store), "info"], capture_output=True, text=True, check=True).stdout
    return {name: float(number) for name, number in re.findall(r"^(\w+):(\d+(?:\.\d+)?)\r?$", told, re.M)}


class Honest:
    """Clients that each send a request every 1.2 s, to each node in turn: five sixths of what the limit admits."""

    def __init__(self, peers):
        self.links = [http.client.HTTPConnection("127.0.0.1", peer.http1, timeout=30) for peer in peers]
        self.sent, self.refused = 0, 0

    def ask(self):
        """One request of each."""
        for client in range(HONEST):
            link = self.links[(self.sent // HONEST + client) % len(self.links)]
            link.request("GET", "/item", headers={"X-Forwarded-For": f"12.0.0.{client}"})
            answer = link.getresponse()
            answer.read()
            self.sent += 1
            self.refused += answer.status != 200


def flood(folder, scope, server, store, args):
    limit = f"{{ tier: estimate, rate: 60/60s, key: client_ip, scope: {scope}, expect: {{ requests: 20000/1s }} }}"
    trust = "clients: { trusted_proxies: [127.0.0.1/32] }\n"
    peers = [node(folder, f"node{n}", scope, (server, store), limit, trust) for n in range(args.nodes)]
    for peer in peers:
        peer.start(folder)
    time.sleep(3)
    idle = [peer.memory() for peer in peers]
    honest, before, began = Honest(peers), info(store), time.monotonic()
    senders, done = [], [os.path.join(folder, f"done-{scope}-{n}") for n in range(args.nodes)]
    for n, peer in enumerate(peers):
        script = write(folder, f"flood-{n}.lua", WRK % (n, args.nodes, args.addresses, done[n]))
        command = ["wrk", "-t1", "-c8", "-d1h", "-s", script, f"http://127.0.0.1:{peer.http1}"]
        senders.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    largest, in_redis = 0.0, 0.0
    while not all(map(os.path.exists, done)):
        following = time.monotonic() + HONEST_EVERY
        honest.ask()
        largest = max(largest, max(peer.memory() for peer in peers))
        in_redis = max(in_redis, info(store)["used_memory"] / 2**20)
        time.sleep(max(0, following - time.monotonic()))
    took, after = time.monotonic() - began, info(store)
    calls = sum(value(peer, 'tollgate_fleet_calls_total{outcome="ok"}') for peer in peers) / took / args.nodes
    kept = max(value(peer, 'tollgate_fleet_keys{limit="pages"}') for peer in peers)
    moved = [(after[f"total_net_{way}put_bytes"] - before[f"total_net_{way}put_bytes"]) / took / args.nodes / 1000
             for way in ("in", "out")]
    print(f"| {scope} | {took:.0f} s | {sum(idle) / len(idle):.0f} to {largest:.0f} MiB | {in_redis:.0f} MiB | {calls:.1f} "
          f"| {moved[0]:.0f}, {moved[1]:.0f} kB | {kept:.0f} | {honest.refused} of {honest.sent} |", flush=True)
    for sender in senders:
        # It sleeps until its time is over, whatever its thread does.
        sender.kill()
        sender.wait()
    for peer in peers:
        peer.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--addresses", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=4)
    args = parser.parse_args()
    if args.addresses >= 1 << 24:
        sys.exit("there are not so many addresses in 11.0.0.0/8")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        server, store = free_port(), free_port()
        site = origin(folder, server)
        redis = subprocess.Popen(["redis-server", "--port", str(store), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
                                 stdout=subprocess.DEVNULL)
        try:
            print("| scope | time | memory of a node | Redis | calls/s of a node | bytes/s of a node: to, from Redis "
                  "| keys of others | honest refused |\n|---|---|---|---|---|---|---|---|")
            for scope in ("node", "fleet"):
                flood(folder, scope, server, store, args)
        finally:
            for running in (site, redis):
                running.terminate()
                running.wait()


if __name__ == "__main__":
    main()
