# Everything from a bare machine with Python 3.10 or newer and make:
#
#   make caption [PHOTO=my.jpg]   caption a photo with the bundled model, draw its attention to out/
#                                 (installs what captions on a CPU, without PyTorch, into .venv-light
#                                 unless .venv has everything)
#   make test                     lint, types and tests
#   make test-slow                the long tests: fuzzing, kill matrix, hostile clients behind nginx
#   make benchmark [PEER=DIR]     times against a peer's checkout and the machine's limits
#   make reproduce PEOPLE=TABLE [FLICKR8K=DIR]
#                                 train the bundled models from the beginning and score them; PEOPLE
#                                 is a table of photos captioned by people
#   make pictures                 make every picture of the docs with the bundled models
#   make docs                     build the docs site into out/site
#   make dist                     sdist and wheel; the wheel captions a photo in an empty environment
#   make oldest                   the same, and training, with the oldest libraries that are allowed
#                                 and PyTorch (several GB)
#   make lint | types | format    one of them; format rewrites the files
#   make lock                     renew both lock files to the newest versions
#   make light-lock               renew requirements-light.lock alone
#   make audit                    known vulnerabilities of the pinned versions; needs the network
#   make clean                    remove what was made; the environments too
#
# The first run installs the pinned versions, into .venv but for make caption. For another Python: make clean, then make
# caption PYTHON=python3.12 (or test).

PYTHON ?= python3
VENV ?= .venv
LIGHT ?= .venv-light
PHOTO ?=
PEER ?=
FLICKR8K ?= data/flickr8k
PEOPLE ?= data/everyday/people.csv
# Further options for every training of make reproduce
OPTIONS ?=

python := $(VENV)/bin/python
installed := $(VENV)/installed
# An environment with everything serves for captions too.
captioning := $(if $(wildcard $(installed)),$(VENV),$(LIGHT))

export PHOTO
unexport PYTHONHOME

.PHONY: caption test test-slow benchmark reproduce pictures docs dist oldest lint types format lock light-lock audit clean

caption: $(captioning)/installed
	$(captioning)/bin/python caption.py "$${PHOTO:-docs/photos/kite.jpg}" --output out

# Files stay with one process, so that what a file's tests share is made once. One thread a process:
# more of them than cores wait for each other, and the suite takes twice as long. One process more than
# cores gains nothing. Bytecode is kept: without, each process rewrites the assertions of all tests. A
# test that hangs fails after three minutes, and says where it was.
test: lint types
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(python) -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile \
	  -o faulthandler_timeout=180 -o faulthandler_exit_on_timeout=true

# Not in parallel: some of them measure time and memory.
test-slow: $(installed)
	OMP_NUM_THREADS=1 $(python) -m pytest -m slow

benchmark: $(installed)
	$(python) -m benchmarks $(if $(PEER),--peer "$(PEER)")

# The bundled models, from ImageNet's encoder and captioned photos; what was interrupted goes on where it
# stopped. PEOPLE is a table of photos captioned by people (image, caption, split).
# $(1): the run's folder in runs/; $(2): the recipe and options
train = $(python) train.py --config configs/$(2) --train.output runs/$(1) \
	--data.root "flickr8k=$(FLICKR8K),people=$(PEOPLE)" $(OPTIONS) \
	$$(test ! -e runs/$(1)/last -a ! -e runs/$(1)/previous || echo --resume)
evaluate = $(python) -m captioner evaluate --checkpoint runs/$(1) --format $(2) --root "$(3)" \
	--split $(4) --output runs/$(1)/$(5).json

reproduce: $(installed)
	@test -e "$(PEOPLE)" || { echo "error: PEOPLE names no table of photos captioned by people" \
	  "($(PEOPLE)): a table with the columns image, caption and split" >&2; exit 2; }
	$(call train,bundled_teacher_1,bundled_teacher.yaml)
	$(call train,bundled_teacher_2,bundled_teacher.yaml) --train.seed 2 --encoder.trainable_from blocks.3
	$(call train,bundled_teacher_3,bundled_teacher.yaml) --config configs/families/top_down.yaml --train.seed 3
	$(call train,bundled_soft,bundled_soft.yaml)
	$(call train,bundled_soft_self_critical,bundled_soft_self_critical.yaml)
	$(call train,bundled_hard,bundled_hard.yaml)
	$(foreach model,bundled_soft_self_critical bundled_hard, \
	  $(call evaluate,$(model),flickr8k,$(FLICKR8K),dev,validation) && \
	  $(call evaluate,$(model),table,$(PEOPLE),val,everyday) &&) true

pictures: $(installed)
	$(python) -m docs.make_pictures

docs: $(installed)
	$(python) -m mkdocs build --strict

# Captions and draws a photograph from a wheel alone, in an environment of its own.
# $(1): the environment to make; $(2): libraries to install before the wheel; $(3): options of caption
smoke = $(python) -m uv venv --quiet --clear --python $(python) $(1) && \
	$(if $(2),$(python) -m uv pip install --quiet --python $(1)/bin/python $(2) &&) \
	$(python) -m uv pip install --quiet --python $(1)/bin/python dist/*.whl && \
	cd dist && ../$(1)/bin/captioner doctor && \
	samples=$$(../$(1)/bin/python -c 'import matplotlib as m; print(m.get_data_path() + "/sample_data")') && \
	rm -rf smoke && ../$(1)/bin/captioner caption "$$samples/grace_hopper.jpg" --output smoke $(3)

dist: $(installed)
	rm -rf dist
	$(python) -m uv build --quiet --no-build-isolation --python $(python) --out-dir dist
	$(call smoke,out/empty)

oldest: dist
	$(call smoke,out/oldest,--resolution lowest-direct -r pyproject.toml --extra train,--engine torch) && \
	printf 'image,caption\n%s/grace_hopper.jpg,a woman in a uniform\n%s/logo2.png,a blue word\n%s/Minduka_Present_Blue_Pack.png,a blue present\n' \
	  "$$samples" "$$samples" "$$samples" > smoke/own.csv && \
	../out/oldest/bin/captioner finetune smoke/own.csv --output smoke/run --train.epochs 1 && \
	../out/oldest/bin/captioner caption "$$samples/grace_hopper.jpg" --checkpoint smoke/run

lint: $(installed)
	$(python) -m ruff check .
	$(python) -m ruff format --check .

types: $(installed)
	$(python) -m mypy

format: $(installed)
	$(python) -m ruff check --fix --exit-zero --quiet .
	$(python) -m ruff format .

# $(1): further options, $(2): the file
compile = $(python) -m uv pip compile pyproject.toml $(1) --universal --python-version 3.10 \
	--upgrade --generate-hashes --no-emit-index-url --custom-compile-command "make lock" \
	--quiet --output-file $(2)

lock: $(installed) light-lock
	$(call compile,--all-extras --group dev --group docs --group test,requirements.lock)

light-lock: $(installed)
	$(call compile,,requirements-light.lock)

audit: $(installed)
	$(python) -m uv tool run pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

clean:
	rm -rf $(VENV) $(LIGHT) out build dist captioner.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The file `installing` stands in the environment until the install is complete and is then renamed
# to `installed`: an install that was cut off is begun again, a complete one is brought up to date.
$(installed): requirements.lock
	@echo "Installing the pinned libraries into $(VENV): several GB with PyTorch, once, some minutes."
	$(install)

$(LIGHT)/installed: requirements-light.lock
	@echo "Installing what captions on a CPU into $(LIGHT): some hundred MB, once."
	$(install)

# $(@D): the environment; $<: the lock file
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>&1) || found="not to be found"; \
	  echo "captioner needs Python 3.10 or newer, but '$(PYTHON)' is $$found:" \
	    "install one and name it with make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv module" \
	    "(on Debian and Ubuntu: apt-get install python3-venv)" >&2; \
	  exit 1; }
	@if test -e $(@D)/installing; then rm -rf $(@D); fi
	@mkdir -p $(@D)
	@touch $(@D)/installing
	@rm -f $@
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@mv $(@D)/installing $@
endef
