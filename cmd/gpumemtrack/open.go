package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const stdinName = "standard input"

func addDeviceFlag(cmd *cobra.Command, device *int) {
	cmd.Flags().IntVar(device, "device", -1, "in a file of several devices, the `NUMBER` of one (default: the device with the most memory)")
	cmd.Flags().Lookup("device").DefValue = "0" // help prints no default
}

// open reads what a word names: a file, - for standard input, or the URL of a live
// page. It may unpack to as much as the limit; 0 is the usual one.
func (a *app) open(word string, limit alloc.Bytes) (*files.File, error) {
	switch {
	case word == "-":
		r, err := bounded.NewReader(a.stdin, int64(limit))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", stdinName, err)
		}
		f, err := files.Read(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", stdinName, err)
		}
		f.Usage.Name = stdinName
		return f, nil
	case isURL(word):
		return fetch(word, limit)
	}
	f, err := files.OpenWithin(word, limit)
	if errors.Is(err, files.ErrFormat) {
		err = withRightCommand(err, word)
	}
	return f, err
}

func isURL(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://")
}

var errNoRecord = errors.New("want a dump, or a memory snapshot of PyTorch")

// openRecord reads the record of a device; -1 is the one with most memory.
func (a *app) openRecord(word string, device int) (*snapshot.Record, error) {
	f, err := a.open(word, 0)
	if err != nil {
		return nil, err
	}
	if f.Record == nil {
		return nil, fmt.Errorf("%s is a %s: %w", word, f.Format, errNoRecord)
	}
	if device < 0 {
		return f.Record, nil
	}
	for _, r := range append([]*snapshot.Record{f.Record}, f.Record.Others...) {
		if r.Snapshot.Ordinal == device {
			return r, nil
		}
	}
	return nil, usageError("--device %d: %s has no such device", device, word)
}

// fetch reads the dump of a live page.
func fetch(address string, limit alloc.Bytes) (*files.File, error) {
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
		return nil, fmt.Errorf("no live page answers: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%v: %s: want the URL of a live page, such as http://localhost:6061/debug/gpumem/", u, answer.Status)
	}
	r, err := bounded.NewReader(answer.Body, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("%v: %w", u, err)
	}
	f, err := files.Read(r)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", u, err)
	}
	f.Usage.Name = address
	return f, nil
}
