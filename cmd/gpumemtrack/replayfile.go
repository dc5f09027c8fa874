package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func addDeviceFlag(cmd *cobra.Command, device *int) {
	cmd.Flags().IntVar(device, "device", -1, "the `NUMBER` of the device, in a file of several; without it, the one with most memory")
}

var errNoRecord = errors.New("want a dump, or a memory snapshot of PyTorch")

// openRecord reads the record of a device from a file or a live page; -1 is the first.
func openRecord(path string, device int) (*snapshot.Record, error) {
	open := files.Open
	if strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://") {
		open = fetch
	}
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	if f.Record == nil {
		return nil, fmt.Errorf("%s is a %s: %w", path, f.Format, errNoRecord)
	}
	if device < 0 {
		return f.Record, nil
	}
	for _, r := range append([]*snapshot.Record{f.Record}, f.Record.Others...) {
		if r.Snapshot.Ordinal == device {
			return r, nil
		}
	}
	return nil, usageError("--device %d: %s has no such device", device, path)
}

// fetch reads the dump of a live page.
func fetch(address string) (*files.File, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, usageError("%w", err)
	}
	if !strings.HasSuffix(u.Path, "/dump") {
		u = u.JoinPath("dump")
	}
	client := http.Client{Timeout: time.Minute}
	answer, err := client.Get(u.String())
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%v: %s", u, answer.Status)
	}
	f, err := files.Read(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", u, err)
	}
	return f, nil
}
