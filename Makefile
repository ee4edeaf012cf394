# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Thin: qemu/bootstrap.sh sees to the tools, cargo and Kbuild do the work.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Every recipe that needs cargo begins with this.
READY = PATH=$$(qemu/bootstrap.sh) && export PATH
VM = $(READY) && cargo run --quiet --package vramio-qemu --bin vramio-vm --
VM_TESTS = $(READY) && cargo run --quiet --package vramio-vm-tests --

LANES = abi host smoke-72 618
KERNELS = 7.3 7.2
SCRIPTS = .ci/run $(shell find . -name '*.sh' -not -path './build/*' -not -path './target/*')
KERNEL_RUST = $(shell find rust -name '*.rs' -not -name '*_generated.rs')

.PHONY: help demo test check modules install dkms prepare shell clean clean-cache

help: ## Show this.
	@echo 'usage: make TARGET [NAME=VALUE ...]'
	@echo
	@sed -n 's/^\([a-z0-9%-]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '  %-16s %s\n' "$$target" "$$text"; done
	@echo
	@echo '  KERNEL=7.2        take this kernel series, or debug (default: the newest stock one)'
	@echo '  FILTER=name       run only the tests with this in their names'
	@echo '  VRAMIO_CACHE=DIR  where build root and kernels are kept (default: ~/.cache/vramio)'
	@echo '  VRAMIO_MIRROR=URI Debian mirror (default: the one that apt uses)'

demo: ## Move a file between NVMe and GPU memory in a VM, and prove it.
	@$(VM) demo

# The largest lane's VM keeps one core busy; the other lanes have the rest meanwhile.
test: ## Run the tests of all lanes.
	@mkdir -p build; $(READY); \
	for lane in $(LANES); do \
		echo "=== lane $$lane"; \
		$(MAKE) test-$$lane && echo "=== lane $$lane: ok"; \
	done >build/lanes.log 2>&1 & \
	failed=; echo '=== lane guest (meanwhile, in build/lanes.log: $(LANES))'; \
	$(MAKE) test-guest || failed=' guest'; \
	wait; cat build/lanes.log; \
	for lane in $(LANES); do \
		grep -qx "=== lane $$lane: ok" build/lanes.log || failed="$$failed $$lane"; \
	done; \
	if [ -n "$$failed" ]; then echo "test: FAILED:$$failed"; exit 1; fi; \
	echo 'test: PASS'

.PHONY: test-abi test-host test-guest test-smoke-72 test-618 test-debug
test-abi: ## Lane: the ABI's layout, Rust against C.
	@$(VM) host-tests --lane abi --package vramio-abi $(FILTER)

test-host: ## Lane: logic that needs no VM.
	@$(VM) host-tests --lane host --exclude vramio-abi $(FILTER)

test-guest: ## Lane: all that runs in a VM.
	@$(VM_TESTS) $(FILTER)

test-smoke-72: ## Lane: the smoke part of the above on kernel 7.2.
	@$(VM_TESTS) --kernel 7.2 --smoke $(FILTER)

test-618: ## Lane: what goes direct without our module, on a stock kernel 6.18.
	@$(VM_TESTS) --kernel 6.18 --stock $(or $(FILTER),p2pdma/)

.PHONY: soak
soak: ## Slow lane: what requests rest on goes away, ROUNDS=50 times (SEED=n: from this round on; FUZZ=n: fuzz, too).
	@$(READY) && ROUNDS='$(ROUNDS)' SEED='$(SEED)' \
	cargo run --quiet --package vramio-vm-tests -- --lane soak --nocapture $(FILTER)
	@$(if $(FUZZ),$(MAKE) fuzz)

.PHONY: test-debug
test-debug: ## Slow lane: the tests in a VM on a debug kernel, which is built once (half an hour).
	@$(VM_TESTS) --kernel debug $(FILTER)

.PHONY: fuzz test-kernels test-install
fuzz: ## Call the module FUZZ=100000 times, right and wrong, from SEED=n on (default: the time).
	@$(READY) && FUZZ='$(or $(FUZZ),100000)' SEED='$(or $(SEED),'"$$(date +%s)"')' && \
	export FUZZ SEED && echo "fuzz: SEED=$$SEED" && \
	cargo run --quiet --package vramio-vm-tests -- --exact --nocapture fuzz/calls

test-kernels: ## Slow lane: the guest lane on every supported kernel.
	@failed=; for kernel in $(KERNELS); do \
		echo "=== kernel $$kernel"; \
		$(MAKE) test-guest KERNEL=$$kernel || failed="$$failed $$kernel"; \
	done; \
	if [ -n "$$failed" ]; then echo "test-kernels: FAILED:$$failed"; exit 1; fi; \
	echo 'test-kernels: PASS'

test-install: ## Slow lane: make install and make dkms in a Debian system made for it, and the smoke tests.
	@$(VM) test-install
	@$(VM_TESTS) --smoke --module "$$PWD/build/test-install/vramio.ko" $(FILTER)

.PHONY: test-storage
test-storage: ## Slow lane: storage drivers that ask by callbacks (a hooked NVMe driver, a client of scatter lists).
	@$(VM_TESTS) --lane storage $(FILTER)

.PHONY: test-clients
test-clients: ## Slow lane: clients of cuFile in a VM (KvikIO's library from its wheel, a C program), on the module.
	@$(VM_TESTS) --lane clients $(FILTER)

.PHONY: test-platform
test-platform: ## Slow lane: one VM for each platform (IOMMU, ACS, root ports, bounce buffers).
	@$(VM_TESTS) --lane platform $(FILTER)

.PHONY: bench-kernel
bench-kernel: ## Count the guest's instructions per request (PROFILE=1: by function).
	@$(READY) && FILTER='$(FILTER)' PROFILE='$(PROFILE)' \
	cargo run --quiet --package vramio-bench-kernel --

.PHONY: bench-gpu
bench-gpu: ## Measure the compat engine on this machine's CUDA GPU (FILE=, SIZE= in MiB, ROUNDS=).
	@$(READY) && cargo build --quiet --release --package vramio-bench-gpu && \
	python3 tests/bench/gpu/export.py && \
	"$${CARGO_TARGET_DIR:-target}/release/vramio-bench-gpu" \
		$(if $(FILE),--file '$(FILE)') $(if $(SIZE),--size '$(SIZE)') \
		$(if $(ROUNDS),--rounds '$(ROUNDS)')

.PHONY: test-gpu collect-gpu
test-gpu: collect-gpu ## The crate's tests on this machine's CUDA GPU.
	@tests/gpu/run.sh build/gpu

collect-gpu: ## Build tests and benchmark for a machine with a GPU into build/gpu; run.sh there runs the tests.
	@$(READY) && tests/gpu/collect.sh build/gpu

.PHONY: test-gpu2 bench-gpu2 collect-gpu2
test-gpu2: collect-gpu2 ## The tests of two GPUs, on this machine's.
	@tests/gpu2/run.sh build/gpu2 test

bench-gpu2: collect-gpu2 ## Measure two GPUs of this machine (SIZE=, MODEL= in MiB, ROUNDS=).
	@$(if $(SIZE),SIZE='$(SIZE)') $(if $(MODEL),MODEL='$(MODEL)') \
		$(if $(ROUNDS),ROUNDS='$(ROUNDS)') tests/gpu2/run.sh build/gpu2 bench load

collect-gpu2: ## Build all that for a machine with two GPUs into build/gpu2; run.sh there runs it.
	@$(READY) && tests/gpu2/collect.sh build/gpu2

.PHONY: lib install-tools
lib: ## Build libcufile.so and the command-line tool into build/lib, with manual pages and completions.
	@$(READY) && cargo build --quiet --release --package vramio-cufile --package vramio-cli && \
	install -D -t build/lib "$${CARGO_TARGET_DIR:-target}/release/libcufile.so" \
		"$${CARGO_TARGET_DIR:-target}/release/vramio" && \
	install -d build/lib/man build/lib/completions && build/lib/vramio man build/lib/man && \
	for tool in vramio $(TOOLS); do \
		build/lib/vramio completions bash $$tool >build/lib/completions/$$tool && \
		build/lib/vramio completions zsh $$tool >build/lib/completions/_$$tool && \
		build/lib/vramio completions fish $$tool >build/lib/completions/$$tool.fish || exit; \
	done && ls -d build/lib/*

# What the command is by another name.
TOOLS = gdscheck gdsio gdsio_verify gds_stats
PREFIX = /usr
SHARE = $(DESTDIR)$(PREFIX)/share

install-tools: lib ## Install what `make lib` builds, and the tools by their names (DESTDIR=, PREFIX=/usr).
	install -D -t '$(DESTDIR)$(PREFIX)/bin' build/lib/vramio
	for tool in $(TOOLS); do ln -sf vramio "$(DESTDIR)$(PREFIX)/bin/$$tool"; done
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/lib/vramio' build/lib/libcufile.so
	install -D -m 644 -t '$(SHARE)/man/man1' build/lib/man/*.1
	for tool in vramio $(TOOLS); do \
		install -D -m 644 -t '$(SHARE)/bash-completion/completions' build/lib/completions/$$tool && \
		install -D -m 644 -t '$(SHARE)/zsh/vendor-completions' build/lib/completions/_$$tool && \
		install -D -m 644 -t '$(SHARE)/fish/vendor_completions.d' build/lib/completions/$$tool.fish \
			|| exit; \
	done

.PHONY: test-gpu-clients
test-gpu-clients: ## Run cuFile's clients on this machine's CUDA GPU (DIRS='DIR ...', SIZE= in MiB).
	@$(READY) && cargo build --quiet --release --package vramio-cufile --package vramio-cli && \
	mkdir -p build/clients && python3 tests/clients/gpu/main.py \
		--vramio "$${CARGO_TARGET_DIR:-target}/release/vramio" \
		--library "$${CARGO_TARGET_DIR:-target}/release/libcufile.so" \
		$(if $(SIZE),--size '$(SIZE)') $(or $(DIRS),build/clients /dev/shm)

check: ## Check formatting, lints (also the kernel's, for both kernels), scripts and documents.
	@PATH=$$(qemu/bootstrap.sh check) && export PATH && set -x && \
	cargo fmt --all --check && \
	rustfmt --check $(KERNEL_RUST) && \
	cargo clippy --quiet --workspace --all-targets -- -D warnings && \
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --no-deps && \
	shellcheck $(SCRIPTS) && \
	docs/scale.py --check
	@$(VM) --kernel 7.3 modules --clippy
	@$(VM) --kernel 7.2 modules --clippy
	@echo 'check: PASS'

modules: ## Build vramio.ko and vramio_mockgpu.ko (CLIPPY=1: with the kernel's lints).
	@$(VM) modules

# Where `install` and `dkms` put their files; packagers set DESTDIR.
DESTDIR =
RELEASE = $(shell uname -r)
KDIR = /lib/modules/$(RELEASE)/build
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
UDEV_RULES = $(DESTDIR)/usr/lib/udev/rules.d
DKMS_TREE = $(DESTDIR)/usr/src/vramio-$(VERSION)

install: ## Build vramio.ko for KDIR (default: the running kernel) and install it, with the udev rules (DESTDIR=).
	rm -rf build/install
	@$(MAKE) dkms DESTDIR=build/install
	sh build/install/usr/src/vramio-$(VERSION)/packaging/dkms/build.sh '$(RELEASE)' '$(KDIR)'
	install -D -m 644 build/install/usr/src/vramio-$(VERSION)/vramio.ko \
		'$(DESTDIR)/lib/modules/$(RELEASE)/updates/vramio.ko'
	depmod $(if $(DESTDIR),-b '$(DESTDIR)') '$(RELEASE)'
	install -D -m 644 -t '$(UDEV_RULES)' packaging/udev/60-vramio.rules

dkms: ## Install the sources for DKMS, and the udev rules (DESTDIR=).
	install -d '$(DKMS_TREE)/packaging'
	cp -r Kbuild rust LICENSES '$(DKMS_TREE)'
	cp -r packaging/dkms '$(DKMS_TREE)/packaging'
	install -D -m 644 -t '$(DKMS_TREE)/ioctl-abi/src' ioctl-abi/src/*.rs
	sed 's/@VERSION@/$(VERSION)/' packaging/dkms/dkms.conf.in >'$(DKMS_TREE)/dkms.conf'
	install -D -m 644 -t '$(UDEV_RULES)' packaging/udev/60-vramio.rules

prepare: ## Set up build root and kernel (UPDATE=1: look for newer versions).
	@$(VM) prepare $(if $(UPDATE),--update)

shell: ## Open a shell in the VM (GDB=1234: a debugger can attach at this port).
	@$(VM) shell

clean: ## Remove what was built, but not the cache.
	rm -rf build "$${CARGO_TARGET_DIR:-target}"

clean-cache: ## Remove the cache.
	@$(VM) clean-cache
