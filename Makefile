# Everything from a bare machine with Python 3.10 or newer and make:
#
#   make caption [PHOTO=my.jpg]   caption a photo with the bundled model, draw its attention to out/
#                                 (installs what captions on a CPU, without PyTorch, into .venv-light
#                                 unless .venv has everything)
#   make test                     lint, types and tests
#   make test-slow                the long tests: fuzzing, kill matrix, soak
#   make benchmark [PEER=DIR]     times against a peer's checkout and the machine's limits
#   make reproduce [HUMAN=TABLE] [ROOMS=TABLE] [WEB=TABLE] [FLICKR8K=DIR] [FLICKR30K=FILE]
#                                 train the bundled models from the beginning and score them; HUMAN
#                                 has photos captioned by people, ROOMS and WEB may be left out,
#                                 FLICKR30K has captions without photos (text.file)
#   make reproduce-flickr8k       the Flickr8k models alone, soft and hard
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
FLICKR30K ?= data/flickr30k/captions.tsv
HUMAN ?= data/everyday/human.csv
ROOMS ?= null
WEB ?= null
# Further options for every training of make reproduce
OPTIONS ?=

python := $(VENV)/bin/python
installed := $(VENV)/installed
# An environment with everything serves for captions too.
captioning := $(if $(wildcard $(installed)),$(VENV),$(LIGHT))

export PHOTO
unexport PYTHONHOME

.PHONY: caption test test-slow benchmark reproduce reproduce-flickr8k reproduce-flickr8k-soft docs dist oldest lint types format lock light-lock audit clean

caption: $(captioning)/installed
	@photo=$$PHOTO; \
	test -n "$$photo" || photo=$$($(captioning)/bin/python -c \
	  'import matplotlib.cbook as c; print(c.get_sample_data("grace_hopper.jpg", asfileobj=False))') || exit; \
	$(captioning)/bin/python caption.py "$$photo" --output out

# Files stay with one process, so that what a file's tests share is made once. One thread a process:
# more of them than cores wait for each other, and the suite takes twice as long. One process more than
# cores gains nothing. Bytecode is kept: without, each process rewrites the assertions of all tests.
test: lint types
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(python) -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# Not in parallel: some of them measure time and memory.
test-slow: $(installed)
	OMP_NUM_THREADS=1 $(python) -m pytest -m slow

benchmark: $(installed)
	$(python) -m benchmarks $(if $(PEER),--peer "$(PEER)")

# Each step begins with the one before; what was interrupted goes on where it stopped. A recipe names
# its base; where a step is trained again with other settings, they are given as options.
# $(1): the run's folder in runs/; $(2): the recipe and options; $(3): the roots of its data sets
train_on = $(python) train.py --config configs/$(2) --train.output runs/$(1) --data.root $(3) $(OPTIONS) \
	$$(test ! -e runs/$(1)/last -a ! -e runs/$(1)/previous || echo --resume)
train = $(call train_on,$(1),$(2),"$(FLICKR8K)")
# $(1): a folder in runs/; $(2): format, $(3): root and $(4): split of a data set; $(5): the result
evaluate_on = $(python) -m captioner evaluate --checkpoint runs/$(1) --format $(2) --root "$(3)" \
	--split $(4) --output runs/$(1)/$(5).json
evaluate = $(call evaluate_on,$(1),flickr8k,$(FLICKR8K),dev,validation)
# $(1): soft or hard; $(2): the runs, $(3): their average
average = test -e runs/flickr8k_$(1)_$(3) || $(python) -m captioner average \
	$(addprefix runs/flickr8k_$(1)_,$(2) $(3))
text := --text.file "$(FLICKR30K)"
taught := --loss.teachers "[runs/flickr8k_soft_larger/best]"
longer := flickr8k_hard_deeper.yaml --train.start_from runs/flickr8k_hard_deeper_averaged \
	--optim.lr 4e-4 --optim.encoder_lr 8e-5
two_sources := "flickr8k=$(FLICKR8K),human=$(HUMAN),web=$(WEB)"
without_web := "flickr8k=$(FLICKR8K),human=$(HUMAN),rooms=$(ROOMS)"
all_sources := "flickr8k=$(FLICKR8K),human=$(HUMAN),rooms=$(ROOMS),web=$(WEB)"

reproduce: $(installed)
	@test -e "$(HUMAN)" || { echo "error: HUMAN names no table of photos captioned by people" \
	  "($(HUMAN)): CSV or JSONL with the columns image, caption and split" >&2; exit 2; }
	test -e runs/flickr8k_soft_larger/validation.json || $(MAKE) reproduce-flickr8k-soft
	$(call train_on,everyday_soft_web,everyday_soft_web.yaml,$(two_sources)) $(text) \
	  --train.start_from runs/flickr8k_soft_larger/best
	$(call train_on,everyday_soft,everyday_soft.yaml,$(two_sources)) $(text)
	$(call train_on,everyday_soft_longer,everyday_soft_longer.yaml,$(all_sources)) $(text)
	$(call train_on,everyday_soft_large_batches,everyday_soft_large_batches.yaml,$(all_sources)) $(text)
	$(call train_on,everyday_soft_distilled,everyday_soft_distilled.yaml,$(all_sources))
	$(call train_on,everyday_hard,everyday_hard.yaml,$(without_web))
	$(call train_on,everyday_hard_second,everyday_hard.yaml,$(without_web)) \
	  --loss.distillation 0.8 --train.seed 65
	test -e runs/everyday_hard_averaged || $(python) -m captioner average runs/everyday_hard/best \
	  runs/everyday_hard_second/best runs/everyday_soft_distilled/best runs/everyday_hard_averaged
	$(call evaluate,everyday_soft_distilled)
	$(call evaluate,everyday_hard_averaged)
	$(call evaluate_on,everyday_soft_distilled,table,$(HUMAN),val,everyday)
	$(call evaluate_on,everyday_hard_averaged,table,$(HUMAN),val,everyday)

reproduce-flickr8k-soft: $(installed)
	@test -e "$(FLICKR30K)" || { echo "error: FLICKR30K names no file of captions without photos" \
	  "($(FLICKR30K)): lines of photo id, a tab and a caption" >&2; exit 2; }
	$(call train,flickr8k_soft,flickr8k_soft.yaml)
	$(call train,flickr8k_soft_refined,flickr8k_soft_refined.yaml)
	$(call train,flickr8k_soft_text,flickr8k_soft_text.yaml) $(text)
	$(call train,flickr8k_soft_consensus,flickr8k_soft_text.yaml) --loss.consensus 1
	$(call average,soft,text consensus,averaged)
	$(call train,flickr8k_soft_both,flickr8k_soft_text.yaml) $(text) --loss.consensus 0.5 \
	  --text.weight 1 --train.start_from runs/flickr8k_soft_averaged --train.epochs 2
	$(call average,soft,text consensus both,three)
	$(call train,flickr8k_soft_views,flickr8k_soft_views.yaml) $(text)
	$(call train,flickr8k_soft_larger,flickr8k_soft_larger.yaml) $(text)
	$(call evaluate,flickr8k_soft_larger)

reproduce-flickr8k: reproduce-flickr8k-soft
	$(call train,flickr8k_hard_text,flickr8k_hard_first.yaml) $(text)
	$(call train,flickr8k_hard_consensus,flickr8k_hard_first.yaml) --loss.consensus 0.5 \
	  --loss.visual_concepts 0 --attention.semi_sampling 0.3 --optim.lr 3e-4 \
	  --optim.encoder_lr 5e-5 --train.start_from runs/flickr8k_soft_three
	$(call average,hard,text consensus,averaged)
	$(call train,flickr8k_hard_taught,flickr8k_hard_taught.yaml)
	test -e runs/flickr8k_hard_begun || $(python) -m captioner average \
	  runs/flickr8k_hard_taught/best runs/flickr8k_soft_larger/best runs/flickr8k_hard_begun
	$(call train,flickr8k_hard,flickr8k_hard.yaml) --train.start_from runs/flickr8k_hard_begun $(taught)
	test -e runs/flickr8k_hard_mixed || $(python) -m captioner average \
	  runs/flickr8k_hard runs/flickr8k_hard runs/flickr8k_hard runs/flickr8k_soft_larger \
	  runs/flickr8k_hard_mixed
	$(call train,flickr8k_hard_deeper,flickr8k_hard_deeper.yaml) $(taught)
	test -e runs/flickr8k_hard_deeper_averaged || $(python) -m captioner average \
	  runs/flickr8k_hard_deeper/best runs/flickr8k_hard_deeper/last runs/flickr8k_hard_deeper_averaged
	$(call train,flickr8k_hard_longer,$(longer)) $(taught) --train.seed 31
	$(call train,flickr8k_hard_second,$(longer)) $(taught) --train.seed 32 --loss.distillation 0.7
	test -e runs/flickr8k_hard_bundled || $(python) -m captioner average \
	  runs/flickr8k_hard_longer/last runs/flickr8k_hard_second/last runs/flickr8k_hard_bundled
	$(call evaluate,flickr8k_hard_bundled)

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
