package nvml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

const (
	// A driver in trouble can hang nvidia-smi, so a run has a limit.
	smiLimit = 20 * time.Second
	// smiWarning is its exit code when a GPU's infoROM is corrupted. All rows are
	// printed all the same.
	smiWarning = 14
)

// runSMI runs the program in the C locale, in which numbers have decimal points.
func runSMI(ctx context.Context, path string, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, smiLimit)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = &stderr
	cmd.WaitDelay = 100 * time.Millisecond // a wrapper's child may hold the pipe
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == smiWarning && len(out) > 0 {
		return out, nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("nvidia-smi: no answer in %v: the driver may hang", smiLimit)
	}
	// It tells its errors on either stream.
	text, _, _ := strings.Cut(strings.TrimSpace(stderr.String()+string(out)), "\n")
	return nil, fmt.Errorf("nvidia-smi: %w: %s", err, text)
}

var invalidField = regexp.MustCompile(`Field "([^"]+)" is not a valid field to query`)

// unknownField returns the field that an error says nvidia-smi does not have, or "".
func unknownField(err error) string {
	if err == nil {
		return ""
	}
	if found := invalidField.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return ""
}
