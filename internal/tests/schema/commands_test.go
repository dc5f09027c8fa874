package schema_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestCommandsMatchTheirSchemas holds what replay, explain, leaks, layers, and show and diff of a part print as JSON against the docs.
func TestCommandsMatchTheirSchemas(t *testing.T) {
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command here")
	}
	dir := t.TempDir()
	command := filepath.Join(dir, "gpumemtrack")
	out, err := exec.Command(goCommand, "-C", "../../..", "build", "-ldflags=-s -w", "-o", command, "./cmd/gpumemtrack").CombinedOutput()
	require.NoError(t, err, "%s", out)
	dumps := filepath.Join(dir, "dumps")
	require.NoError(t, os.Mkdir(dumps, 0o700))
	for _, of := range []struct {
		name string
		cfg  tracker.Config
	}{
		{"whole", tracker.Config{}},
		{"late", tracker.Config{MaxEvents: 5}}, // its history begins in the middle
		{"uncached", tracker.Config{NoCache: true, Origin: snapshot.Origin{Host: "node", PID: 7, Program: "train", Rank: new(1), WorldSize: 2}}},
	} {
		f, err := os.Create(filepath.Join(dumps, of.name+".dump.json"))
		require.NoError(t, err)
		tr := exporttest.New(t, of.cfg)
		exporttest.Train(t, tr)
		require.NoError(t, tr.Dump().WriteJSON(f))
		require.NoError(t, f.Close())
	}
	tear(t, dumps)
	seen := make(map[string]bool)
	show := func(name string, args ...string) {
		text, err := exec.Command(command, append(args, "--json")...).Output()
		var exit *exec.ExitError
		require.True(t, err == nil || errors.As(err, &exit) && exit.ExitCode() == 3, "%v: %v", args, err)
		value := parse(t, text)
		assert.NoError(t, schema(t, name).Validate(value), "%v", args)
		for key := range value {
			seen[key] = true
		}
	}
	for _, name := range []string{"whole", "late", "uncached"} {
		path := filepath.Join(dumps, name+".dump.json")
		show("replay", "replay", path)
		show("replay", "replay", path, "--memory", "3MiB")
		show("explain", "explain", path)
	}
	leaky := filepath.Join(dir, "leaky.dump.json")
	f, err := os.Create(leaky)
	require.NoError(t, err)
	tr := exporttest.Leaky(t)
	tr.Do("epoch", func() { tr.Do("step", func() {}) })
	require.NoError(t, tr.Dump().WriteJSON(f))
	require.NoError(t, f.Close())
	show("command-line", "leaks", leaky)
	show("command-line", "layers", leaky)
	whole := filepath.Join(dumps, "whole.dump.json")
	filter := []string{"--focus", "main|step", "--ignore", "nothing", "--kind", "Parameter", "--section", "no section", "--older", "1ns", "--group", "steps=step"}
	show("command-line", append([]string{"show", whole}, filter...)...)
	show("command-line", append([]string{"diff", leaky, whole}, filter...)...)
	show("replay", "replay", filepath.Join(dumps, "torn.json"))
	require.NoError(t, os.Remove(filepath.Join(dumps, "torn.json")))
	show("replay", "replay", filepath.Join(dumps, "whole.dump.json"), "--smallest")
	show("explain", "explain", filepath.Join(dumps, "whole.dump.json"), "--at", "peak")
	show("explain", "explain", dumps)
	show("explain", "explain", filepath.Join("..", "..", "..", "tracker", "export", "internal", "bfc", "testdata", "oom.log"))
	engine := filepath.Join("..", "..", "enginelog", "testdata", "vllm.log")
	show("engine", "show", engine)
	show("engine", "explain", engine)
	texts, err := filepath.Glob(filepath.Join("..", "..", "..", "internal", "oomtext", "testdata", "*.*"))
	require.NoError(t, err)
	require.NotEmpty(t, texts)
	for _, text := range texts {
		show("explain", "explain", text)
	}
	show("xla", "show", filepath.Join("..", "..", "xladump", "testdata", "jit_loss.cpu_after_optimizations-live-range.txt"))
	for _, key := range []string{"live", "runs", "errors", "statistics", "oom", "gap", "results", "settings", "processes", "failures", "no_segments", "memory_bytes", "filter", "filtered_out"} {
		assert.True(t, seen[key], "no output has %s", key)
	}
}

// tear writes the whole dump again without the last event of its history.
func tear(t *testing.T, dumps string) {
	f, err := os.Open(filepath.Join(dumps, "whole.dump.json"))
	require.NoError(t, err)
	defer f.Close()
	in := json.NewDecoder(f)
	in.UseNumber()
	var dump map[string]any
	require.NoError(t, in.Decode(&dump))
	history := dump["history"].(map[string]any)
	events := history["events"].([]any)
	require.NotEmpty(t, events)
	history["events"] = events[:len(events)-1]
	text, err := json.Marshal(dump)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dumps, "torn.json"), text, 0o600))
}
