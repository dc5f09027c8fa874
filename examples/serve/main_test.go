package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServesWhileItTrains(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-addr", "localhost:0", "-pause", "1ms", "-leak"}, in, io.Discard)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url := line[strings.Index(line, "http://") : len(line)-1]

	answer, err := http.Get(url + "marks") // the first mark comes after the weights are loaded
	require.NoError(t, err)
	defer answer.Body.Close()
	marks := bufio.NewScanner(answer.Body)
	marks.Buffer(nil, 1<<20)
	for seen := 0; seen < 3; {
		require.True(t, marks.Scan())
		if strings.HasPrefix(marks.Text(), "event: mark") {
			seen++
		}
	}
	report, err := http.Get(url + "report")
	require.NoError(t, err)
	defer report.Body.Close()
	page, err := io.ReadAll(report.Body)
	require.NoError(t, err)
	assert.Contains(t, string(page), "(4096, 1024)")
	assert.Contains(t, string(page), "OptimizerState")

	cancel()
	assert.NoError(t, <-done)
}

func TestEndsAfterItsSteps(t *testing.T) {
	require.NoError(t, run(t.Context(), []string{"-addr", "localhost:0", "-pause", "0", "-steps", "2"}, io.Discard, io.Discard))
	assert.Error(t, run(t.Context(), []string{"-addr", "nowhere:x"}, io.Discard, io.Discard))
	assert.Error(t, run(t.Context(), []string{"-nothing"}, io.Discard, io.Discard))
}
