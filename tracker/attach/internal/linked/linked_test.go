package linked

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loaded returns what a process has loaded that is linked with a program: it waits on its standard input.
func loaded(t *testing.T, pid int) (all []string) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if len(fields) == 6 && fields[1] == "r-xp" && strings.Contains(filepath.Base(fields[5]), ".so") && !strings.HasPrefix(filepath.Base(fields[5]), "ld-") {
			all = append(all, fields[5])
		}
	}
	return all
}

// compared starts a program that waits for its input, and compares Libraries with what it has loaded then.
func compared(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer in.Close()
	fmt.Fprintln(in, "begin")
	_, err = out.Read(make([]byte, 1)) // it is past its start
	require.NoError(t, err)
	files := OfProcess(cmd.Process.Pid).Libraries()
	assert.Equal(t, files, OfCommand(cmd.Path, cmd.Dir, cmd.Environ()).Libraries())
	resolved := make(map[string]bool)
	for _, file := range files {
		path, err := filepath.EvalSymlinks(file)
		require.NoError(t, err)
		resolved[path] = true
	}
	want := loaded(t, cmd.Process.Pid)
	for _, path := range want {
		assert.True(t, resolved[path], "%s is not in %v", path, files)
	}
	assert.NotEmpty(t, want)
	return files
}

func TestFilesOfAProgram(t *testing.T) {
	if _, err := exec.LookPath("cat"); err != nil {
		t.Skip(err)
	}
	compared(t, exec.Command("cat"))
}

// TestLoaderSearchPath: by folders in the program or in the library that needs another, and by the environment.
func TestLoaderSearchPath(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "inner"), 0o755))
	gcc := func(code string, args ...string) {
		source := filepath.Join(dir, "source.c")
		require.NoError(t, os.WriteFile(source, []byte(code), 0o600))
		cmd := exec.Command("gcc", append([]string{source, "-Wl,--no-as-needed"}, args...)...)
		cmd.Dir = dir
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	const client = "#include <stdio.h>\nvoid outer(void);\nint main(void) { outer(); putchar(getchar()); fflush(stdout); while (getchar() >= 0); }"
	gcc("void inner(void) {}", "-shared", "-o", "inner/libinner.so")
	for name, flags := range map[string]struct{ library, program, env string }{
		"runpath":     {"-Wl,--enable-new-dtags,-rpath,$ORIGIN/inner", "-Wl,--enable-new-dtags,-rpath,$ORIGIN", ""},
		"rpath":       {"-g", "-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/inner", ""}, // for the libraries of libraries too
		"environment": {"-g", "-g", dir + ":" + dir + "/inner"},
	} {
		t.Run(name, func(t *testing.T) {
			gcc("void inner(void); void outer(void) { inner(); }", "-shared", "-o", "libouter.so", "-Linner", "-linner", flags.library)
			gcc(client, "-o", "client", "-L.", "-louter", "-Wl,-rpath-link,inner", flags.program)
			cmd := exec.Command(filepath.Join(dir, "client"))
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+flags.env)
			files := compared(t, cmd)
			assert.Contains(t, files, filepath.Join(dir, "libouter.so"))
			assert.Contains(t, files, filepath.Join(dir, "inner/libinner.so"))
		})
	}
}

func TestCachesThatAreNone(t *testing.T) {
	assert.Empty(t, ReadCache("/no/such/cache"))
	good, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skip(err)
	}
	assert.NotEmpty(t, ReadCache("/etc/ld.so.cache"))
	file := filepath.Join(t.TempDir(), "cache")
	for _, n := range []int{0, 20, 47, 48, 60, 100, len(good) / 2} {
		require.NoError(t, os.WriteFile(file, good[:n], 0o600))
		for _, paths := range ReadCache(file) {
			assert.NotEmpty(t, paths)
		}
	}
}

func TestFilesOfMissingProcess(t *testing.T) { assert.Empty(t, OfProcess(1<<30).Libraries()) }
