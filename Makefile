# make serve ARGS="--port 8011"    passes flags on to `dynamo serve`
# make serve MODEL=/path/to/model  serves that file or directory instead of the default model
SHELL := /bin/bash
ARGS ?=
MODEL ?=
export MODEL

.PHONY: serve test bench fuzz lint build dist model fmt
.DEFAULT_GOAL := build

serve:
	@scripts/serve.sh $(ARGS)

test:
	@scripts/test.sh

bench:
	@scripts/bench.sh

lint:
	@scripts/lint.sh

build:
	@source scripts/lib.sh && require_toolchain && cargo build "$${SELECTION[@]}" --bins

# The binary to ship, target/dist/dynamo: all crates optimised as one, which takes a while.
dist:
	@source scripts/lib.sh && require_toolchain && cargo build --locked --profile dist -p dynamo-cli

model:
	@scripts/fetch-model.sh

fmt:
	@cargo fmt --all

# make fuzz TARGET=guides SECONDS_EACH=60   one of fuzz/targets, or all of them, five minutes each
fuzz:
	@scripts/fuzz.sh $(or $(TARGET),all) $(or $(SECONDS_EACH),300)
