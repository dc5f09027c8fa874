// Package request checks what a page is asked: the parameters, and the host. It answers nothing but refusals.
package request

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Query parses the parameters of a request. It keeps the first error, so that a page reads all
// parameters and then calls Refused once.
type Query struct {
	values url.Values
	asked  []string // names that the page knows
	err    error
}

// New returns the parameters of a request.
func New(r *http.Request) *Query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	return &Query{values: values, err: err}
}

// Text returns a parameter's text, "" if it is not there.
func (q *Query) Text(name string) string {
	q.asked = append(q.asked, name)
	all := q.values[name]
	if len(all) > 1 {
		q.Fail("%s is there %d times", name, len(all))
	}
	return q.values.Get(name)
}

// Number reads a number from 0 to the most; 0 if it is not there.
func (q *Query) Number(name string, most int) int {
	text := q.Text(name)
	if !q.values.Has(name) {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		q.Fail("%s=%q: want a number from 0 to %d", name, text, most)
		return 0
	}
	return n
}

// Has reports whether a parameter is there.
func (q *Query) Has(name string) bool { return q.values.Has(name) }

// List returns the texts of a parameter that may be there several times, at most a number of them.
func (q *Query) List(name string, most int) []string {
	q.asked = append(q.asked, name)
	all := q.values[name]
	if len(all) > most {
		q.Fail("%s is there %d times: want at most %d", name, len(all), most)
		return nil
	}
	return all
}

// Float reads a finite number from the least to the most; what is otherwise if it is not there.
func (q *Query) Float(name string, least, most, otherwise float64) float64 {
	text := q.Text(name)
	if !q.values.Has(name) {
		return otherwise
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= least && f <= most) {
		q.Fail("%s=%q: want a number from %g to %g", name, text, least, most)
		return otherwise
	}
	return f
}

// Word reads one of some words; the first if it is not there.
func (q *Query) Word(name string, words ...string) string {
	text := q.Text(name)
	switch {
	case !q.values.Has(name):
		return words[0]
	case !slices.Contains(words, text):
		q.Fail("%s=%q: want %s", name, text, strings.Join(words, ", "))
		return words[0]
	}
	return text
}

// Flag reads what is on or off; it is off if it is not there.
func (q *Query) Flag(name string) bool {
	text := q.Text(name)
	if !q.values.Has(name) {
		return false
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		q.Fail("%s=%q: want 1 or true, 0 or false", name, text)
	}
	return on
}

// Fail notes that a parameter is wrong. The first such error is kept.
func (q *Query) Fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf(format, args...)
	}
}

// Err returns what is wrong with the parameters. Call it after all were read: one that was not is unknown.
func (q *Query) Err() error {
	for _, name := range slices.Sorted(maps.Keys(q.values)) {
		switch {
		case slices.Contains(q.asked, name):
		case len(q.asked) == 0:
			q.Fail("no parameter %q here: this page takes none", name)
		default:
			q.Fail("no parameter %q here: this page takes %s", name, strings.Join(q.asked, ", "))
		}
	}
	return q.err
}

// Refused answers 400, and returns true, if a parameter is wrong or unknown.
func (q *Query) Refused(w http.ResponseWriter) bool {
	err := q.Err()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err != nil
}

// AllowsHost reports whether a Host header is allowed: a numeric address, localhost, a name that ends in ".localhost", or one of
// the hosts. An empty one is: browsers always send one. The check stops DNS rebinding, where a web page points its own name at
// this program's address: the browser then sends that name.
func AllowsHost(host string, hosts map[string]bool) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return true
	}
	name = CanonicalHost(name)
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || hosts[name]
}

// CanonicalHost returns the form of a host's name that AllowsHost looks up.
func CanonicalHost(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
