# What people try first. CI runs .ci/run, which has more.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
include .ci/tools.env

MODULES := . internal/tests contrib/gomlx contrib/llama contrib/otel contrib/tensor
each = for module in $(MODULES); do (cd "$$module" && $(1)); done

# The packages of test, bench, fuzz and cover.
PKG ?= ./...

.PHONY: help
help: ## list the targets
	@echo 'usage: make TARGET [NAME=VALUE...]'
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: build
build: ## compile all packages, and the command into ./gpumemtrack
	go build ./...
	go build -o gpumemtrack ./cmd/gpumemtrack

.PHONY: test
test: ## run the tests, or those of PKG=./alloc/...; the last line says what was skipped and why
	go test -json $(PKG) | go run .ci/count.go

.PHONY: lint
lint: ## gofmt, go vet, golangci-lint and actionlint, in nested modules too
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted by gofmt: $$unformatted"; exit 1; }
	$(call each,go vet ./...)
	$(call each,GOTOOLCHAIN=local go run $(GOLANGCI_LINT) run ./...)
	go run $(ACTIONLINT)

.PHONY: vuln
vuln: ## look for known vulnerabilities in what is called
	$(call each,go run $(GOVULNCHECK) ./...)

.PHONY: bench
bench: ## run benchmarks: PKG=./alloc/cache BENCH=Alloc; BASE=REV compares in turns (COUNT=6 TIME=1s)
	@BENCHSTAT=$(BENCHSTAT) scripts/bench "$(BASE)" "$(PKG)" "$(or $(BENCH),.)" "$(or $(COUNT),6)" "$(or $(TIME),1s)"

.PHONY: bench-recordings
bench-recordings: ## what reading recordings costs, in turns with Python's pickle.load: COUNT=3 (ONLY=WORD KEEP=FOLDER)
	@ONLY="$(ONLY)" KEEP=$(KEEP) scripts/bench-recordings $(or $(COUNT),3)

.PHONY: bench-core
bench-core: ## what Alloc and Free cost, in turns with Go's heap profiler, heaptrack and others: COUNT=5 (RUN=PATTERN)
	@go run ./internal/testing/corebench -rounds $(or $(COUNT),5) -run '$(RUN)'

.PHONY: bench-attach
bench-attach: ## what attach costs, in turns with bpftrace and memray, as root: COUNT=5 (BASE=FILE PYTHON=FILE)
	@BASE=$(BASE) PYTHON=$(PYTHON) scripts/bench-attach $(or $(COUNT),5)

.PHONY: bench-web
bench-web: ## what show --web costs in headless Chromium: FILES='A B' or SNAPSHOT=FILE (VIZ=FOLDER ROUNDS=3)
	@SNAPSHOT="$(SNAPSHOT)" VIZ="$(VIZ)" ROUNDS="$(ROUNDS)" scripts/bench-web $(FILES)

.PHONY: fuzz
fuzz: ## fuzz each target: TIME=10s PKG=./tracker/export/... FUZZ=FuzzRead
	@scripts/fuzz "$(or $(TIME),10s)" "$(or $(FUZZ),.)" $(PKG)

.PHONY: generate
generate: ## write again what is made from other files, and the lists of public names
	go generate ./...
	go test ./internal/testing/house -run '^TestAPI$$' -update

.PHONY: tables
tables: ## take the keys of configs from the installed transformers, and print what changed: PYTHON=python3
	@$(or $(PYTHON),python3) estimate/checkpoint/testdata/torch/defaults.py estimate/internal/family/defaults.json
	@$(or $(PYTHON),python3) estimate/checkpoint/testdata/torch/classes.py estimate/checkpoint/testdata/torch/classes.json estimate/internal/family/float32.json
	@$(or $(PYTHON),python3) estimate/checkpoint/testdata/torch/saved_configs.py estimate/checkpoint/testdata/torch/saved_configs.json
	@go generate ./estimate/internal/family

.PHONY: cover
cover: ## run the tests with coverage: PKG=./tracker/...; writes cover.out and cover.html
	go test -coverprofile=cover.out $(PKG)
	go tool cover -html=cover.out -o cover.html
	go tool cover -func=cover.out | tail -n 1

.PHONY: mutants
mutants: ## change the code in small ways, and see which changes the tests notice: PKG=./tracker/replay
	@GREMLINS=$(GREMLINS) scripts/mutants $(filter-out ./...,$(PKG))

.PHONY: findings
findings: ## run the surprises of other libraries, a line each; outside CI, needs the package registries
	@failed=0; for script in findings/*.sh; do "$$script" || failed=1; done; exit $$failed

.PHONY: snapshot
snapshot: ## build a release without publishing it; needs goreleaser
	goreleaser check
	goreleaser release --snapshot --clean --skip=publish

.PHONY: clean
clean: ## remove what these targets made
	rm -rf gpumemtrack cover.out cover.html dist .release
