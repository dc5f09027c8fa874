package goroutines

import (
	"os"
	"os/signal"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

func TestWaitReturnsWhenGoroutinesHaveEnded(t *testing.T) {
	before := stacks()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals) // its goroutine is not the test's
	defer signal.Stop(signals)
	release := make(chan bool)
	go func() { <-release }()
	close(release)
	assert.Empty(t, wait(before))
}

func TestWaitNamesWhatStillRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock needs no patience
		release := make(chan bool)
		before := stacks()
		go func() { <-release }()
		assert.Contains(t, wait(before), "TestWaitNamesWhatStillRuns")
		close(release)
	})
}
