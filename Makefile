# outbox - transactional outbox, work queue and fan-in joins for PostgreSQL
#
#   make && sudo make install   build for the server that pg_config belongs to
#   make help                   everything else

EXTENSION = outbox
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" outbox.control)

# These bring a server of their own: they install the packages they need, work
# in a temporary directory, and leave nothing else behind. (But cassert keeps
# what it has built in a cache folder.)
PRIVATE_TARGETS = demo check nightly bench soak history sqlsmith versions cassert memory coverage \
	instructions model trace mutants monitoring screens clients migrate packages
# These need no server at all.
PLAIN_TARGETS = help dist
# where dist puts its archive
DIST_DIR = .

ifneq ($(filter $(PRIVATE_TARGETS) $(PLAIN_TARGETS),$(MAKECMDGOALS)),)

$(PRIVATE_TARGETS):
	@src/tools/$@ $(ARGS)

help:
	@sed -n '/^## /,/^$$/s/^## \{0,1\}//p' Makefile

dist:
	git archive --prefix=$(EXTENSION)-$(EXTVERSION)/ \
		-o '$(DIST_DIR)/$(EXTENSION)-$(EXTVERSION).zip' HEAD

.PHONY: $(PRIVATE_TARGETS) $(PLAIN_TARGETS)

else

## make                build the library, the install script and the command line
## make install        install them (as root)
## make demo           see it work, on a private server
## make check          pass all tests, on private servers; ARGS="regress tap:003_restart"
## make model          the models in test/models; ARGS="long lane"
## make trace          traces of the code, followed by the models
## make nightly        the long tests
## make versions       all tests on PostgreSQL 17 and 18 (as root); ARGS=/usr/local/pgsql
## make cassert        all tests on servers with assertions and sanitizers
## make memory         the regression tests under valgrind
## make clients        the clients of all languages; ARGS="python go"
## make migrate        moving messages from other queues, with these from npm
## make history        load, crashes, and a check of what clients were told
## make mutants        is a broken engine noticed by that? ARGS=cursor_goes_too_far
## make sqlsmith       random queries over all functions, views and tables
## make monitoring     metrics and alerts with Prometheus and its exporters
## make packages       packages for Debian, RPM, PGXN and Docker; ARGS="deb /tmp/dir"
## make bench          the benchmark, beside other queues
## make instructions   what counters cost, in instructions of each call
## make soak           a billion messages a day for twice 20 minutes, checked
## make screens        the command line on a terminal
## make installcheck   the regression and isolation tests on your server
## make accept T=name  take over the output of a regression test as expected
## make lint           all static checks
## make indent         format the C sources
## make indent-check   are they formatted?
## make coverage       which lines the tests reach
## make dist           a release archive

MODULE_big = outbox
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))

SQL_PARTS = $(addprefix src/sql/,$(shell cat src/sql/MANIFEST))
DATA_built = $(EXTENSION)--$(EXTVERSION).sql
DATA = $(wildcard src/sql/upgrade/$(EXTENSION)--*--*.sql)

PG_CPPFLAGS = -Isrc -DOUTBOX_VERSION='"$(EXTVERSION)"'
PGFILEDESC = "outbox - transactional outbox, work queue and fan-in joins"

REGRESS = extension enqueue dedupe duplicate claim priority settle reap stream policy operator maintenance security join batch inbox timer trigger publish subscription router trace restored
REGRESS_OPTS = --inputdir=.
# whatever the server's default is
ENCODING = UTF8
NO_LOCALE = 1
# Servers have no prepared transactions by default, and then the specs that need them are
# left out. (The server is asked when this is expanded, by installcheck alone.)
SPECS = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
PREPARED_SPECS = $(filter %_prepared,$(SPECS))
MAX_PREPARED = $(shell '$(bindir)/psql' -XAtq -d postgres -c 'SHOW max_prepared_transactions' 2>/dev/null)
ISOLATION = $(filter-out $(if $(filter 0,$(MAX_PREPARED)),$(info max_prepared_transactions \
	is 0 on this server, so these isolation tests are left out: $(PREPARED_SPECS))$(PREPARED_SPECS)),$(SPECS))
ISOLATION_OPTS = --inputdir=test --outputdir=output_iso --load-extension=outbox

EXTRA_CLEAN = results/ output_iso/ tmp_check/ regression.diffs regression.out log/

# The bitcode would only serve to inline our functions into others.
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq ($(PGXS),)
$(error pg_config was not found: install postgresql-server-dev-all, or set PG_CONFIG)
endif
include $(PGXS)

$(OBJS): $(wildcard src/*.h src/*/*.h)

$(DATA_built): outbox.control src/sql/MANIFEST $(SQL_PARTS)
	for part in $(SQL_PARTS); do cat $$part; echo; done > $@

# The command line has a makefile of its own, since PGXS builds one thing at a time.
# CLI=no is for packages, which have it once, and not for each version of the server.
ifneq ($(CLI),no)
all: cli-all
install: cli-install
uninstall: cli-uninstall
clean distclean maintainer-clean: cli-clean
endif

cli-all cli-install cli-uninstall cli-clean: cli-%:
	$(MAKE) -C cli PG_CONFIG='$(PG_CONFIG)' $*

accept:
	cp results/$(T).out expected/$(T).out

indent lint: all
	@PG_CONFIG=$(PG_CONFIG) src/tools/$@

indent-check: all
	@src/tools/indent --check

.PHONY: accept indent indent-check lint cli-all cli-install cli-uninstall cli-clean

endif
