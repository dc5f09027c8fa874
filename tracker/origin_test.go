package tracker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// launch sets the variables of a launcher, and takes away those that the test
// itself may run under.
func launch(t *testing.T, variables map[string]string) {
	for _, name := range []string{
		"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
		"PMI_RANK", "PMI_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
	} {
		t.Setenv(name, variables[name])
	}
}

func TestOriginIsTheLaunchers(t *testing.T) {
	for name, test := range map[string]struct {
		variables map[string]string
		rank      *int
		worldSize int
	}{
		"none":           {nil, nil, 0},
		"torchrun":       {map[string]string{"RANK": "3", "WORLD_SIZE": "8"}, new(3), 8},
		"Open MPI":       {map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, new(0), 2},
		"MVAPICH":        {map[string]string{"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, new(1), 2},
		"MPICH":          {map[string]string{"PMI_RANK": "1", "PMI_SIZE": "2"}, new(1), 2},
		"Horovod":        {map[string]string{"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, new(1), 2},
		"srun":           {map[string]string{"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16"}, new(5), 16},
		"a batch script": {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, nil, 0},
		"torchrun in srun": {map[string]string{
			"RANK": "9", "WORLD_SIZE": "16", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
		}, new(9), 16},
		"by hand":          {map[string]string{"RANK": "2"}, new(2), 0},
		"another's RANK":   {map[string]string{"RANK": "major", "WORLD_SIZE": "8", "PMI_RANK": "1", "PMI_SIZE": "2"}, new(1), 2},
		"no such rank":     {map[string]string{"PMI_RANK": "2", "PMI_SIZE": "2"}, nil, 0},
		"a negative rank":  {map[string]string{"RANK": "-1", "WORLD_SIZE": "8"}, nil, 0},
		"an enormous rank": {map[string]string{"RANK": "99999999999"}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			launch(t, test.variables)
			tr, _ := open(t, tracker.Config{})
			got := tr.LightSnapshot().Origin
			assert.Equal(t, test.rank, got.Rank)
			assert.Equal(t, test.worldSize, got.WorldSize)
			host, err := os.Hostname()
			require.NoError(t, err)
			assert.Equal(t, host, got.Host)
			assert.Equal(t, os.Getpid(), got.PID)
			assert.Equal(t, filepath.Base(os.Args[0]), got.Program)
		})
	}
}

func TestConfigTellsTheOrigin(t *testing.T) {
	launch(t, map[string]string{"RANK": "3", "WORLD_SIZE": "8"})
	want := snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(1), WorldSize: 2}
	tr, _ := open(t, tracker.Config{Origin: want})
	assert.Equal(t, want, tr.Snapshot().Origin)

	tr, _ = open(t, tracker.Config{Origin: snapshot.Origin{Rank: new(0)}})
	got := tr.Snapshot().Origin
	assert.Equal(t, new(0), got.Rank)
	assert.Zero(t, got.WorldSize, "a launcher's is not this rank's")
	assert.NotZero(t, got.PID)
}

func TestOriginPrints(t *testing.T) {
	for want, o := range map[string]snapshot.Origin{
		"":                           {},
		"node-1":                     {Host: "node-1"},
		"train":                      {Program: "train"},
		"train[7] on a":              {Program: "train", PID: 7, Host: "a"},
		"train[7] in docker 01 on a": {Program: "train", PID: 7, Container: "docker 01", Host: "a"},
		"rank 0":                     {Rank: new(0)},
		"rank 1 of 2":                {Rank: new(1), WorldSize: 2},
		"rank 1 on a":                {Rank: new(1), Host: "a"},
		"x, rank 1 on a":             {Program: "x", Rank: new(1), Host: "a"},
		"train[4242], rank 3 of 8 on node-1": {
			Program: "train", PID: 4242, Rank: new(3), WorldSize: 8, Host: "node-1",
		},
	} {
		assert.Equal(t, want, o.String())
	}
}

// rankZero is a snapshot's text that tells the rank: 0 is not "unknown".
func rankZero(t *testing.T) string {
	tr, _ := open(t, tracker.Config{Origin: snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}})
	text, err := tr.Snapshot().MarshalJSON()
	require.NoError(t, err)
	return string(text)
}

func TestOriginIsReadAsItWasWritten(t *testing.T) {
	launch(t, map[string]string{"RANK": "3", "WORLD_SIZE": "8"}) // of the reader
	text := rankZero(t)
	const origin = `"origin":{"host":"node-1","pid":7,"program":"train","rank":0,"world_size":8},`
	require.Contains(t, text, origin)
	s, err := snapshot.Read(strings.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}, s.Origin)

	older := strings.Replace(text, origin, "", 1)
	s, err = snapshot.Read(strings.NewReader(older))
	require.NoError(t, err, "files of before there was an origin")
	assert.Zero(t, s.Origin, "nobody knows it, least of all who reads")
	again, err := s.MarshalJSON()
	require.NoError(t, err)
	assert.NotContains(t, string(again), "origin")
}

func TestOriginsThatCannotBe(t *testing.T) {
	text := rankZero(t)
	for _, wrong := range []string{`"rank":-1`, `"rank":8`, `"rank":"0"`, `"rank":0.5`} {
		_, err := snapshot.Read(strings.NewReader(strings.Replace(text, `"rank":0`, wrong, 1)))
		assert.ErrorContains(t, err, "read snapshot: ", wrong)
	}
	_, err := snapshot.Read(strings.NewReader(strings.Replace(text, `"rank":0`, `"rank":9`, 1)))
	assert.ErrorContains(t, err, "origin: there is no such process: train[7], rank 9 of 8 on node-1")
}

func TestDumpsTellTheOrigin(t *testing.T) {
	origin := snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(2), WorldSize: 8}
	tr := busy(t, tracker.Config{Origin: origin})
	d, err := snapshot.ReadDump(bytes.NewReader(dumped(t, tr)))
	require.NoError(t, err)
	assert.Equal(t, origin, d.Snapshot.Origin)
}
