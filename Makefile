# Holdfast. Two commands on a fresh machine: `make run` and `make test`.

GO       ?= go
N        ?= 200
BIN      := $(CURDIR)/bin
TOOLS    := $(BIN)/tools
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

.DEFAULT_GOAL := help
.PHONY: help build run test test-browser check lint drift guests-check generate guests torture bench bench-llama tools clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

build: ## bin/holdfast: one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X github.com/holdfast-ai/holdfast/internal/cli.version=$(VERSION)" -o $(BIN)/holdfast ./cmd/holdfast

run: build ## build, fetch the model once, serve on 127.0.0.1:8420
	$(BIN)/holdfast model pull
	exec $(BIN)/holdfast serve

# Arithmetic and whole processes gain nothing from the race detector but minutes.
PLAIN    := ./cmd/... ./inference/wasm/... ./inference/gguf/... ./inference/tokenizer/... ./inference/template/... ./internal/killtest ./internal/lint
RACED    := . ./actors/... ./storage/... ./transport/... ./inference ./inference/echo/... ./inference/fetch/... ./inference/inferencetest/... \
            ./inference/scheduler/... ./internal/clock/... ./internal/cli/... ./internal/metrics/... ./internal/node/... ./internal/testmodel/... \
            ./internal/wiretest/... ./models/... ./proto/... ./web/... ./bench/...

test: ## every test but those that need a browser; fetches the pinned model once
	$(GO) test -timeout 14m $(PLAIN)
	$(GO) test -race -timeout 14m $(RACED)

test-browser: ## the chat page in Chromium (Debian: apt-get install chromium)
	$(GO) test -tags browser -timeout 14m -count=1 ./web

check: lint drift guests-check ## format, vet, linters, generated code, the built guest; fails on a dirty tree in CI
	@if [ -n "$$CI" ] && [ -n "$$(git status --porcelain)" ]; then git status --short; echo "check: the tree is not clean" >&2; exit 1; fi

tools: ## what generate and check need, built from tools/
	mkdir -p $(TOOLS)
	cd tools && GOBIN=$(TOOLS) $(GO) install tool

lint: tools
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "lint: run gofmt -w" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags browser ./web
	for os in darwin windows; do GOOS=$$os CGO_ENABLED=0 $(GO) build ./cmd/holdfast ./inference/... || exit 1; done; rm -f holdfast holdfast.exe
	$(TOOLS)/golangci-lint run ./...
	$(TOOLS)/buf lint

drift: tools
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && PATH=$(TOOLS):$$PATH $(TOOLS)/buf generate -o $$tmp && \
	for f in wirepb/wire.pb.go statepb/state.pb.go; do cmp -s $$tmp/proto/$$f proto/$$f || { echo "drift: proto/$$f is not what its schema generates: run make generate" >&2; exit 1; }; done

guests-check:
	@if command -v clang >/dev/null; then inference/wasm/guest/build.sh --check; else echo "guests-check: no clang here, the committed digest alone is checked by make test"; fi

generate: tools ## Go code of the wire and of the records
	PATH=$(TOOLS):$$PATH $(TOOLS)/buf generate

guests: ## the WASM guest from its C sources (Debian: apt-get install clang lld)
	inference/wasm/guest/build.sh

torture: ## kill -9 N times over many streams: make torture N=200
	HOLDFAST_ROUNDS=$(N) HOLDFAST_MODEL_ROUNDS=$$(( ($(N)+4)/5 )) $(GO) test -count=1 -timeout 6h -v -run TestKill ./internal/killtest

bench: ## Go benchmarks, then Holdfast beside workerd (fetched by package name)
	$(GO) test -run XXX -bench . -benchmem ./storage/... ./actors/... ./transport/... ./inference/...
	bench/core.sh

bench-llama: ## the model beside llama.cpp (fetched by package name)
	bench/llama/run.sh

clean: ## what was built
	rm -rf $(BIN) bench/.work
