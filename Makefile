# Everything a fresh machine needs is Python 3.11+ and make: the virtual environment is made here.
PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
SOURCES := $(shell find regraft migrators checks repair \( -name '*.py' -o -name '*.css' -o -name '*.html' -o -name '*.po' \) -o -name py.typed 2>/dev/null)
DEMO := demo-library
DEXIE := tests/browser/node_modules/dexie/package.json

.PHONY: help demo test test-extras test-all test-dose test-lowest test-newest browser lint docs messages bench dist app clean

help:
	@echo "make demo     migrate sample_v1 and show the result"
	@echo "make test     run the tests against the installed package (less than five minutes on two cores)"
	@echo "make test-extras  run the thorough tests, all properties, and those that need Ray, object storage, Chroma, Parquet, models or a browser"
	@echo "make test-all run all tests, the slow ones too, in random order (tens of minutes)"
	@echo "make test-lowest, make test-newest  a part of the tests with the oldest or newest dependencies"
	@echo "make browser  install what the tests with a real Chromium need besides it (npm)"
	@echo "make lint     ruff, mypy --strict, and how hard the code is to read"
	@echo "make docs     render the generated parts of the docs anew"
	@echo "make messages bring the messages into the catalog of LANGUAGE (zh)"
	@echo "make bench    measure against the floor (minutes)"
	@echo "make dist     build and check the source distribution and the wheel"
	@echo "make app      build the program to double-click, for this system (dist/regraft)"
	@echo "make clean    remove what these commands made"

# Not compiled on installation: the tests keep compiled modules in a folder of their own.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# uv takes a fifth of pip's time. Where it is not to be had, or does not know the index that pip is told of, pip does it.
QUICKLY := $(BIN)/uv pip install --quiet --python $(BIN)/python --reinstall-package regraft --refresh-package regraft
# What pip is told of indexes and constraints, by its files or by variables (which come last), said to uv.
TELL_UV = eval "$$($(BIN)/python -m pip config list | sort -r | sed -n -e 's/\\n/ /g' \
	-e 's/^[^.]*\.index-url=/export UV_DEFAULT_INDEX=/p' -e 's/^[^.]*\.extra-index-url=/export UV_INDEX=/p' \
	-e 's/^[^.]*\.find-links=/export UV_FIND_LINKS=/p' -e 's/^[^.]*\.constraint=/export UV_CONSTRAINT=/p')"; \
	export UV_INDEX_STRATEGY=unsafe-best-match
PACKAGE := pyproject.toml hatch_build.py README.md LICENSE $(SOURCES)

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	-$(INSTALL) 'uv>=0.5'
	@touch $@

# The package is installed, not linked: tests see what a user gets. pip builds and installs a folder again each time.
$(VENV)/.installed: $(VENV)/.made $(PACKAGE)
	$(INSTALL) .
	@touch $@

$(VENV)/.testing: $(VENV)/.made $(PACKAGE)
	($(TELL_UV); $(QUICKLY) '.[test]' 2> /dev/null) || $(INSTALL) '.[test]'
	@touch $(VENV)/.installed $@

# EXTRAS=test-chroma installs one group alone; the tests of the others are skipped.
EXTRAS ?= test-extras
$(VENV)/.test-%: $(VENV)/.testing
	$(INSTALL) '.[test-$*]'
	@touch $@

# mypy reads the types of the packages that the extras install.
$(VENV)/.linting: $(VENV)/.test-extras
	$(INSTALL) '.[lint]'
	@touch $@

demo: $(VENV)/.installed
	@rm -rf $(DEMO)
	@$(BIN)/regraft migrate sample_v1/cherry-studio.202503141200.zip --to $(DEMO) --yes --fail-on never
	@echo
	@$(BIN)/regraft inspect $(DEMO)/KnowledgeBase/3ef4ee57-45e1-4471-a166-dcdcd2472839
	@rm -rf $(DEMO)

# Python's own cache, wherever it may be written: without it each worker, and each process that a test starts, compiles
# anew what it imports.
test test-extras test-all test-dose: export PYTHONDONTWRITEBYTECODE :=
test test-extras test-all test-dose: export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/.pycache

# A process takes whole files: what their tests share is made once. The longest come first (tests/support/longest.py).
# Assertions are compiled as they stand: pytest takes twice the time of all other compiling to rewrite them. Tests that
# fail are run once more with rewritten ones, which show their values.
PYTEST = $(BIN)/pytest -q --hypothesis-profile $(PROFILE)
RUN_TESTS = $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder --assert plain
SHOW_FAILURES = { status=$$?; [ $$status -ne 1 ] || $(PYTEST) --last-failed --maxfail 20; exit $$status; }
test test-extras: export PYTHONOPTIMIZE :=

# Properties are tried with few examples in make test, and with all of them in make test-extras; DOSE=3 runs one in three
# of the thorough tests.
test: PROFILE := quick
test: $(VENV)/.testing
	$(RUN_TESTS) -m "not slow and not needs and not thorough" || $(SHOW_FAILURES)

test-extras: PROFILE := regraft
test-extras: DOSE ?= 1
test-extras: $(VENV)/.$(EXTRAS)
	$(RUN_TESTS) -m "$(if $(filter test-extras,$(EXTRAS)),(needs or thorough or hypothesis),needs) and not slow" --dose $(DOSE) || $(SHOW_FAILURES)

# All tests in any order, with new examples for the properties; SEED repeats an order.
SEED ?= $(shell date +%s)
test-all: $(VENV)/.test-extras
	$(BIN)/pytest -n 2 -q --hypothesis-profile search --random-order-bucket global --random-order-seed $(SEED)

# One in DOSE of the slow tests.
test-dose: DOSE ?= 4
test-dose: $(VENV)/.test-extras
	$(BIN)/pytest -n 2 -q -m slow --dose $(DOSE)

# A part of the tests, in an environment of its own, with every dependency at its floor or at its newest version.
# DEPENDENCIES are extras, PYTHON_FOR_TESTS is a version that uv finds.
DEPENDENCIES ?= parquet openai indexing testing metrics
PYTHON_FOR_TESTS ?= $(PYTHON)
CORE_TESTS ?= tests/regraft/test_areas.py tests/regraft/test_links.py tests/regraft/test_scratch.py \
	tests/regraft/test_other_systems.py tests/regraft/test_search.py tests/regraft/test_zip_salvage.py \
	tests/regraft/test_config.py tests/regraft/report tests/regraft/formats/test_index_store.py \
	tests/migrators/test_items.py tests/migrators/test_published.py tests/migrators/test_parquet.py \
	tests/checks/test_check_v2.py tests/repair/test_mending.py tests/repair/test_undo.py
test-lowest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
test-lowest test-newest: $(VENV)/.made
	rm -rf $(VENV)/$@
	$(BIN)/uv venv --quiet --python $(PYTHON_FOR_TESTS) $(VENV)/$@
	printf 'pytest>=8.2\npytest-random-order>=1.1\nbabel>=2.14\ncogapp>=3.4\n' > $(VENV)/$@.txt
	$(BIN)/uv pip install --quiet --python $(VENV)/$@ --resolution $(RESOLUTION) \
		-r pyproject.toml $(addprefix --extra ,$(DEPENDENCIES)) -r $(VENV)/$@.txt
	$(BIN)/uv pip install --quiet --python $(VENV)/$@ --no-deps --reinstall-package regraft .
	$(BIN)/uv pip list --python $(VENV)/$@
	$(VENV)/$@/$(notdir $(BIN))/python -P -m pytest -q -m "not slow" $(CORE_TESTS)

# The same bytes on every machine for the same commit.
$(VENV)/.releasing: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[release]'
	@touch $@

dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 1700000000)
dist: $(VENV)/.releasing
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m check_wheel_contents dist/*.whl
	rm -rf $(VENV)/dist && $(PYTHON) -m venv $(VENV)/dist
	$(VENV)/dist/$(notdir $(BIN))/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd $(VENV) && dist/$(notdir $(BIN))/regraft --version

# Without this, or without Chromium, make test-extras skips those tests.
browser: $(DEXIE)

$(DEXIE): tests/browser/package.json
	npm install --prefix tests/browser --no-package-lock --ignore-scripts --no-audit --no-fund --silent
	@touch $@

lint: $(VENV)/.linting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.figures
	$(BIN)/python benchmarks/prose.py . --max 1.0
	$(BIN)/pytest -q tests/project/test_installed.py

docs: $(VENV)/.testing
	$(BIN)/cog -r docs/*.md README.md README.zh.md docs/zh/*.md docs/formats/*.md

# What there is to translate, brought into the catalog of a language (docs/translating.md).
LANGUAGE ?= zh
messages: $(VENV)/.testing
	$(BIN)/python tests/support/catalogs.py $(LANGUAGE)

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.compare

# In an environment of its own: PyInstaller would pack what only tests need.
APP := .venv-app
ifeq ($(OS),Windows_NT)
APP_PYTHON := $(APP)/Scripts/python
else
APP_PYTHON := $(APP)/bin/python
endif
app:
	$(PYTHON) -m venv $(APP)
	$(APP_PYTHON) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps .
	$(APP_PYTHON) -m pip install --quiet --disable-pip-version-check '.[app]'
	$(APP_PYTHON) -P -m PyInstaller --noconfirm --log-level WARN --distpath dist --workpath build packaging/regraft.spec

clean:
	rm -rf $(VENV) $(APP) $(DEMO) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/browser/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
