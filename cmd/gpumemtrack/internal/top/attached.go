package top

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// attachment watches one process from outside, as gpumemtrack attach does, and fills a page with
// what it allocates.
type attachment struct {
	pid  int
	stop context.CancelFunc
	page topPage
}

// watched is an *attach.Watcher, or a stand-in of tests.
type watched interface {
	Sync()
	Sources() []*attach.Source
	Close() error
}

// attachTo begins to watch a process.
func attachTo(pid int) (watched, error) {
	closeDriver := func() error { return nil }
	var cfg attach.Config
	if driver, err := nvml.Open(); err == nil { // without one, what the devices hold is unknown
		cfg.Driver, closeDriver = driver, driver.Close
	}
	w, err := attach.New(cfg)
	if err != nil {
		return nil, errors.Join(err, closeDriver())
	}
	if err := w.Watch(pid); err != nil {
		return nil, errors.Join(err, w.Close(), closeDriver())
	}
	return withDriver{w, closeDriver}, nil
}

// withDriver is a watcher that also closes the driver's source.
type withDriver struct {
	*attach.Watcher
	closeDriver func() error
}

func (w withDriver) Close() error {
	return errors.Join(w.Watcher.Close(), w.closeDriver())
}

// toggle attaches to a process and detaches from the one before. If it is the same process, it only
// detaches.
func (w *topWatch) toggle(ctx context.Context, pid int, interval time.Duration) {
	w.mu.Lock()
	before := w.attached
	w.attached = nil
	if before != nil {
		before.stop()
	}
	if pid == 0 || before != nil && before.pid == pid {
		w.mu.Unlock()
		return
	}
	ctx, stop := context.WithCancel(ctx)
	a := &attachment{pid: pid, stop: stop}
	a.page = topPage{Attached: true, URL: fmt.Sprintf("attached to %d", pid), Origin: snapshot.Origin{PID: pid}}
	w.attached = a
	w.mu.Unlock()
	w.attaching.Go(func() { w.watchAttached(ctx, a, interval) })
}

// watchAttached updates the page of an attachment until ctx is done.
func (w *topWatch) watchAttached(ctx context.Context, a *attachment, interval time.Duration) {
	page := a.page
	from, err := w.attach(a.pid)
	if err != nil {
		page.Err = fmt.Errorf("attach to %d: %w", a.pid, err)
		w.keep(a, page)
		return
	}
	defer from.Close()
	w.repeat(ctx, interval, func() {
		from.Sync()
		w.keep(a, attachedPage(page, from.Sources()))
	})
}

// attachedPage returns a page of the process and of those that it started since.
func attachedPage(page topPage, sources []*attach.Source) topPage {
	page.Known = true
	var all []*snapshot.Snapshot
	var suspects []leaks.Suspect
	var growth []leaks.Suspect
	for _, s := range sources {
		at := s.Snapshot()
		all = append(all, at)
		suspects, growth = append(suspects, leaks.Suspects(at)...), append(growth, leaks.Growing(at)...)
	}
	if len(all) > 0 {
		pid := page.Origin.PID
		page.take(all, suspects, growth)
		page.Origin.PID = pid // so that it stands in the line of the chosen process
	}
	return page
}

// keep puts the page of an attachment into the sample, unless top has attached to another process by
// now.
func (w *topWatch) keep(a *attachment, page topPage) {
	w.mu.Lock()
	if w.attached == a {
		a.page = page
	}
	w.mu.Unlock()
	w.notify()
}

// detach ends the attachment and waits until its probes are removed. It does not wait for a driver
// that hangs: the kernel removes the probes when this process ends.
func (w *topWatch) detach() {
	w.toggle(context.Background(), 0, 0)
	cli.AtMost(time.Second, w.attaching.Wait)
}
