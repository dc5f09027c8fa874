package viewer

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
)

// routes are below /api/.
var routes = map[string]route{
	"state": state, "early": earlyTable, "names": lineNames,
	"track": trackOfFile, "curve": curve, "moment": momentOfTrack, "tile": tileOf, "bands": bandsAt,
	"allocation": allocation, "allocations": allocations, "stack": stackOf,
	"segments": segments, "flame": flame, "table": table,
}

// serve answers who has the token. The page itself may be asked for with the token in its address: that sets the cookie, and
// leads to the page without it, so that the token does not stay in the browser's history.
func (v *Viewer) serve(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	switch {
	case !v.hosts["*"] && !request.AllowsHost(r.Host, v.hosts):
		http.Error(w, "this host is not allowed: ask by localhost or by an address", http.StatusForbidden)
		return
	case !v.admits(r):
		header.Set("WWW-Authenticate", "Bearer")
		http.Error(w, "the token is missing or wrong: open the address that the program has printed", http.StatusUnauthorized)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET: this page reads", http.StatusMethodNotAllowed)
		return
	}
	name, isAPI := strings.CutPrefix(r.URL.Path, "/api/")
	if !isAPI {
		v.servePage(w, r)
		return
	}
	do, ok := routes[name]
	if !ok {
		http.Error(w, fmt.Sprintf("no route %q here", name), http.StatusNotFound)
		return
	}
	v.answer(w, r, do)
}

// servePage serves the page and its parts.
func (v *Viewer) servePage(w http.ResponseWriter, r *http.Request) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if r.URL.Path == "/" && err == nil && values.Has(tokenParameter) {
		// Lax: the address may be a link on another site, such as a terminal in a browser. A strict cookie would not be sent
		// after the redirect.
		http.SetCookie(w, &http.Cookie{Name: cookieName(r.Host), Value: v.token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
		values.Del(tokenParameter)
		to := "/"
		if len(values) > 0 {
			to += "?" + values.Encode()
		}
		http.Redirect(w, r, to, http.StatusSeeOther)
		return
	}
	servePage(w, r)
}

const tokenParameter = "token"

// cookieName returns the name of the cookie. Browsers send a cookie to all ports of a host: each viewer needs a name of its own.
func cookieName(host string) string {
	_, port, err := net.SplitHostPort(host)
	if err != nil || strings.Trim(port, "0123456789") != "" {
		port = "80"
	}
	return "gpumemtrack-" + port
}

// admits reports whether a request has the token.
func (v *Viewer) admits(r *http.Request) bool {
	if text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && v.isToken(text) {
		return true
	}
	if cookie, err := r.Cookie(cookieName(r.Host)); err == nil && v.isToken(cookie.Value) {
		return true
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	return err == nil && v.isToken(values.Get(tokenParameter))
}

// isToken compares in a time that does not depend on the text.
func (v *Viewer) isToken(text string) bool {
	got, want := sha256.Sum256([]byte(text)), sha256.Sum256([]byte(v.token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// maxUnsent bounds the bytes of all answers that are made and not yet sent. A browser asks for a few at a time.
const maxUnsent = 256 << 20

// answer makes an answer and sends it.
func (v *Viewer) answer(w http.ResponseWriter, r *http.Request, do route) {
	q := request.New(r)
	_ = q.List(tokenParameter, 1)
	a, err := do(v.session, r, q)
	if err != nil {
		http.Error(w, err.Error(), codeOf(err))
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	if r.Method == http.MethodHead {
		return
	}
	defer v.session.unsent.Add(-int64(len(a.body)))
	if v.session.unsent.Add(int64(len(a.body))) > maxUnsent {
		w.Header().Del("Content-Length")
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many answers wait for clients that do not read them: try again", http.StatusServiceUnavailable)
		return
	}
	// A client that reads nothing ends; a test's writer has no deadline.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute))
	_, _ = w.Write(a.body)
}
