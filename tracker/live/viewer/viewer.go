// Package viewer serves the memory of recorded files as a timeline of single allocations, of any size:
//
//	v := viewer.New(viewer.Config{})
//	v.Add(viewer.Source{Name: "rank0.pickle", Read: readRank0})
//	go v.Run(ctx)
//	err := http.Serve(listener, v) // the page is at http://ADDRESS/?token=TOKEN
//
// Each allocation is an area over time and height. The page asks for tiles: what a view shows, with the allocations that are
// lower than a pixel merged, so that an answer is as large as the view and not as the file. Each column of a tile adds up to
// the bytes that were live at its moment.
//
// # Who is answered
//
// Only who has the token: in the address, in the cookie that the page sets, or in a header "Authorization: Bearer". A Host
// header that is a name other than localhost is refused, so that web pages cannot read the answers by DNS rebinding. No answer
// allows another origin to read it. A wrong or unknown parameter is answered with 400.
//
// # Files
//
// Run reads the sources. The page shows each as soon as it is read, and before that how far it is. A file that cannot be read
// does not keep the others from being shown.
//
// # Cost
//
// A file takes what its dump takes, and its index: some 46 bytes for each allocation that was freed. An answer is at most some
// megabytes, and takes memory until the client has read it, for a minute at most. As many are made at a time as there are
// processors; those that clients have not read yet take at most 256 MiB together, beyond which the answer is 503.
package viewer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
)

// Config configures a Viewer. The zero Config is ready to use.
type Config struct {
	// Hosts are the names that requests may be addressed to, as those of live.Handler, besides localhost and numeric
	// addresses.
	Hosts []string
	// Version is what the page says of the program.
	Version string
}

// Viewer is the handler of the page and of what it asks for. Make one with New. Its methods may be called from any goroutine.
type Viewer struct {
	token   string
	hosts   map[string]bool
	session *session
}

// New returns a viewer without files, with a token that nobody can guess.
func New(cfg Config) *Viewer {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	v := &Viewer{token: hex.EncodeToString(secret), hosts: make(map[string]bool), session: newSession(cfg.Version)}
	for _, name := range cfg.Hosts {
		v.hosts[request.CanonicalHost(name)] = true
	}
	return v
}

// Token returns the secret that a request needs.
func (v *Viewer) Token() string { return v.token }

// String says how many files there are, and in which states.
func (v *Viewer) String() string {
	if v.session == nil {
		return "viewer that New did not make"
	}
	v.session.mu.Lock()
	defer v.session.mu.Unlock()
	counts := make(map[string]int)
	for _, f := range v.session.files {
		counts[f.state]++
	}
	return fmt.Sprintf("viewer of %d files, %d ready, %d failed", len(v.session.files), counts[stateReady], counts[stateFailed])
}

// Add adds a file, which Run reads.
func (v *Viewer) Add(s Source) { v.session.add(s) }

// Run reads the files that were added, as many at a time as there are processors, and returns when all are read. The error is
// the context's, or says that no file could be read and why; of several, those of the first few.
func (v *Viewer) Run(ctx context.Context) error { return v.session.run(ctx) }

// ServeHTTP answers the page and what it asks for.
func (v *Viewer) ServeHTTP(w http.ResponseWriter, r *http.Request) { v.serve(w, r) }
