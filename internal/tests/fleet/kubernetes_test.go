package fleet_test

import (
	"os/exec"
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

type pod struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		HostPID       bool   `yaml:"hostPID"`
		RestartPolicy string `yaml:"restartPolicy"`
		Volumes       []struct {
			Name     string
			EmptyDir struct {
				Medium    string
				SizeLimit string `yaml:"sizeLimit"`
			} `yaml:"emptyDir"`
		}
		Containers []container
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
	help, err := exec.Command("go", "-C", "../../..", "run", "./cmd/gpumemtrack", "attach", "--help").CombinedOutput()
	require.NoError(t, err, "%s", help)
	attach := regexp.MustCompile(`gpumemtrack attach (.*)`).FindStringSubmatch(p.Spec.Containers[1].Command[2])
	require.NotNil(t, attach)
	flags := regexp.MustCompile(`--[a-z]+`).FindAllString(attach[1], -1)
	assert.Equal(t, []string{"--every", "--live", "--pid"}, flags)
	for _, f := range flags {
		assert.Contains(t, string(help), f+" ")
	}
}
