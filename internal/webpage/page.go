package webpage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/url"
	"strings"
)

// Markup is HTML, CSS or JavaScript that stands in this module's code. Only constants and embedded files become Markup: a
// test sees to that.
type Markup string

// Page is HTML that is being written. The zero Page is empty.
type Page struct {
	text bytes.Buffer
	err  error
}

// Put writes markup. If it has arguments, each %v in it stands for one of them, which is escaped for text and for
// attributes in double quotes unless it is Markup itself. A %v may stand in no other place: not in a script or a style,
// and not at the beginning of an address.
func (p *Page) Put(m Markup, args ...any) {
	if len(args) == 0 {
		p.text.WriteString(string(m))
		return
	}
	escaped := make([]any, len(args))
	for i, a := range args {
		escaped[i] = a
		if _, ok := a.(Markup); !ok {
			escaped[i] = html.EscapeString(fmt.Sprint(a))
		}
	}
	fmt.Fprintf(&p.text, string(m), escaped...)
}

// Link writes a link to a page in this folder or below it.
func (p *Page) Link(path, name string) {
	if strings.HasPrefix(path, "/") {
		path = "." + path
	}
	address := url.URL{Path: path} // its String sees to a colon, so that no name is a scheme
	p.Put(`<a href="`)
	p.Put("%v", address.String())
	p.Put(`">%v</a>`, name)
}

// JSON writes a value for a script to read. It may stand within a script element: no "<" is left in it.
func (p *Page) JSON(v any) {
	text, err := json.Marshal(v)
	if err != nil && p.err == nil {
		p.err = err
	}
	p.text.Write(text)
}

// Len is how many bytes were written.
func (p *Page) Len() int { return p.text.Len() }

// WriteTo writes the page. The error is that a value has no JSON, or the writer's.
func (p *Page) WriteTo(w io.Writer) (int64, error) {
	if p.err != nil {
		return 0, p.err
	}
	return p.text.WriteTo(w)
}
