package fleet_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type container struct {
	Name, Image string
	Command     []string
	Ports       []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	ReadinessProbe struct {
		HTTPGet        struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds  int                         `yaml:"periodSeconds"`
		TimeoutSeconds int                         `yaml:"timeoutSeconds"`
	} `yaml:"readinessProbe"`
	SecurityContext struct {
		RunAsUser                *int `yaml:"runAsUser"`
		AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop, Add []string }
	} `yaml:"securityContext"`
	Resources    struct{ Requests, Limits map[string]string }
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type metadata struct {
	Name   string
	Labels map[string]string
}

type podSpec struct {
	HostPID                      bool              `yaml:"hostPID"`
	RestartPolicy                string            `yaml:"restartPolicy"`
	AutomountServiceAccountToken *bool             `yaml:"automountServiceAccountToken"`
	NodeSelector                 map[string]string `yaml:"nodeSelector"`
	Tolerations                  []struct{ Key, Operator, Effect string }
	Volumes                      []struct {
		Name     string
		EmptyDir struct {
			Medium    string
			SizeLimit string `yaml:"sizeLimit"`
		} `yaml:"emptyDir"`
	}
	Containers []container
}

type pod struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   metadata
	Spec       podSpec
}

type daemonSet struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   metadata
	Spec       struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata metadata
			Spec     podSpec
		}
	}
}

// TestSidecarHasWhatAttachNeeds reads the manifest with no field that it does not know.
func TestSidecarHasWhatAttachNeeds(t *testing.T) {
	var p pod
	readYAML(t, "attach-sidecar.yaml", &p)
	assert.Equal(t, "v1 Pod", p.APIVersion+" "+p.Kind)
	require.Len(t, p.Spec.Containers, 2)
	volumes := make(map[string]bool)
	for _, v := range p.Spec.Volumes {
		volumes[v.Name] = true
	}
	name := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	for _, c := range p.Spec.Containers {
		assert.Regexp(t, name, c.Name)
		assert.NotEmpty(t, c.Image)
		for _, m := range c.VolumeMounts {
			assert.True(t, volumes[m.Name] && strings.HasPrefix(m.MountPath, "/"), m.Name)
		}
	}
	program, sidecar := p.Spec.Containers[0], p.Spec.Containers[1]
	assert.True(t, p.Spec.HostPID, "the probes tell the machine's own process numbers")
	assert.ElementsMatch(t, []string{"BPF", "PERFMON", "SYS_PTRACE"}, sidecar.SecurityContext.Capabilities.Add)
	assert.Empty(t, program.SecurityContext.Capabilities.Add, "the program needs none")
	assert.Equal(t, 0, *sidecar.SecurityContext.RunAsUser, "capabilities of other users are not effective")
	assert.Equal(t, "1", program.Resources.Limits["nvidia.com/gpu"])
	require.Len(t, sidecar.Ports, 1)
	assert.Equal(t, 6062, sidecar.Ports[0].ContainerPort)
	assert.Contains(t, scrapeConfigs(t)[1].StaticConfigs[0].Targets, "127.0.0.1:6062", "prometheus.yml has the same port")
}

// TestSidecarScripts has a shell read both scripts, and the command the flags.
func TestSidecarScripts(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	var p pod
	readYAML(t, "attach-sidecar.yaml", &p)
	for _, c := range p.Spec.Containers {
		require.Equal(t, []string{"sh", "-c"}, c.Command[:2])
		out, err := exec.Command(sh, "-n", "-c", c.Command[2]).CombinedOutput()
		assert.NoError(t, err, "%s: %s", c.Name, out)
	}
	help := attachHelp(t)
	attach := regexp.MustCompile(`gpumemtrack attach (.*)`).FindStringSubmatch(p.Spec.Containers[1].Command[2])
	require.NotNil(t, attach)
	flags := regexp.MustCompile(`--[a-z]+`).FindAllString(attach[1], -1)
	assert.Equal(t, []string{"--every", "--live", "--pid"}, flags)
	for _, f := range flags {
		assert.Contains(t, help, f+" ")
	}
}

func attachHelp(t *testing.T) string {
	t.Helper()
	help, err := exec.Command("go", "-C", "../../..", "run", "./cmd/gpumemtrack", "attach", "--help").CombinedOutput()
	require.NoError(t, err, "%s", help)
	return string(help)
}

// TestDaemonSetHasWhatAttachNeeds reads the manifest with no field that it does not know.
func TestDaemonSetHasWhatAttachNeeds(t *testing.T) {
	var d daemonSet
	readYAML(t, "daemonset.yaml", &d)
	assert.Equal(t, "apps/v1 DaemonSet", d.APIVersion+" "+d.Kind)
	assert.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels)
	spec := d.Spec.Template.Spec
	assert.True(t, spec.HostPID, "the probes tell the machine's own process numbers")
	assert.False(t, *spec.AutomountServiceAccountToken, "it asks nothing of the cluster")
	require.Len(t, spec.Containers, 1)
	c := spec.Containers[0]
	assert.ElementsMatch(t, []string{"BPF", "PERFMON", "SYS_PTRACE"}, c.SecurityContext.Capabilities.Add)
	assert.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)
	assert.Equal(t, 0, *c.SecurityContext.RunAsUser, "capabilities of other users are not effective")
	assert.False(t, c.SecurityContext.AllowPrivilegeEscalation)
	require.Len(t, c.Ports, 1)
	assert.Equal(t, 6062, c.Ports[0].ContainerPort)
	assert.Equal(t, c.Ports[0].Name, c.ReadinessProbe.HTTPGet.Port)
	assert.Equal(t, []string{"gpumemtrack", "attach", "--all"}, c.Command[:3])
	assert.Equal(t, ":6062", c.Command[len(c.Command)-1])
	assertFlags(t, strings.Join(c.Command, " "))
}

// TestServiceHasWhatAttachNeeds reads the unit. Where systemd is here, it does so too.
func TestServiceHasWhatAttachNeeds(t *testing.T) {
	unit := string(text(t, "gpumemtrack.service"))
	for _, line := range []string{"AmbientCapabilities", "CapabilityBoundingSet"} {
		assert.Contains(t, unit, "\n"+line+"=CAP_BPF CAP_PERFMON CAP_SYS_PTRACE\n")
	}
	command := regexp.MustCompile(`(?m)^ExecStart=(\S+) (.*)`).FindStringSubmatch(unit)
	require.NotNil(t, command)
	assert.Contains(t, command[2], "attach --all ")
	assertFlags(t, command[2])
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "gpumemtrack.service")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(unit, command[1], self, 1)), 0o644))
	out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "gpumemtrack.service")
}

// assertFlags: the command has the flags.
func assertFlags(t *testing.T, command string) {
	t.Helper()
	help := attachHelp(t)
	for _, f := range regexp.MustCompile(`--[a-z]+`).FindAllString(command, -1) {
		assert.Contains(t, help, f+" ")
	}
}
