package oomtext

import (
	"math"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// quantity is an amount of memory in a text, with the words on both sides of it, up to the next amounts.
type quantity struct {
	bytes         alloc.Bytes // unknown if there is no such amount
	before, after string
}

// units are those of the programs whose messages are read. All of them count in powers of 1024, whatever they print.
var units = map[string]int{
	"bytes": 0, "byte": 0, "b": 0, "kib": 1, "kb": 1, "k": 1, "mib": 2, "mb": 2, "m": 2, "gib": 3, "gb": 3, "g": 3, "tib": 4, "tb": 4, "t": 4,
}

// quantities finds all amounts with a unit in a text, in order.
func quantities(text string) (all []quantity) {
	type span struct{ from, to int }
	var spans []span
	for i := 0; i < len(text); {
		if text[i] < '0' || text[i] > '9' || i > 0 && isWord(text[i-1]) {
			i++
			continue
		}
		end := i
		for end < len(text) && (text[end] >= '0' && text[end] <= '9' || text[end] == '.' || text[end] == ',') {
			end++
		}
		unit := end
		for unit < len(text) && text[unit] == ' ' && unit < end+2 {
			unit++
		}
		stop := unit
		for stop < len(text) && isLetter(text[stop]) {
			stop++
		}
		// The message of one fork of PyTorch has no space behind its unit: "3.00 GiBis free".
		name := strings.ToLower(text[unit:stop])
		if glued := strings.TrimSuffix(name, "is"); glued != name && len(glued) == 3 {
			stop -= len("is")
			name = glued
		}
		power, ok := units[name]
		if !ok || unit > end && len(name) == 1 && text[unit] >= 'a' { // "1 b" is no amount, "1b" may be
			i = max(end, i+1)
			continue
		}
		all = append(all, quantity{bytes: amount(text[i:end], power)})
		spans = append(spans, span{i, stop})
		i = stop
	}
	for i := range all {
		from, to := 0, len(text)
		if i > 0 {
			from = spans[i-1].to
		}
		if i+1 < len(all) {
			to = spans[i+1].from
		}
		all[i].before, all[i].after = strings.TrimSpace(text[from:spans[i].from]), strings.TrimSpace(text[spans[i].to:to])
	}
	return all
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isWord(c byte) bool { return isLetter(c) || c >= '0' && c <= '9' || c == '.' || c == '_' }

// amount returns a number in a unit as bytes, unknown if no machine has so many. Windows has such: it prints 2^64 for what it
// does not tell.
func amount(number string, power int) alloc.Bytes {
	const most = 1 << 60
	number = strings.TrimRight(number, ".,")
	if at := strings.LastIndexByte(number, ','); at >= 0 && !strings.Contains(number, ".") && len(number)-at != len(",000") {
		number = number[:at] + "." + number[at+1:] // the decimal comma of some languages
	}
	number = strings.ReplaceAll(number, ",", "")
	if len(number) > 64 {
		return unknown
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return unknown
	}
	v = math.Round(v * math.Pow(1024, float64(power)))
	if !(v >= 0 && v < most) {
		return unknown
	}
	return alloc.Bytes(v)
}

// field says which value of a failure an amount is: the one that stands before or after the phrase.
type field struct {
	phrase string
	after  bool // the amount stands after the phrase
	put    func(*Failure, alloc.Bytes)
}

// fill puts the amounts of a text into a failure, by the phrases beside them. Of a value that stands there twice the first
// counts.
func fill(f *Failure, text string, fields []field) {
	for _, q := range quantities(text) {
		for _, in := range fields {
			if in.after && strings.HasSuffix(q.before, in.phrase) || !in.after && strings.HasPrefix(q.after, in.phrase) {
				in.put(f, q.bytes)
				break
			}
		}
	}
}

// to makes a field's function out of the value's address.
func to(at func(*Failure) *alloc.Bytes) func(*Failure, alloc.Bytes) {
	return func(f *Failure, n alloc.Bytes) {
		if v := at(f); *v < 0 {
			*v = n
		}
	}
}
