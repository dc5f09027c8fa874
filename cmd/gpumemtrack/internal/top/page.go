package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// topPage is what a live page says about one process, or about the largest of several.
type topPage struct {
	URL      string
	Attached bool // not a live page: top itself is attached to the process
	Err      error
	Known    bool // it has answered
	Origin   snapshot.Origin
	Device   string
	Live     alloc.Bytes
	Peak     alloc.Bytes
	Sites    []export.Line
	Suspects []string
}

// topSites is how many lines of code are kept from a page.
const topSites = 50

var errNoPage = errors.New("no live page there: want a URL such as http://localhost:6061/debug/gpumem/")

// readPage asks a live page for its call sites and suspects. If several processes share the
// address, it reads their dump, the only thing that is served then.
func readPage(ctx context.Context, address string) topPage {
	page := topPage{URL: address}
	page.Err = page.readLight(ctx)
	if errors.Is(page.Err, errNoPage) {
		page.Err = page.readDump(ctx)
	}
	page.Known = page.Err == nil
	return page
}

func (p *topPage) readLight(ctx context.Context) error {
	s := new(snapshot.Snapshot)
	if err := get(ctx, p.URL, "snapshot", "light=1", s); err != nil {
		return err
	}
	var leaks struct {
		Suspects []leaks.Suspect `json:"suspects"`
		Growth   []leaks.Suspect `json:"growth"`
	}
	if err := get(ctx, p.URL, "leaks", "", &leaks); err != nil {
		return err
	}
	p.take([]*snapshot.Snapshot{s}, leaks.Suspects, leaks.Growth)
	return nil
}

func (p *topPage) readDump(ctx context.Context) error {
	r := new(snapshot.Dump)
	if err := get(ctx, p.URL, "dump", "", r); err != nil {
		return err
	}
	most := r.Snapshot
	for _, other := range r.Others {
		if other.Snapshot.Live.Bytes > most.Live.Bytes {
			most = other.Snapshot
		}
	}
	p.take([]*snapshot.Snapshot{most}, leaks.Suspects(most), leaks.Growing(most))
	return nil
}

// take fills the page with what is known about one process, on one device or several.
func (p *topPage) take(all []*snapshot.Snapshot, suspects []leaks.Suspect, growth []leaks.Suspect) {
	var usages []*export.Usage
	p.Origin, p.Device, p.Live, p.Peak = all[0].Origin, export.Device(all[0]), 0, 0
	if len(all) > 1 {
		p.Device = fmt.Sprintf("%d devices", len(all))
	}
	for _, s := range all {
		usages = append(usages, export.FromSnapshot(s))
		p.Live += s.Live.Bytes
		p.Peak += s.Peak.Bytes
	}
	p.Sites, _ = export.Compare(nil, usages, "line", "live")
	p.Sites = p.Sites[:min(len(p.Sites), topSites)]
	for _, s := range suspects {
		p.Suspects = append(p.Suspects, firstLine(s.String()))
	}
	for _, g := range growth {
		p.Suspects = append(p.Suspects, firstLine(g.String()))
	}
	p.Suspects = p.Suspects[:min(len(p.Suspects), topSites)]
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// get reads an answer of a live page as JSON.
func get(ctx context.Context, address, name, query string, into any) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	u = u.JoinPath(name)
	u.RawQuery = query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%v: %w", u, errNoPage)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%v: %s", u, answer.Status)
	}
	r, err := bounded.NewReader(answer.Body, 0)
	if err != nil {
		return fmt.Errorf("%v: %w", u, err)
	}
	if err := json.NewDecoder(r).Decode(into); err != nil {
		return fmt.Errorf("%v: %w", u, err)
	}
	return nil
}
