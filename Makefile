# Everything here can be run by hand too; .ci/run is what decides.

GO       ?= go
FUZZTIME ?= 30s
BENCH    ?= .
COUNT    ?= 6
SOAK_TIME ?= 10m

TOOL := $(GO) tool -modfile=tools/go.mod

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: build
build: ## build bin/baton
	$(GO) build -o bin/baton ./cmd/baton

.PHONY: test
test: ## run the tests
	$(GO) test ./...

.PHONY: race
race: ## run the tests with the race detector, in random order
	$(GO) test -race -shuffle=on ./...

.PHONY: lint
lint: ## run go vet and the linters
	$(GO) vet -tags e2e,quality ./...
	$(TOOL) golangci-lint run --build-tags e2e,quality ./...

.PHONY: fmt
fmt: ## format the code and apply go fix
	$(GO) fix ./...
	$(TOOL) golangci-lint fmt

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME=30s
	FUZZTIME=$(FUZZTIME) scripts/fuzz

.PHONY: bench
bench: ## run the benchmarks into bench.txt; BENCH=regexp, COUNT=6, OLD=file to compare with
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./... >bench.txt || { cat bench.txt; exit 1; }
	$(TOOL) benchstat $(OLD) bench.txt

.PHONY: cover
cover: ## print the test coverage and write cover.html
	$(GO) test -coverprofile=cover.out ./...
	$(GO) tool cover -html=cover.out -o cover.html
	$(GO) tool cover -func=cover.out | tail -n 1

.PHONY: e2e
e2e: ## run the real binary against simulated engines
	$(GO) test -tags e2e -count=1 ./e2e/...

.PHONY: soak
soak: ## churn workers and clients for SOAK_TIME=10m; nothing may grow
	SOAK_TIME=$(SOAK_TIME) $(GO) test -tags e2e -count=1 -timeout 0 -run TestSoak -v ./e2e/

.PHONY: quality
quality: ## print the hit shares and first-token times of the policies
	$(GO) test -tags quality -count=1 -run TestQuality -v ./internal/dispatch

.PHONY: mutants
mutants: ## break the code as testdata/mutants.txt says; the tests must notice
	$(GO) run ./scripts/mutants

.PHONY: sdk
sdk: ## run the Python SDKs of OpenAI and Anthropic and LangChain against the demo
	scripts/sdk-test

.PHONY: js-sdk
js-sdk: ## run the JavaScript SDK of OpenAI against the demo
	scripts/js-sdk-test

.PHONY: load
load: ## run GuideLLM, a load generator, against the demo
	scripts/load-test

.PHONY: peer
peer: ## compare the speed of baton with that of vllm-router
	scripts/peer-test

.PHONY: demo
demo: ## start a router and a simulated fleet
	$(GO) run ./cmd/baton demo

.PHONY: check
check: ## everything that must pass before a change lands
	.ci/run

.PHONY: clean
clean: ## remove what the targets above have made
	rm -rf bin bench.txt cover.out cover.html
