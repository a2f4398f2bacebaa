# Everything a developer or reviewer runs. Tools are pinned in hack/tools/go.mod and built into a cache outside the repository.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/cluster-api-provider-kvm
export LAB_CACHE ?= $(CACHE)
TOOLS := $(CACHE)/tools
# A line for each package, and what failed, with its output, once more at the end: the log of a run of all tests is too long to search.
# Tests collect garbage as seldom as the program does: they are bound by the processor.
GOTEST := GOGC=400 $(TOOLS)/gotestsum --format pkgname --format-hide-empty-pkg --
# A third virtual machine at the same time is too much for two processors that emulate it: requests took ten seconds.
CLUSTER_WORKERS := $(or $(WORKERS),$(shell [ "$$(nproc)" -ge 4 ] && echo 1 || echo 0))
# The lab's tests wait for real controllers about as long as they work: with one test for each of two processors the longest package took 24 minutes, with two 14.
LAB_PARALLEL ?= $(shell echo $$((2 * $$(nproc))))
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X main.version=$(VERSION)
# What a release is called, and where its container images are; docker, podman or buildah builds them.
RELEASE ?= v0.1.0
REGISTRY ?= ghcr.io/giantswarm
CONTAINERS ?= docker
# Work files of other checkouts must not leak into builds.
export GOWORK := off
# Builds, tests, linters and what the lab builds for itself share compiled packages, which they do not with C in some of them. Only the race detector needs it.
export CGO_ENABLED := 0
# The linters remember findings with the absolute path of the file and apply nolint comments and exclusions by that path:
# with a cache shared between checkouts, those of a checkout since removed came back as findings nobody could silence.
export GOLANGCI_LINT_CACHE := $(CACHE)/lint/$(subst /,-,$(CURDIR))

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z0-9-]*:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the programs: bin/migrate, bin/capk-controller, bin/vm-launcher, bin/vm-agent, bin/lab
	@mkdir -p bin
	go build $(TRIMPATH) -ldflags '-s -w $(LDFLAGS)' -o bin/ ./cmd/...
	cd lab && go build -o ../bin/ ./cmd/lab

.PHONY: setup
setup: build ## install the Debian packages that the tests need and the machine lacks (as root)
	bin/lab setup

.PHONY: lab
lab: build ## build and cache the real components: etcd, Kubernetes, Cluster API (about ten minutes, once)
	bin/lab build

.PHONY: test
test: setup lab $(TOOLS)/gotestsum ## run every test, those against real components included
	$(GOTEST) -timeout 30m ./...
	@# A package starts clusters of its own, which wait for one another's processors: the longest runs alone. The time ends what hangs, on slow machines too.
	cd lab && failed=0; \
		$(GOTEST) -p 1 -parallel $(LAB_PARALLEL) -timeout 45m ./adoption || failed=1; \
		$(GOTEST) -p 2 -parallel $$(nproc) -timeout 45m $$(go list ./... | grep -v /adoption$$) || failed=1; \
		exit $$failed

.PHONY: race
race: ## compile the product as test-race does first
	CGO_ENABLED=1 go build -race ./internal/...

.PHONY: test-race
test-race: $(TOOLS)/gotestsum ## run the product's tests with the race detector
	CGO_ENABLED=1 $(GOTEST) -race -short -vet=off ./internal/... # test or the linters vet the same files

.PHONY: bench
bench: build ## run the benchmarks that docs/performance.md quotes
	hack/bench.sh

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## run the linters of .golangci.yml
	@mkdir -p $(CACHE)/lint && find $(CACHE)/lint -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -rf {} + # of checkouts no longer used
	$(TOOLS)/golangci-lint run ./...
	cd lab && $(TOOLS)/golangci-lint run --config ../.golangci.yml ./...

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint ## format the code
	$(TOOLS)/golangci-lint fmt ./...
	cd lab && $(TOOLS)/golangci-lint fmt --config ../.golangci.yml ./...

.PHONY: generate
generate: $(TOOLS)/controller-gen ## write generated files: deep copies, CRDs, fixtures, golden files, reference docs
	$(TOOLS)/controller-gen object paths=./api/...
	$(TOOLS)/controller-gen crd paths=./api/v1beta2/... output:crd:dir=config/crd/bases
	$(TOOLS)/controller-gen crd paths=./api/migration/... output:crd:dir=config/crd/migration
	go run ./hack/fixtures
	go test ./internal/check ./internal/cli ./internal/controller/vmpod ./internal/report ./internal/translate ./internal/vm/qemu ./internal/vm/seed ./hack/docs -update

.PHONY: verify
verify: $(TOOLS)/controller-gen ## fail when a generated file is not what its source says
	hack/verify.sh $(TOOLS)/controller-gen

.PHONY: fuzz
fuzz: ## fuzz every parser for FUZZTIME (30s each)
	hack/fuzz.sh $(or $(FUZZTIME),30s)

.PHONY: demo
demo: lab ## look at a real legacy cluster with inventory, check, snapshot and plan; as root also take one of virtual machines through all phases; HOST_VOLUMES=false ties its worker to no host
	WORKERS=$(CLUSTER_WORKERS) hack/demo.sh

.PHONY: release-artifacts
release-artifacts: ## write what clusterctl needs to out/, for RELEASE (v0.1.0)
	go run ./hack/release -version $(RELEASE) -out out

.PHONY: images
images: ## build the container images that the release names, for RELEASE (v0.1.0); REGISTRY=… CONTAINERS=docker|podman|buildah BASE=…
	$(MAKE) build TRIMPATH=-trimpath # what is released is the same on every machine; elsewhere all packages would be compiled a second time, for tests and linters go without
	$(CONTAINERS) build -f images/controller/Dockerfile -t $(REGISTRY)/cluster-api-provider-kvm-controller:$(RELEASE) bin
	$(CONTAINERS) build -f images/launcher/Dockerfile $(if $(BASE),--build-arg BASE=$(BASE)) -t $(REGISTRY)/cluster-api-provider-kvm-launcher:$(RELEASE) bin

.PHONY: e2e-provider
e2e-provider: setup lab ## walk a cluster of real virtual machines through its life; root, QEMU and up to two hours without KVM; WORK=DIR keeps the lab of a walk that failed
	bin/lab image build
	cd lab && go test -tags e2e ./e2e -run TestProvider -count=1 -timeout 300m -v $(if $(WORK),-args -work $(abspath $(WORK)))

.PHONY: e2e-adopt
e2e-adopt: setup lab ## take a running legacy cluster of real virtual machines over and give it back; root, QEMU and up to an hour without KVM
	bin/lab image build legacy
	cd lab && go test -tags e2e ./e2e -run TestAdopt -count=1 -timeout 150m -v -args -workers $(or $(WORKERS),1)

.PHONY: e2e
e2e: setup lab ## take a running legacy cluster of real virtual machines through all phases, with a worker on four processors or more; root, QEMU and up to two hours without KVM; WORK=DIR keeps the lab of a walk that failed, SKIP=REGEXP leaves steps out
	bin/lab image build legacy
	bin/lab image build next
	cd lab && go test -tags e2e ./e2e -run TestMigration -count=1 -timeout 300m -v -args -workers $(CLUSTER_WORKERS) $(if $(WORK),-work $(abspath $(WORK))) $(if $(SKIP),-skip '$(SKIP)')

.PHONY: e2e-window
e2e-window: setup lab ## migrate a cluster whose window closes after the control plane, and have another process, which waits for the next window of the same playbook, replace the workers in it; root, two minutes
	cd lab && go test ./adoption -run 'TestAWindowClosesAfterTheControlPlane' -count=1 -timeout 15m -v

.PHONY: check
check: lint verify test ## everything a reviewer expects

$(TOOLS)/%: hack/tools/go.mod hack/tools/go.sum
	@echo "building $* (once) ..."
	@mkdir -p $(TOOLS)
	cd hack/tools && go build -o $@ "$$(go list -f '{{.ImportPath}}' tool | grep '/$*$$')"
	@touch $@
