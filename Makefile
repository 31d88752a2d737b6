# outbox - transactional outbox, work queue and fan-in joins for PostgreSQL
#
#   make && sudo make install   build for the server that pg_config belongs to
#   make help                   everything else

EXTENSION = outbox
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" outbox.control)

MODULE_big = outbox
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))

SQL_PARTS = $(addprefix src/sql/,$(shell cat src/sql/MANIFEST))
DATA_built = $(EXTENSION)--$(EXTVERSION).sql
DATA = $(wildcard src/sql/upgrade/$(EXTENSION)--*--*.sql)

PG_CPPFLAGS = -DOUTBOX_VERSION='"$(EXTVERSION)"'
PGFILEDESC = "outbox - transactional outbox, work queue and fan-in joins"
EXTRA_CLEAN = results/ output_iso/ tmp_check/ tmp_check_iso/ regression.diffs regression.out log/

# The bitcode would only serve to inline our functions into others.
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

$(OBJS): $(wildcard src/*.h)

$(DATA_built): outbox.control src/sql/MANIFEST $(SQL_PARTS)
	for part in $(SQL_PARTS); do cat $$part; echo; done > $@
