//go:build unix

package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pane is a terminal of tmux's with a shell in it.
type pane struct {
	t      *testing.T
	socket string
}

// inTmux runs a shell command on a terminal of 80 by 24. After it the terminal shows
// its status, and how the terminal treats keys.
func inTmux(t *testing.T, env []string, command string) *pane {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("no tmux here")
	}
	p := &pane{t, filepath.Join(t.TempDir(), "s")}
	cmd := p.command("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24",
		"echo begun; "+command+`; echo "status $?"; stty -a | grep -wo -e icanon -e echo; exec cat`)
	cmd.Env = append(append(os.Environ(), "NO_COLOR=1", "CUDA_VISIBLE_DEVICES=0", "LC_ALL=C.UTF-8"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("tmux starts no terminal here: %v: %s", err, out)
	}
	t.Cleanup(func() { p.command("kill-server").Run() })
	return p
}

func (p *pane) command(args ...string) *exec.Cmd {
	return exec.Command("tmux", append([]string{"-u", "-S", p.socket}, args...)...)
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	out, err := p.command(args...).CombinedOutput()
	require.NoError(p.t, err, "%s", out)
	return string(out)
}

func (p *pane) shown() string { return p.tmux("capture-pane", "-p") }

// see waits until the screen shows a text.
func (p *pane) see(text string) string {
	p.t.Helper()
	shown := ""
	require.NoError(p.t, waitFor(func() bool { shown = p.shown(); return strings.Contains(shown, text) }), "%s never shown:\n%s", text, shown)
	return shown
}

// isBack waits for the command's end, and looks whether the terminal is as it was.
func (p *pane) isBack(status string) {
	p.t.Helper()
	shown := p.see("status " + status)
	assert.Contains(p.t, shown, "begun")
	assert.NotContains(p.t, shown, "gpumemtrack top  ", "the screen before is back")
	p.see("icanon\necho\n")
}

func TestTopOnATerminal(t *testing.T) {
	p := inTmux(t, nil, program+" top --source sim --interval 50ms")
	shown := p.see("450.0 MiB /   24.0 GiB    2 %")
	assert.Contains(t, shown, "gpumemtrack top")
	assert.Contains(t, shown, "MEMORY↓")
	p.see("> ")
	p.tmux("send-keys", "?")
	p.see("hold the picture")
	p.tmux("send-keys", "p")
	p.tmux("send-keys", "?")
	p.see("PID↓")
	p.tmux("resize-window", "-x", "120", "-y", "30")
	require.NoError(t, waitFor(func() bool { return strings.Contains(p.shown(), strings.Repeat(" ", 50)+"q quit") }), p.shown())
	p.tmux("send-keys", "q")
	p.isBack("0")
}

func TestTopEndsWithASignal(t *testing.T) {
	for _, signal := range []string{"TERM", "HUP", "INT"} {
		pid := filepath.Join(t.TempDir(), "pid")
		p := inTmux(t, nil, fmt.Sprintf(`sh -c 'echo $$ >%s; exec %s top --source sim'`, pid, program))
		p.see("MEMORY↓")
		require.NoError(t, exec.Command("sh", "-c", fmt.Sprintf("kill -%s $(cat %s)", signal, pid)).Run())
		p.isBack("0")
	}
}

// The emulated GPU has a process with memory on it.
func TestTopOfAnEmulatedGPU(t *testing.T) {
	dir := t.TempDir()
	if err := buildAlloc(dir); err != nil {
		t.Skip(err)
	}
	cmd := emulated(t, "top", "--interval", "50ms")
	p := inTmux(t, cmd.Env, fmt.Sprintf("sleep 60 | %s 1073741824 0 & %s top", filepath.Join(dir, "alloc"), program))
	shown := p.see("1.2 GiB")
	assert.Contains(t, shown, "GPU 0")
	p.tmux("send-keys", "a")
	attached := regexp.MustCompile(`attached to \d+: it has not called the CUDA driver since|attach to \d+: `) // or why it cannot
	require.NoError(t, waitFor(func() bool { return attached.MatchString(p.shown()) }), p.shown())
	p.tmux("send-keys", "q")
	p.isBack("0")
}
