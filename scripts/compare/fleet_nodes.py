"""Nodes of a fleet: tollgate with a Redis server, and what its metrics say."""

import re
import urllib.request

from peers import Peer, free_port, write


def node(folder, name, mode, servers, limit, more=""):
    """A node with one limit. `servers`: the ports of the origin and of Redis. Modes share nothing in Redis."""
    port, admin = free_port(), free_port()
    conf = write(folder, f"{name}-{mode}.yaml", f"""
version: 1
listeners: [{{ address: 127.0.0.1:{port} }}]
admin: {{ address: 127.0.0.1:{admin} }}
store: {{ redis: {{ url: "redis://127.0.0.1:{servers[1]}", prefix: {mode} }} }}
origins: {{ site: {{ servers: [127.0.0.1:{servers[0]}] }} }}
limits: {{ pages: {limit} }}
routes: [{{ name: all, limits: [pages] }}]
access_log: {{ to: none }}
{more}""")
    peer = Peer(name, mode, ["target/release/tollgate", "run", "--config", conf], port, 0)
    peer.admin = admin
    return peer


def value(peer, name):
    text = urllib.request.urlopen(f"http://127.0.0.1:{peer.admin}/metrics", timeout=60).read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(found.group(1)) if found else 0.0
