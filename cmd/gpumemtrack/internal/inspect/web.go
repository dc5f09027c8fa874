package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/viewer"
)

// showPage serves the timeline of files until a signal ends it. It answers from the start, and reads the files meanwhile.
func showPage(a *cli.App, words []string, address string) error {
	sources, err := pageSources(a, words)
	if err != nil {
		return err
	}
	if address == "-" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("show --web: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), cli.StopSignals()...)
	defer stop()
	var hosts []string
	if host, _, err := net.SplitHostPort(address); err == nil && host != "" {
		hosts = append(hosts, host)
	}
	v := viewer.New(viewer.Config{Hosts: hosts})
	for _, s := range sources {
		v.Add(s)
	}
	return servePage(ctx, a.Stdout, a.Stderr, listener, v, openBrowser)
}

// pageSources returns the files that the arguments name. Of a directory or pattern, it leaves out those of other kinds. The
// error of a file that is named by itself comes at once.
func pageSources(a *cli.App, words []string) (sources []viewer.Source, err error) {
	skipped := 0
	for _, word := range words {
		paths, err := expand(word)
		if errors.Is(err, os.ErrNotExist) {
			paths, err = []string{word}, nil // to open it says what is wrong
		}
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			in, err := cli.OpenInput(a, path)
			switch {
			case err == nil:
			case path != word && errors.Is(err, files.ErrFormat):
				skipped++
				continue
			default:
				return nil, err
			}
			if path != word && (in.Kind == nil || in.IsLog()) {
				in.Close()
				skipped++
				continue
			}
			sources = append(sources, pageSource(a, in, path))
		}
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s: none of the %d files is a snapshot or dump", strings.Join(words, ", "), skipped)
	}
	return sources, nil
}

// pageSource returns the source of an input. It opens a file again when that is read: there may be thousands.
func pageSource(a *cli.App, in *cli.Input, path string) viewer.Source {
	size := in.Size()
	again := in.CanReopen()
	if again {
		in.Close()
	}
	return viewer.Source{Name: filepath.Base(path), Path: path, Size: size, Read: func(ctx context.Context, p *viewer.Progress) (*files.File, error) {
		if again {
			go func() {
				if f := cli.ReadEarly(a, path); f != nil {
					p.Early(f.Dump.Snapshot)
				}
			}()
			opened, err := cli.OpenInput(a, path)
			if err != nil {
				return nil, err
			}
			in = opened
		}
		defer in.Close()
		defer announced(ctx, in, p)()
		return in.File()
	}}
}

// announced announces how much of an input was read, until the function that it returns is called.
func announced(ctx context.Context, in *cli.Input, p *viewer.Progress) (stop func()) {
	const often = 100 * time.Millisecond
	ctx, stop = context.WithCancel(ctx)
	go func() {
		ticker := time.NewTicker(often)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				p.Bytes(in.Done())
			}
		}
	}()
	return stop
}

// servePage serves a viewer until the context ends, or until it is known that none of its files can be read.
func servePage(ctx context.Context, out, errs io.Writer, listener net.Listener, v *viewer.Viewer, open func(url string) error) error {
	server := &http.Server{Handler: v, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	ended, read := make(chan error, 1), make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	url := fmt.Sprintf("http://%s/?token=%s", cli.LocalAddress(listener), v.Token())
	if _, err := fmt.Fprintf(out, "%s  (Ctrl-C ends it)\n", url); err != nil {
		return errors.Join(err, server.Close()) // nobody knows the address
	}
	go func() { read <- v.Run(ctx) }()
	if err := open(url); err != nil {
		fmt.Fprintf(errs, "%s: %v: open the address above\n", cli.ProgramName, err)
	}
	for {
		select {
		case <-ctx.Done():
			return server.Close()
		case err := <-read:
			if err != nil && ctx.Err() == nil {
				return errors.Join(err, server.Close())
			}
			read = nil
		case err := <-ended:
			return fmt.Errorf("show --web: %w", err)
		}
	}
}

var errNoBrowser = errors.New("no browser can be opened here")

// openBrowser opens a browser without waiting for it.
func openBrowser(url string) error {
	for _, words := range browsers() {
		cmd := exec.Command(words[0], append(words[1:], url)...)
		if cmd.Start() == nil {
			go func() { _ = cmd.Wait() }() // its exit code means nothing: it may have passed the address on
			return nil
		}
	}
	return errNoBrowser
}

// browsers returns the commands to try: $BROWSER, then the system's. A Linux machine without a
// display has none.
func browsers() (found [][]string) {
	if words := strings.Fields(os.Getenv("BROWSER")); len(words) > 0 {
		found = append(found, words)
	}
	switch runtime.GOOS {
	case "darwin":
		return append(found, []string{"open"})
	case "windows":
		return append(found, []string{"rundll32", "url.dll,FileProtocolHandler"})
	}
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return found
	}
	return append(found, []string{"xdg-open"}, []string{"chromium"}, []string{"google-chrome"}, []string{"firefox"})
}
