//go:build pgx

package main

import _ "github.com/jackc/pgx/v4/stdlib"

const (
	driver = "pgx"
	dsn    = "sslmode=disable statement_cache_mode=describe"
)
