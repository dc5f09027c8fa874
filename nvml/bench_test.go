//go:build cgo && linux

package nvml

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkRecorder measures one sample of one device, written to a file. FromDevices
// go-nvml's mock it is the recorder's own cost with go-nvml's interface, of
// which the mock allocates, since it keeps each call; over a fake that keeps
// nothing it shows that the recorder itself allocates nothing.
func BenchmarkRecorder(b *testing.B) {
	sources := map[string]func() Source{
		"fake": func() Source { return newFake(1) },
		"mock": func() Source { lib, _ := fullMock(b); return lib },
	}
	for _, name := range []string{"mock", "fake"} {
		b.Run("source="+name, func(b *testing.B) {
			r := benchRecorder(b, sources[name]())
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				sampleNow(r)
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/sample")
		})
	}
}

func benchRecorder(b testing.TB, src Source) *Recorder {
	r, err := NewRecorder(Config{Source: src, Devices: []string{"0"}, Files: []string{b.TempDir() + "/"}})
	require.NoError(b, err)
	b.Cleanup(func() { r.Stop() })
	sampling(b, r)
	return r
}

// cpuTime is what this process has used, in the kernel too.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestRecorderAllocatesNothing(t *testing.T) {
	r := benchRecorder(t, newFake(1))
	sampleNow(r)
	if n := testing.AllocsPerRun(3*defaultPoints, func() { sampleNow(r) }); n != 0 {
		t.Errorf("%v Go allocations a sample", n)
	}
}
