package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lockedBuffer is what a command has written so far.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestAttachAll: a process that attach did not start, from its metrics to the report of the end.
func TestAttachAll(t *testing.T) {
	libs := canAttach(t)
	dir := t.TempDir() // its driver is no other test's
	library := filepath.Join(dir, "libcuda.so.1")
	text, err := os.ReadFile(filepath.Join(libs.Dir, "libcuda.so.1"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(library, text, 0o755))
	command := leaky(t, libs)
	t.Setenv("LD_LIBRARY_PATH", dir)
	path := filepath.Join(t.TempDir(), "client")
	out, err := exec.Command("gcc", "-g", "-O1", "-DLINKED", "-o", path, "../../../../tracker/attach/testdata/client.c", "-L"+dir, "-l:libcuda.so.1", "-lpthread").CombinedOutput()
	require.NoError(t, err, "%s", out)
	signals := make(chan os.Signal, 4) // so that one never ends this test
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)

	for _, file := range []string{"", filepath.Join(dir, "marks.jsonl")} {
		args := []string{"attach", "--all", "--library", library, "--every", "20ms", "--live", "localhost:0", "-o", filepath.Join(dir, "all.dump.json"), "-f"}
		if file != "" {
			args = append(args, "--json="+file)
		}
		var stdout, stderr lockedBuffer
		ended := make(chan int, 1)
		go func() { ended <- run(args, nil, &stdout, &stderr) }()
		address := regexp.MustCompile(`live: (http://\S+)/`)
		require.Eventually(t, func() bool { return address.MatchString(stderr.String()) }, time.Minute, time.Millisecond, stderr.String)
		get := func(page string) string {
			answer, err := http.Get(address.FindStringSubmatch(stderr.String())[1] + page)
			require.NoError(t, err)
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			return string(text)
		}
		client := exec.Command(path, "leak", "2", "wait", "leak", "3")
		in, err := client.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, client.Start())
		live := func(buffers string) bool {
			pattern := fmt.Sprintf(`(?m)^gpumem_live_buffers\{.*pid="%d",program="client".*\} %s$`, client.Process.Pid, buffers)
			return regexp.MustCompile(pattern).MatchString(get("/metrics"))
		}
		var seen bool
		for begin := time.Now(); time.Since(begin) < time.Minute && !seen; time.Sleep(time.Millisecond) {
			seen = live("[235]") // it may have allocated some before it was watched
			if !seen && time.Since(begin) > 100*time.Millisecond {
				io.WriteString(in, "\n") // or all that it had so far
			}
		}
		assert.True(t, seen, get("/metrics"))
		require.NoError(t, in.Close())
		_ = client.Wait()
		require.NoError(t, exec.Command(command[0], command[1:]...).Run())
		assert.Contains(t, get("/list"), "leak[")
		assert.NotContains(t, get("/metrics"), `program="leak"`, "it has ended")
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
		require.Zero(t, <-ended, stderr.String())
		assert.FileExists(t, filepath.Join(dir, "all.dump.json"))
		if file == "" {
			assert.Contains(t, stdout.String(), "At the end of leak[")
			assert.Contains(t, stdout.String(), "At the end of client[")
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		last := make(map[string]int)
		for line := range strings.Lines(string(text)) {
			var mark attachedMark
			require.NoError(t, json.Unmarshal([]byte(line), &mark))
			if mark.End != nil {
				last[mark.Process.Program]++
			}
		}
		assert.Equal(t, map[string]int{"leak": 1, "client": 1}, last, "the last line of each process")
	}
}

// TestWhatIsNotShown: reports of many processes are bounded, and say so.
func TestWhatIsNotShown(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, writeRest(&out, 3, 0))
	require.NoError(t, writeRest(&out, 0, 2))
	assert.Equal(t, "\nand 3 processes and devices more, whose peaks are lower: -o FILE has them\n\n2 processes that ended earlier are no longer known\n", out.String())
}
