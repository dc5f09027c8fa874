package container

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	const id, uid, in = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "7f3a1c52-0b1d-4c1e-9d55-0123456789ab", "7f3a1c52_0b1d_4c1e_9d55_0123456789ab"
	const inner = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	for text, want := range map[string]string{
		"": "", "0::/\n": "", "0::/init.scope\n": "", "garbage": "", "::": "",
		"0::/user.slice/user-1000.slice/session-3.scope\n":                                                                                 "",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte.scope\n":                              "",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service\n":                                                       "unit train.service",
		"0::/system.slice/ollama.service\n":                                                                                                "unit ollama.service",
		"0::/system.slice/docker-" + id + ".scope\n":                                                                                       "docker 0123456789ab",
		"12:memory:/docker/" + id + "\n11:cpu,cpuacct:/docker/" + id + "\n":                                                                "docker 0123456789ab",
		"12:memory:/system.slice/sshd.service\n11:cpu:/docker/" + id + "\n":                                                                "docker 0123456789ab",
		"0::/docker/" + id + "/docker/" + inner + "\n":                                                                                     "docker fedcba987654",
		"0::/default/" + id + "\n":                                                                                                         "container 0123456789ab",
		"0::/system.slice/nerdctl-" + id + ".scope\n":                                                                                      "containerd 0123456789ab",
		"0::/machine.slice/libpod-" + id + ".scope/container\n":                                                                            "podman 0123456789ab",
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container\n":                                  "podman 0123456789ab",
		"0::/machine.slice/libpod-conmon-" + id + ".scope\n":                                                                               "container 0123456789ab",
		"0::/kubepods.slice/kubepods-pod" + in + ".slice/cri-containerd-" + id + ".scope\n":                                                "pod " + uid + ", containerd 0123456789ab",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + in + ".slice/crio-" + id + ".scope\n":                       "pod " + uid + ", cri-o 0123456789ab",
		"0::/../../kubepods-besteffort-pod" + in + ".slice/cri-containerd-" + id + ".scope\n":                                              "pod " + uid + ", containerd 0123456789ab",
		"9:devices:/kubepods/burstable/pod" + uid + "/" + id + "\n":                                                                        "pod " + uid + ", container 0123456789ab",
		"9:devices:/kubepods/pod" + strings.ReplaceAll(uid, "-", "") + "/" + id + "\n":                                                     "pod " + strings.ReplaceAll(uid, "-", "") + ", container 0123456789ab",
		"5:memory:/system.slice/containerd.service/kubepods-pod" + in + ".slice:cri-containerd:" + id + "\n":                               "pod " + uid + ", containerd 0123456789ab",
		"0::/system.slice/docker-" + id + ".scope/kubelet.slice/kubelet-kubepods-pod" + in + ".slice/cri-containerd-" + inner + ".scope\n": "pod " + uid + ", containerd fedcba987654",
		"0::/system.slice/docker-0123.scope\n":                                                                                             "",
	} {
		assert.Equal(t, want, parse(text), text)
	}
}

// TestOf asks of a process that is in a control group as Docker names them.
func TestOf(t *testing.T) {
	group := "docker/0123456789abcdef0123456789abcdef0123456789abcdef" + fmt.Sprintf("%016x", os.Getpid())
	var folder string
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids"} {
		if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.procs")); err == nil {
			folder = filepath.Join(hierarchy, group)
		}
	}
	if folder == "" || os.MkdirAll(folder, 0o755) != nil {
		t.Skip("no control groups can be made here")
	}
	t.Cleanup(func() {
		os.Remove(folder)
		os.Remove(filepath.Dir(folder)) // others may be in it
	})
	cat := exec.Command("cat")
	input, err := cat.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cat.Start())
	t.Cleanup(func() { cat.Wait() })
	t.Cleanup(func() { input.Close() })
	require.NoError(t, os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(strconv.Itoa(cat.Process.Pid)), 0))
	assert.Equal(t, "docker 0123456789ab", Of(cat.Process.Pid))
}

// TestOfEndedProcess: a process that has ended is in no container.
func TestOfEndedProcess(t *testing.T) {
	ended := exec.Command(os.Args[0], "-test.run=^$")
	require.NoError(t, ended.Run())
	assert.Empty(t, Of(ended.Process.Pid))
	assert.Empty(t, Of(0))
}
