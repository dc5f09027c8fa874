package live

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// query parses the parameters of a request. It keeps the first error, so that a page reads all
// parameters and then calls refused once.
type query struct {
	values url.Values
	asked  []string // names that the page knows
	err    error
}

func newQuery(r *http.Request) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	return &query{values: values, err: err}
}

// text returns a parameter's text, "" if it is not there.
func (q *query) text(name string) string {
	q.asked = append(q.asked, name)
	all := q.values[name]
	if len(all) > 1 {
		q.fail("%s is there %d times", name, len(all))
	}
	return q.values.Get(name)
}

// number reads a number from 0 to the most; 0 if it is not there.
func (q *query) number(name string, most int) int {
	text := q.text(name)
	if !q.values.Has(name) {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		q.fail("%s=%q: want a number from 0 to %d", name, text, most)
		return 0
	}
	return n
}

// flag reads what is on or off; it is off if it is not there.
func (q *query) flag(name string) bool {
	text := q.text(name)
	if !q.values.Has(name) {
		return false
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		q.fail("%s=%q: want 1 or true, 0 or false", name, text)
	}
	return on
}

func (q *query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf(format, args...)
	}
}

// refused answers 400, and returns true, if a parameter is wrong or unknown.
func (q *query) refused(w http.ResponseWriter) bool {
	for _, name := range slices.Sorted(maps.Keys(q.values)) {
		switch {
		case slices.Contains(q.asked, name):
		case len(q.asked) == 0:
			q.fail("no parameter %q here: this page takes none", name)
		default:
			q.fail("no parameter %q here: this page takes %s", name, strings.Join(q.asked, ", "))
		}
	}
	if q.err != nil {
		http.Error(w, q.err.Error(), http.StatusBadRequest)
	}
	return q.err != nil
}
