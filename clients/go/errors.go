package outbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"time"
)

// PermanentError is the error of a message that can never be handled.
type PermanentError struct {
	Text   string
	Reason int
}

func (e *PermanentError) Error() string { return e.Text }

// Permanent makes the message a dead letter with this text.
func Permanent(text string, reason int) error { return &PermanentError{text, reason} }

// RetryError is the error of a message that is handed out again.
type RetryError struct {
	Text  string
	After time.Duration
}

func (e *RetryError) Error() string { return e.Text }

// Retry has the message handed out again after that time.
func Retry(text string, after time.Duration) error { return &RetryError{text, after} }

// ErrLeaseLost says that another worker has the message, or soon will have.
var ErrLeaseLost = errors.New("lease lost")

func state(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

var repeated = regexp.MustCompile("^(08|40001|40P01|57P0[123])")

func repeatable(err error) bool {
	var network net.Error
	return repeated.MatchString(state(err)) || errors.As(err, &network) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// describe is what is recorded of an error: never a text that may quote the payload.
func describe(err error) string {
	var permanent *PermanentError
	var retry *RetryError
	description := ""
	switch {
	case err == nil:
	case errors.As(err, &permanent):
		description = permanent.Text
	case errors.As(err, &retry):
		description = retry.Text
	case errors.Is(err, context.DeadlineExceeded):
		description = "timeout"
	default:
		for inner := err; inner != nil; inner = errors.Unwrap(inner) {
			description = fmt.Sprintf("%T %s", inner, state(err))
		}
	}
	if runes := []rune(description); len(runes) > 500 {
		description = string(runes[:500])
	}
	return strings.TrimSpace(strings.ReplaceAll(description, "\x00", ""))
}
