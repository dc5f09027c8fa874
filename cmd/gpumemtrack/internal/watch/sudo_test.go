package watch

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSudoHint(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no sudo")
	}
	system, venv := filepath.Join(t.TempDir(), "usr", "bin"), filepath.Join(t.TempDir(), "venv")
	systems, venvs := filepath.Join(system, "python"), filepath.Join(venv, "bin", "python")
	require.NoError(t, os.MkdirAll(system, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Dir(venvs), 0o755))
	require.NoError(t, os.WriteFile(systems, nil, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(system, "train"), nil, 0o755))
	require.NoError(t, os.Symlink(systems, venvs))
	bySudo := []string{"SUDO_USER=me", "PATH=" + system}
	users := []string{"PATH=" + filepath.Dir(venvs) + ":" + system, "VIRTUAL_ENV=" + venv}

	const line = `write sudo env "PATH=$PATH" gpumemtrack attach ..., or use attach --preload, which needs no sudo`
	another := "running " + systems + ", which PATH under sudo has first. Your own PATH has " + venvs + ": to run that, " + line
	for _, c := range []struct {
		name, program, found string
		env, before          []string
		want                 string
	}{
		{"another Python", "python", systems, bySudo, users, another},
		{"the same, with what sudo -E leaves", "python", systems, append(bySudo, "VIRTUAL_ENV="+venv), nil, another},
		{"no Python for root", "python", "", bySudo, users, "your own PATH has " + venvs + ", but PATH under sudo is another: to run that, " + line},
		{"not known which is the user's", "python", systems, bySudo, nil, "running " + systems + ", which PATH under sudo has first: to use your own PATH, " + line},
		{"not found, and the user's PATH is not known", "train2", "", bySudo, nil, "PATH under sudo is not your own: to use yours, " + line},
		{"with the user's PATH", "python", venvs, []string{"SUDO_USER=me", "PATH=" + filepath.Dir(venvs)}, users, ""},
		{"no other is known", "train", filepath.Join(system, "train"), bySudo, nil, ""},
		{"the user has the same", "train", filepath.Join(system, "train"), bySudo, users, ""},
		{"nowhere", "train2", "", bySudo, users, ""},
		{"by its path", systems, systems, bySudo, users, ""},
		{"without sudo", "python", systems, bySudo[1:], users, ""},
	} {
		assert.Equal(t, c.want, sudoHint("attach", c.program, c.found, c.env, c.before), c.name)
	}
	assert.NotContains(t, sudoHint("record", "python", systems, bySudo, users), "preload")
}

func TestInvokerEnviron(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, comm, environ string) {
		dir := filepath.Join(proc, pid)
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "comm"), []byte(comm+"\n"), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "environ"), []byte(environ), 0o600))
	}
	process("20", "bash", "PATH=/login\x00")
	process("21", "sudo", "PATH=/home/me/bin:/bin\x00HOME=/home/me\x00")
	process("22", "sudo", "")
	for pid, want := range map[int][]string{21: {"PATH=/home/me/bin:/bin", "HOME=/home/me"}, 20: nil, 22: nil, 99: nil} {
		assert.Equal(t, want, invokerEnviron(proc, pid), pid)
	}
}

// TestACommandThatSudoDoesNotFind: the error has the line that works.
func TestACommandThatSudoDoesNotFind(t *testing.T) {
	t.Setenv("SUDO_USER", "me")
	for _, name := range []string{"attach", "record"} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, 127, run([]string{name, "--", "there-is-no-such"}, nil, &stdout, &stderr))
		assert.Contains(t, stderr.String(), `sudo env "PATH=$PATH" gpumemtrack `+name+` ...`)
	}
}
