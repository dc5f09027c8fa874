package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// showPage serves the page of a file until a signal ends it.
func showPage(a *cli.App, word, address string) error {
	f, err := cli.Open(a, word)
	if err != nil {
		return err
	}
	to, _ := cli.FormatOf(".html")
	write, err := cli.Writer(f, to, -1)
	if err != nil {
		return fmt.Errorf("show --web %s: %w", word, err)
	}
	var page bytes.Buffer
	if err := write(&page); err != nil {
		return fmt.Errorf("show --web %s: %w", word, err)
	}
	if address == "-" {
		address = "localhost:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("show --web: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), cli.StopSignals()...)
	defer stop()
	return servePage(ctx, a.Stdout, a.Stderr, listener, page.Bytes(), openBrowser)
}

// servePage serves a page until the context ends.
func servePage(ctx context.Context, out, errs io.Writer, listener net.Listener, page []byte, open func(url string) error) error {
	server := &http.Server{Handler: onePage(page), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	url := fmt.Sprintf("http://%s/", listener.Addr())
	if _, err := fmt.Fprintf(out, "%s  (Ctrl-C ends it)\n", url); err != nil {
		return errors.Join(err, server.Close()) // nobody knows the address
	}
	if err := open(url); err != nil {
		fmt.Fprintf(errs, "%s: %v: open the address above\n", cli.ProgramName, err)
	}
	select {
	case <-ctx.Done():
		return server.Close()
	case err := <-ended:
		return fmt.Errorf("show --web: %w", err)
	}
}

// onePage serves the page. A request whose host is not this machine (DNS rebinding) gets nothing.
func onePage(page []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			http.Error(w, "ask by localhost or by an address", http.StatusForbidden)
			return
		}
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(page))
	})
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
