"""Asks a proxy, drives it for a while, and says what that cost. A wrong answer ends everything."""

import os
import re
import statistics
import subprocess
import time

from peers import BODY

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
    wrong = total - refused if peer.mode == "refused" else refused
    if total == 0 or wrong > peer.may_pass:
        raise WrongAnswer(f"{peer.name}, {peer.mode}, {protocol}: {refused} of {total} refused")
    return {"cpu": spent / total * 1e6, "rps": total / took, "p50": p50, "p99": p99, "mib": peer.memory()}


def spread(values, digits):
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"
