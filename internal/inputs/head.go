package inputs

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// Head is the beginning of an input, unpacked, as the kinds look at it.
type Head struct {
	raw  []byte
	text string // without a byte order mark and blank space before it
	// members are the keys of the outermost JSON object, or of the first object in the outermost list, as far
	// as the head goes, with the values that are short strings. They are nil if it is no JSON object.
	members map[string]string
	list    bool // the outermost JSON value is a list
	isText  bool
}

func newHead(raw []byte) *Head {
	raw = raw[:min(len(raw), HeadSize)]
	h := &Head{raw: raw, text: string(bytes.TrimLeft(bytes.TrimPrefix(raw, []byte("\ufeff")), " \t\r\n"))}
	object := h.text
	if rest, ok := strings.CutPrefix(object, "["); ok {
		object = strings.TrimLeft(rest, " \t\r\n")
		h.list = object == "" || strings.ContainsRune("{[]\"", rune(object[0])) // not the [INFO] of a log
	}
	if strings.HasPrefix(object, "{") {
		h.members = members(object)
	}
	h.isText = len(h.text) > 0 && isText(raw)
	return h
}

// Begins reports whether the bytes begin so.
func (h *Head) Begins(with string) bool {
	return strings.HasPrefix(string(h.raw[:min(len(with), len(h.raw))]), with)
}

// Contains reports whether any of the words stands in the bytes.
func (h *Head) Contains(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return bytes.Contains(h.raw, []byte(w)) })
}

// IsText reports whether the bytes are a text: few of them are such as no text has. Escape sequences of terminals are text,
// and a log may have some zero bytes where it was cut while a program wrote it.
func (h *Head) IsText() bool { return h.isText }

// isText looks at the bytes once: every kind of log asks for it.
func isText(raw []byte) bool {
	for i, left := 0, len(raw)/16; i < len(raw); {
		r, size := rune(raw[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(raw[i:])
		}
		i += size
		if r == utf8.RuneError && size == 1 || r < ' ' && inTexts>>r&1 == 0 {
			if left--; left < 0 {
				return false
			}
		}
	}
	return true
}

// inTexts has a bit for each control character that stands in texts.
const inTexts = uint32(1<<'\n' | 1<<'\t' | 1<<'\r' | 1<<'\f' | 1<<'\b' | 1<<'\a' | 1<<'\x1b')

// hasControls reports whether the bytes have control characters that do not end or indent lines.
func (h *Head) hasControls() bool {
	return bytes.ContainsFunc(h.raw, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' })
}

// Line returns the first line that is not blank, without the blank space around it.
func (h *Head) Line() string {
	line, _, _ := strings.Cut(h.text, "\n")
	return strings.TrimSpace(line)
}

// Lines returns the lines of the head, of which the last may be cut.
func (h *Head) Lines() []string { return strings.Split(h.text, "\n") }

// JSON reports whether the bytes begin like a JSON object or list.
func (h *Head) JSON() bool { return h.members != nil || h.list }

// List reports whether the outermost JSON value is a list.
func (h *Head) List() bool { return h.list }

// Has reports whether the outermost JSON object, or the first object in the outermost list, has all of these keys, as
// far as the head goes.
func (h *Head) Has(keys ...string) bool {
	for _, key := range keys {
		if _, ok := h.members[key]; !ok {
			return false
		}
	}
	return len(keys) > 0
}

// Value returns the value of a key that Has would find, if it is a string; else "".
func (h *Head) Value(key string) string { return h.members[key] }

// Key returns the first key of the JSON object for which the function is true.
func (h *Head) Key(is func(key string) bool) (string, bool) {
	for key := range h.members {
		if is(key) {
			return key, true
		}
	}
	return "", false
}

// schema reports whether a JSON object says that it has this schema, wherever in the head: a snapshot inside of a dump
// says so too, but a dump goes first.
func (h *Head) schema(name string) bool {
	return h.members != nil && !h.list && h.Contains(`"`+name)
}

// members returns the keys of a JSON object, which may be cut anywhere, with the values that are strings. A text that
// is no JSON has those that were found until that shows.
func members(text string) map[string]string {
	const most = 256
	found := make(map[string]string)
	depth, key, isKey := 0, "", false
	for i := 0; i < len(text) && len(found) < most; i++ {
		switch c := text[i]; c {
		case '{', '[':
			depth++
			isKey = depth == 1
		case '}', ']':
			if depth--; depth == 0 {
				return found
			}
		case ',':
			isKey = depth == 1
		case '"':
			end := endOfString(text, i+1)
			if end < 0 {
				return found
			}
			switch word := text[i+1 : end]; {
			case depth != 1:
			case isKey:
				key, isKey = word, false
				if _, twice := found[key]; !twice {
					found[key] = ""
				}
			case found[key] == "":
				found[key] = word
			}
			i = end
		}
	}
	return found
}

// endOfString returns where the closing quote of a JSON string is that begins at from; -1 if it is not in the text.
func endOfString(text string, from int) int {
	for i := from; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
