//go:build !pgx

package main

import _ "github.com/lib/pq"

const (
	driver = "postgres"
	dsn    = "sslmode=disable binary_parameters=yes"
)
