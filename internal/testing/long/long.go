// Package long marks tests that go test ./... leaves out unless it is asked for all: comparisons with other programs,
// builds in unusual modes, hours of simulated time. What each of them checks has a shorter test beside it.
package long

import (
	"os"
	"testing"
)

// Env names the environment variable that has all tests run. CI sets it to 1.
const Env = "GPUMEMTRACK_LONG"

// Enabled reports whether all tests are to run.
func Enabled() bool { return os.Getenv(Env) != "" }

// Test skips the test unless all are to run. what completes the sentence "left out: it ...".
func Test(t testing.TB, what string) {
	t.Helper()
	if !Enabled() {
		t.Skipf("left out: it %s (%s=1 runs it)", what, Env)
	}
}
