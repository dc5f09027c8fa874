package top

import (
	"os"
	"os/exec"
	"os/user"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFactsOfProcesses(t *testing.T) {
	ended := exec.Command("true")
	require.NoError(t, ended.Run())
	table, me, gone := newProcessTable(), os.Getpid(), ended.Process.Pid
	first := table.sample([]int{me, me, gone})
	assert.Negative(t, first[me].CPU, "there was no look before")
	assert.GreaterOrEqual(t, first[me].Age, time.Duration(0))
	assert.Less(t, first[me].Age, time.Hour)
	who, err := user.Current()
	require.NoError(t, err)
	assert.Equal(t, who.Username, first[me].User)
	assert.Equal(t, unknownProcess, first[gone])
	_, before, _ := timesOf(me)
	for used := before; used == before; { // until the processor's time is seen to grow
		_, used, _ = timesOf(me)
	}
	assert.Positive(t, table.sample([]int{me})[me].CPU)
}
