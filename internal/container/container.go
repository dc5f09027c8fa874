// Package container tells in which container, pod or service a process runs, by its control group.
package container

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Of names the container of a process: "docker 0123456789ab", "pod UID, containerd 0123456789ab",
// "podman 0123456789ab", "unit train.service". It is "" if there is none, if the process is gone, and for a
// process in the caller's own container, in which control groups have no names.
func Of(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	return parse(string(text))
}

var (
	// A pod's UID has underscores in a slice of systemd. A static pod's UID is a hash.
	podName = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice|[/:]|$)`)
	// A container's number stands alone in a folder, or after the name of its runtime.
	containerName = regexp.MustCompile(`(?:^|[/:])(?:([a-z][a-z-]*)[-:])?([0-9a-f]{64})(?:\.scope)?(?:[/:]|$)`)
	unitName      = regexp.MustCompile(`/([^/]+\.service)(?:/|$)`)
)

// runtimes are the names in control groups, and what people call them.
var runtimes = map[string]string{"docker": "docker", "cri-containerd": "containerd", "nerdctl": "containerd", "libpod": "podman", "crio": "cri-o"}

// parse reads /proc/PID/cgroup: lines of number, controllers and path. One path is enough. Containers may be nested, as where
// Docker runs in Docker: the innermost counts.
func parse(text string) string {
	unit := ""
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		_, path, _ := strings.Cut(rest, ":")
		words := make([]string, 0, 2)
		if pods := podName.FindAllStringSubmatch(path, -1); pods != nil {
			words = append(words, "pod "+strings.ReplaceAll(pods[len(pods)-1][1], "_", "-"))
		}
		if runtime, id := containerOf(path); id != "" {
			words = append(words, runtime+" "+id[:12])
		}
		if len(words) > 0 {
			return strings.Join(words, ", ")
		}
		units := unitName.FindAllStringSubmatch(path, -1)
		if len(units) > 0 && unit == "" {
			unit = units[len(units)-1][1]
		}
	}
	if unit == "" || strings.HasPrefix(unit, "user@") { // all that a user started
		return ""
	}
	return "unit " + unit
}

func containerOf(path string) (runtime, id string) {
	for rest := path; ; {
		at := containerName.FindStringSubmatchIndex(rest)
		if at == nil {
			return runtime, id
		}
		id = rest[at[4]:at[5]]
		name := ""
		switch {
		case at[2] >= 0:
			name = rest[at[2]:at[3]]
		case strings.Contains(path, "/docker/"):
			name = "docker"
		}
		if runtime = runtimes[name]; runtime == "" {
			runtime = "container"
		}
		rest = rest[at[5]:]
	}
}
