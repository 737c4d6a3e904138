# `make help` lists the targets. Every target first makes .venv, so none needs another run before it.

PYTHON   ?= python3
PAPER    ?= rgp
PROFILE  ?= embedded
ARGS     ?=
LAUNCHER ?=
TORCH    :=

# A word of make's command line that nothing reads would be passed over in silence.
WORDS := PYTHON PAPER PROFILE ARGS LAUNCHER TORCH
OTHER := $(strip $(foreach word,$(filter-out $(WORDS) SHELL MAKEFLAGS,$(.VARIABLES)),\
  $(if $(filter command,$(origin $(word))),$(word))))
# $(call near,a mistyped word,the words there are): the word that is spelt most alike.
near = $(shell $(PYTHON) -c 'import difflib, sys; word, *known = sys.argv[1:]; print(*difflib.get_close_matches( \
  word, known, 1) or difflib.get_close_matches(word.upper(), known, 1))' '$(subst ','\'',$(1))' $(2) 2>/dev/null)
did_you_mean = $(foreach word,$(near), Did you mean $(word)?)

ifneq ($(OTHER),)
$(error Expected words among $(WORDS); got $(firstword $(OTHER))=.$(call did_you_mean,$(firstword $(OTHER)),$(WORDS)) \
  Overrides go into ARGS: ARGS="epochs=3 results=mine")
endif

VENV  := .venv$(TORCH:%=-torch-%)
PY    := $(VENV)/bin/python
READY := $(VENV)/.ready

MAKEFLAGS += --no-builtin-rules

# So would a target that is a folder's name, results for one: make finds it there, with nothing to do.
TARGETS := all setup test test-long lint docs bench gpu-report verify audit attack lira soak pin-configs clean help
WITHOUT_DIGITS = $(subst 0,,$(subst 1,,$(subst 2,,$(subst 3,,$(subst 4,,$(subst 5,,$(subst 6,,$(subst 7,,$(subst \
  8,,$(subst 9,,$(1)))))))))))
IS_NUMBERED = $(and $(filter table figure,$(call WITHOUT_DIGITS,$(1))),$(filter-out table figure,$(1)))
STRANGE := $(firstword $(foreach goal,$(filter-out $(TARGETS) $(READY),$(MAKECMDGOALS)),\
  $(if $(call IS_NUMBERED,$(goal)),,$(goal))))
ifneq ($(STRANGE),)
$(error Expected a target among tableN, figureN, $(TARGETS); got \
  $(STRANGE).$(call did_you_mean,$(STRANGE),tableN figureN $(TARGETS)) \
  Folders and overrides go into ARGS: make verify ARGS=results/embedded/runs/ID)
endif

# So would a word that is there and that none of the targets at hand reads.
READ_PAPER    := all table% figure%
READ_PROFILE  := $(READ_PAPER) lira
READ_LAUNCHER := $(READ_PAPER)
READ_ARGS     := $(READ_PROFILE) test test-long bench gpu-report verify audit attack soak
UNREAD := $(firstword $(foreach word,PAPER PROFILE LAUNCHER ARGS,$(if $(and $(MAKECMDGOALS),$(filter \
  command,$(origin $(word))),$($(word))),$(if $(filter $(READ_$(word)),$(MAKECMDGOALS)),,$(word)))))
ifneq ($(UNREAD),)
$(error Expected $(UNREAD)= beside $(subst %,N,$(READ_$(UNREAD))) alone; $(firstword $(MAKECMDGOALS)) does not read it. \
  Leave it out)
endif

.DEFAULT_GOAL := help
.PHONY: $(TARGETS) FORCE

setup: $(READY)

# The stamp stands for a finished install: an interrupted one is taken up again. With another torch
# go torchvision, which names the one torch it is for, and setuptools, which torch bounds.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null || { \
	  echo "Expected Python 3.11 or 3.12 as PYTHON=$(PYTHON); got $$($(PYTHON) --version 2>/dev/null || echo none that runs)." \
	       "Name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo '$(TORCH)' | grep -q -E '^(2\.1[123]\.[0-9]+)?$$' || { \
	  echo "Expected TORCH=2.11.0 to 2.13, with three numbers; got TORCH=$(TORCH)." >&2; exit 2; }
	@echo 'Installing into $(VENV): a minute or more, once.'
	@$(PYTHON) -m venv $(VENV)
	@$(if $(TORCH),grep -v -E '^(torch|torchvision|setuptools)==',cat) constraints.txt \
	  > $(VENV)/constraints.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt \
	  $(TORCH:%=torch==%) -e '.[dev]'
	@$(PY) -m dpexp.cli.ready
	@touch $@

# One thread a worker: the tests are many small tensors, which more threads only slow down. Modules are
# kept as compiled, also where that is turned off: many tests start a Python that imports them all.
test test-long: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --maxprocesses 8 --dist worksteal $(ARGS)

test-long: $(READY)
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --maxprocesses 8 --dist worksteal -m long $(ARGS)

pin-configs: $(READY)
	$(PY) -m tests.pinned_configs

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Read anew each time, as pages are made of conf, results and code, too.
docs: $(READY)
	@rm -rf build/docs build/.docs
	@OMP_NUM_THREADS=1 $(PY) -m sphinx -q -W --keep-going -c docs -d build/.docs . build/docs
	@echo 'Open build/docs/index.html in a browser.'

bench: $(READY)
	$(PY) -m scripts.bench $(ARGS)

gpu-report: $(READY)
	$(PY) -m scripts.gpu_report $(ARGS)

verify: $(READY)
	@$(if $(ARGS)$(wildcard results/*/runs/*/result.json),$(PY) -m scripts.verify \
	  $(or $(ARGS),$(patsubst %/result.json,%,$(wildcard results/*/runs/*/result.json))),\
	  echo 'no finished runs yet')

soak: $(READY)
	$(PY) -m scripts.soak $(ARGS)

audit: $(READY)
	OMP_NUM_THREADS=1 $(PY) -m scripts.audit $(ARGS)

attack: $(READY)
	OMP_NUM_THREADS=1 $(PY) -m scripts.attack $(ARGS)

# PAPER and PROFILE as words, but for one that ARGS names where it is not said here.
unsaid = $(if $(and $(filter file,$(origin $(1))),$(filter $(2)=%,$(ARGS))),,$(2)=$($(1)))

lira: $(READY)
	$(PY) -m scripts.lira $(call unsaid,PROFILE,profile) $(or $(ARGS),task=digits)

ARTIFACT = $(PY) -m scripts.artifact $@ $(call unsaid,PAPER,paper) $(call unsaid,PROFILE,profile) \
  $(if $(LAUNCHER),launcher=$(LAUNCHER)) $(ARGS)

table%: $(READY) FORCE
	@$(ARTIFACT)

figure%: $(READY) FORCE
	@$(ARTIFACT)

# Its workers run side by side, so PAPER is passed on only where the caller chose one.
all: $(READY)
	@$(PY) -m scripts.all $(call unsaid,PROFILE,profile) $(if $(filter-out file,$(origin PAPER)),paper=$(PAPER)) \
	  $(if $(LAUNCHER),launcher=$(LAUNCHER)) $(ARGS)

FORCE:

clean:
	rm -rf .venv .venv-torch-* build outputs multirun wandb .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@echo 'make tableN | figureN   regenerate one table or figure into results/<profile>/<paper>/'
	@echo 'make all                every table and figure, and results/<profile>/index.html; the same words'
	@echo '       PAPER=rgp        rgp, lsg, gep, compressive or dpexp; of make all, all but the last unless named'
	@echo '       PROFILE=embedded embedded (no network, minutes), quick (real data), short (few epochs) or paper (GPUs)'
	@echo '       ARGS="epochs=3 results=mine"    overrides; ARGS=plan=true tells the cost, runs none'
	@echo '       LAUNCHER=        a Hydra launcher for the missing cells; empty: this process'
	@echo 'make setup              make .venv from constraints.txt (every other target does so itself)'
	@echo '       PYTHON=python3   the Python to make it with, 3.11 or 3.12'
	@echo '       TORCH=           beside any target: another torch, 2.11.0 to 2.13, in .venv-torch-$$TORCH'
	@echo 'make test               run the tests; ARGS="tests/grad_sample -x" for some of them'
	@echo 'make test-long          what repeats a test at length: every planted break, more seeds, more kills'
	@echo 'make lint               check style, format and types'
	@echo 'make docs               build the site into build/docs, and check its links'
	@echo 'make bench              measure step time and memory into results/bench/; ARGS="--only run" for whole runs'
	@echo 'make gpu-report         on a GPU: its tests and every bench, in 25 minutes; run again to go on; ARGS=--dry'
	@echo 'make verify             recompute every run'"'"'s certificate by another accountant'
	@echo 'make audit              bound every private method'"'"'s epsilon from below, by canaries'
	@echo 'make attack             search for an example that moves a clipped sum by more than its clip norm'
	@echo 'make soak               2,000 steps on two ranks, killed a dozen times: is anything lost?'
	@echo 'make lira               attack models with LiRA; ARGS="task=digits methods=nonprivate,rgp eps=8"'
	@echo 'make clean              remove .venv, .venv-torch-*, caches, multirun and wandb folders; results, data and models stay'
