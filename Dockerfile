# syntax=docker/dockerfile:1
FROM rust:1-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY examples examples
COPY benches benches
# Cargo reads the manifests of development dependencies too; none of them is compiled.
COPY tests/support tests/support
COPY fuzz/targets fuzz/targets
RUN cargo build --release --locked --bin tollgate

FROM debian:bookworm-slim
# Certificates for origins behind TLS; curl for the health check.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 tollgate \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin tollgate \
    && install --directory --mode 0700 --owner 10001 --group 10001 /var/lib/tollgate
COPY --from=build /src/target/release/tollgate /usr/local/bin/tollgate
COPY conf/tollgate.yaml /etc/tollgate/tollgate.yaml
USER 10001:10001
EXPOSE 8080 9900
# Nothing is written but standard output and, if the configuration names it as the state directory, /var/lib/tollgate:
# `docker run --read-only --volume tollgate:/var/lib/tollgate` works. A new volume gets the owner and the mode of the
# directory in the image. `docker stop --timeout 40` leaves time for requests in flight and the last save.
HEALTHCHECK --interval=10s --timeout=2s --start-period=5s \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:9900/healthz"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tollgate"]
CMD ["run", "--config", "/etc/tollgate/tollgate.yaml"]
