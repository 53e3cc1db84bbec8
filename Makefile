# Commands for a fresh Debian machine with Rust, a C compiler and make:
#   make run    a demonstration: a small origin, the proxy before it, commands to try
#   make test   everything that must hold
#   make quick  the tests of the inner loop: no servers, under 90 s on two cores once it is built

CARGO ?= cargo
export CARGO
# pingora builds zlib-ng with cmake; the rest is what tests talk to.
RUN_TOOLS := cmake
TEST_TOOLS := cmake chromium chromedriver faketime groff promtool curl nginx node slowhttptest python3-aiohttp python3-h2 python3-requests python3-selenium redis-server systemd-analyze ip

.PHONY: run build test lint unit quick tools-run tools-test fmt

# The profile `demo` builds in less than half of the time of `release`.
run: tools-run
	$(CARGO) run --profile demo --bin tollgate -- demo

build: tools-run
	$(CARGO) build --release

test: tools-test
	./scripts/check all

lint: tools-run
	./scripts/check lint

unit: tools-run
	./scripts/check unit

quick: tools-run
	./scripts/check quick

fmt:
	$(CARGO) fmt --all
	$(CARGO) fmt --all --manifest-path fuzz/Cargo.toml

tools-run:
	@./scripts/install-tools $(RUN_TOOLS)

tools-test:
	@./scripts/install-tools $(TEST_TOOLS)

.PHONY: bench compare compare-library accuracy isolation costs

# What decisions, routing, keys, fields and reading a configuration cost.
bench: tools-run
	$(CARGO) bench --bench decisions -- --noplot

# Beside governor as a library; then beside a Pingora proxy without a policy, NGINX and HAProxy, in
# time and in instructions; then the slowest requests while 10,000 routes
# are reloaded, and while operators read.
ROUNDS ?= 20
compare: compare-library
	@./scripts/install-tools nginx haproxy wrk h2load curl openssl valgrind python3
	$(CARGO) build --release --bin tollgate --example plain
	python3 scripts/compare --rounds $(ROUNDS)
	python3 scripts/compare/instructions.py
	python3 scripts/compare/reload.py
	python3 scripts/compare/admin_reads.py

compare-library: tools-run
	$(CARGO) bench --bench peers

# sliding_window beside a true log.
accuracy: tools-run
	$(CARGO) bench --bench accuracy

# A route without limits beside a hammered key: p99 against the same load without.
isolation: build
	@./scripts/install-tools wrk curl
	./scripts/isolation

# Event streams whose cost is in their last event: time to the first byte, memory of 1,000 open streams.
costs: build
	./scripts/costs

.PHONY: fuzz fuzz-corpus

# Every reader of foreign bytes, for SECONDS each, JOBS at once (all processors): coverage-guided, by
# AFL++. Fails when an input breaks a promise; `make fuzz-corpus` then makes the corpora anew.
SECONDS ?= 600
fuzz: tools-run
	./scripts/fuzz run $(SECONDS)

fuzz-corpus: tools-run
	./scripts/fuzz minimise

.PHONY: soak hostile-figures

# A good client beside 2,000 connections of hostile ones, for SECONDS. (`make test` has 32 s of it, unoptimised.)
soak: SECONDS = 900
soak: tools-test build
	TOLLGATE_BINARY=$(CURDIR)/target/release/tollgate TOLLGATE_SOAK_SECONDS=$(SECONDS) $(CARGO) test --test soak a_good -- --nocapture

# What hostile clients take of a proxy: descriptors, processor time, memory. BINARY is another one's to compare with;
# BOUNDS are its `limits_of_this_proxy`, as 'memory: 128MiB'.
BINARY ?= $(CURDIR)/target/release/tollgate
hostile-figures: build
	TOLLGATE_BINARY=$(BINARY) TOLLGATE_FIGURES_BOUNDS="$(BOUNDS)" $(CARGO) bench --bench hostile

.PHONY: compare-state

# What a state directory costs: decisions with it and without it, then a start with ten million cells and its memory.
compare-state: build
	@./scripts/install-tools nginx wrk python3
	$(CARGO) bench --bench saving
	python3 scripts/compare/state.py

.PHONY: compare-replay

# How many lines a second a replay reads, beside awk and GoAccess. (GoAccess takes ten minutes for ten million lines.)
GOACCESS_LINES ?= 10000000
compare-replay: build
	@./scripts/install-tools goaccess time python3
	python3 scripts/compare/replay.py --goaccess-lines $(GOACCESS_LINES)

.PHONY: kills

# KILLS rounds of a process that is killed at a random moment under load and starts again. (`make test` has fewer,
# of an unoptimised program.)
KILLS ?= 200
kills: build
	TOLLGATE_BINARY=$(CURDIR)/target/release/tollgate TOLLGATE_KILLS=$(KILLS) $(CARGO) test --test restarts kills -- --nocapture

# What scope: fleet costs: instructions of a request, and memory, calls and bytes under a flood of addresses.
.PHONY: compare-fleet
compare-fleet: build
	@./scripts/install-tools nginx redis-server valgrind wrk python3
	python3 scripts/compare/fleet.py
	python3 scripts/compare/fleet_flood.py

.PHONY: compare-redis

# A decision over a Redis server of its own, beside one bare script call for each.
compare-redis: tools-run
	@./scripts/install-tools redis-server
	./scripts/with-redis env TOLLGATE_BENCH_REDIS=PORT $(CARGO) bench --bench remote

.PHONY: simulate planted

# Whole fleets on virtual time, for SECONDS, each under another seed.
simulate: tools-run
	TOLLGATE_SIMULATE_SECONDS=$(SECONDS) $(CARGO) test --test simulation a_fleet -- --nocapture

# Bugs that break one rule each, planted into a copy: whether each is found, and how soon.
planted: tools-run
	@./scripts/install-tools redis-server python3
	./scripts/planted

.PHONY: plugin

# Builds the library as an outsider does, without the binary's features. Prints times and numbers of dependencies.
plugin: tools-run
	./scripts/plugin

.PHONY: deny

# Licences, bans, sources and advisories of all dependencies, by deny.toml.
CHECKS ?= licenses bans sources advisories
deny: tools-run
	@command -v cargo-deny >/dev/null || $(CARGO) install cargo-deny --locked
	$(CARGO) deny --locked check $(CHECKS)

.PHONY: man install

# The man pages, in target/man.
man: build
	target/release/tollgate man target/man

# The program, its man pages, and completions for shells, below DESTDIR and PREFIX.
PREFIX ?= /usr/local
SHARE = $(DESTDIR)$(PREFIX)/share
install: man
	install -D -m 755 target/release/tollgate $(DESTDIR)$(PREFIX)/bin/tollgate
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	install -m 644 target/man/*.1 $(SHARE)/man/man1
	target/release/tollgate completions bash > $(SHARE)/bash-completion/completions/tollgate
	target/release/tollgate completions zsh > $(SHARE)/zsh/site-functions/_tollgate
	target/release/tollgate completions fish > $(SHARE)/fish/vendor_completions.d/tollgate.fish

.PHONY: docs docs-generated

# The book of docs/, checked and built into target/book. mdBook is built once, into target/tools.
MDBOOK := target/tools/bin/mdbook
docs: tools-test $(MDBOOK)
	$(CARGO) test --quiet --test docs
	$(MDBOOK) build docs --dest-dir $(CURDIR)/target/book

# Writes what is generated: the reference from the schema, the plots from the engine.
docs-generated:
	TOLLGATE_DOCS_WRITE=1 $(CARGO) test --quiet --test docs

$(MDBOOK):
	$(CARGO) install mdbook --version 0.5.4 --locked --no-default-features --features search --root target/tools
