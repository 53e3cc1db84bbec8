"""The proxies that are compared, each with the configuration that makes it comparable."""

import os
import signal
import socket
import subprocess
import sys
import time

CORES = os.cpu_count() or 1
TICK = os.sysconf("SC_CLK_TCK")
BODY = "hello from the origin\n"
GIVEN_PORTS = set()


def free_port():
    """A port that is free, and not given before: servers that share one would each get half of the connections."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in GIVEN_PORTS:
            GIVEN_PORTS.add(port)
            return port


class Peer:
    """One proxy: its command, where it listens, and whether it is meant to refuse."""

    def __init__(self, name, mode, command, http1, http2):
        self.name, self.mode, self.command = name, mode, command
        self.http1, self.http2 = http1, http2
        self.patience = 10
        # NGINX's slowest rate is one a minute: of those that it is meant to refuse one may pass.
        self.may_pass = 1 if (name, mode) == ("nginx", "refused") else 0

    def start(self, folder):
        log = open(os.path.join(folder, f"{self.name}-{self.mode}.log"), "w")
        self.running = subprocess.Popen(self.command, stdout=log, stderr=log)
        for port in filter(None, (self.http1, self.http2)):
            for _ in range(self.patience * 20):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if self.running.poll() is not None:
                    sys.exit(f"{self.name} did not start: see {log.name}\n" + open(log.name).read())
                time.sleep(0.05)

    def pids(self):
        """The process and the workers that it started."""
        own, found = self.running.pid, [self.running.pid]
        children = f"/proc/{own}/task/{own}/children"
        found += [int(pid) for pid in open(children).read().split()]
        return found

    def cpu(self):
        """Seconds of the processor, user and system."""
        ticks = 0
        for pid in self.pids():
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICK

    def memory(self):
        """Mebibytes that are held, what is shared counted once for each process."""
        kib = 0
        for pid in self.pids():
            for line in open(f"/proc/{pid}/smaps_rollup"):
                if line.startswith("Pss:"):
                    kib += int(line.split()[1])
        return kib / 1024

    def stop(self):
        self.running.send_signal(signal.SIGINT if self.name == "tollgate" else signal.SIGTERM)
        try:
            self.running.wait(5)
        except subprocess.TimeoutExpired:
            self.running.kill()


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def certificate(folder):
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True)
    both = write(folder, "both.pem", open(cert).read() + open(key).read())
    return cert, key, both


def origin(folder, port):
    conf = write(folder, "origin.conf", f"""
worker_processes 1; daemon off; pid {folder}/origin.pid; error_log {folder}/origin.err;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {folder}/ob;
  server {{ listen 127.0.0.1:{port} backlog=1024; location / {{ return 200 "{BODY[:-1]}\\n"; }} }} }}
""")
    return subprocess.Popen(["nginx", "-p", folder, "-c", conf], stderr=subprocess.DEVNULL)


def tollgate(folder, mode, ports, server, cert, key):
    few, many = "1/1d", "4000000000/1h"
    rate = few if mode == "refused" else many
    pair = f"{{ certificate: {cert}, private_key: {key} }}"
    tls = f"  - {{ address: 127.0.0.1:{ports[1]}, tls: {pair} }}\n" if ports[1] else ""
    conf = write(folder, f"tollgate-{mode}.yaml", f"""
version: 1
listeners:
  - {{ address: 127.0.0.1:{ports[0]} }}
{tls}origins: {{ site: {{ servers: [127.0.0.1:{server}] }} }}
limits:
  pageviews: {{ tier: estimate, rate: {many}, key: client_ip, expect: {{ requests: 20000/1s }} }}
  writes: {{ tier: exact, rate: {rate}, key: client_ip }}
routes: [{{ name: all, limits: [pageviews, writes] }}]
access_log: {{ to: none }}
""")
    return Peer("tollgate", mode, ["target/release/tollgate", "run", "--config", conf], *ports)


def plain(_folder, mode, ports, server, cert, key):
    refuse = ["--refuse"] if mode == "refused" else []
    command = ["target/release/examples/plain", f"127.0.0.1:{ports[0]}", f"127.0.0.1:{server}", *refuse]
    if ports[1]:
        command.append(f"--tls=127.0.0.1:{ports[1]},{cert},{key}")
    return Peer("plain", mode, command, *ports)


def nginx(folder, mode, ports, server, cert, key):
    rate = "1r/m" if mode == "refused" else "1000000r/s"
    conf = write(folder, f"nginx-{mode}.conf", f"""
worker_processes {CORES}; daemon off; pid {folder}/nginx-{mode}.pid; error_log {folder}/nginx-{mode}.err crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_temp_path {folder}/nb-{mode};
  proxy_temp_path {folder}/np-{mode}; fastcgi_temp_path {folder}/nf-{mode};
  uwsgi_temp_path {folder}/nu-{mode}; scgi_temp_path {folder}/ns-{mode};
  limit_req_zone $binary_remote_addr zone=all:10m rate={rate};
  limit_req_status 429; limit_req_log_level info;
  upstream site {{ server 127.0.0.1:{server}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{ports[0]} backlog=1024;
    listen 127.0.0.1:{ports[1]} ssl http2 backlog=1024;
    http2_max_concurrent_streams 128;
    ssl_certificate {cert}; ssl_certificate_key {key};
    location / {{
      limit_req zone=all{'' if mode == 'refused' else ' burst=10000 nodelay'};
      proxy_pass http://site; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Request-Id $request_id;
    }}
  }}
}}
""")
    return Peer("nginx", mode, ["nginx", "-p", folder, "-c", conf], *ports)


def haproxy(folder, mode, ports, server, _cert, both):
    most = 1 if mode == "refused" else 4000000000
    conf = write(folder, f"haproxy-{mode}.cfg", f"""
global
  nbthread {CORES}
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend all
  bind 127.0.0.1:{ports[0]}
  bind 127.0.0.1:{ports[1]} ssl crt {both} alpn h2
  stick-table type ip size 100k expire 1d store http_req_rate(1d)
  http-request track-sc0 src
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {most} }}
  http-request set-header X-Forwarded-For %[src]
  http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
  http-request set-header X-Forwarded-Host %[req.hdr(Host)]
  http-request set-header X-Request-Id %[rand,hex]
  default_backend site
backend site
  server one 127.0.0.1:{server}
""")
    return Peer("haproxy", mode, ["haproxy", "-q", "-db", "-f", conf], *ports)
