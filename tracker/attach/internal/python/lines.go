package python

// line returns the source line of an instruction: 0 if it is unknown, and the function's first line if the
// table has no line for it.
func (p *Process) line(f *function, at uint32) int {
	var line int
	switch {
	case p.freeThreaded && p.Version > 0x030d: // threads run copies of the instructions
		return 0
	case p.Version >= 0x030b:
		line = locationLine(f.lines, f.first, int(at)-int(p.names.instructions))
	case p.Version == 0x030a:
		line = linetableLine(f.lines, f.first, 2*int(at))
	default:
		line = lnotabLine(f.lines, f.first, int(at))
	}
	if line <= 0 && f.truncated {
		return 0
	}
	if line <= 0 {
		return f.first
	}
	return line
}

// lnotabLine reads the table of Python up to 3.9 (Objects/lnotab_notes.txt): pairs of increments of the
// address and of the line.
func lnotabLine(table []byte, line, at int) int {
	address := 0
	for i := 0; i+1 < len(table); i += 2 {
		if address += int(table[i]); address > at {
			break
		}
		line += int(int8(table[i+1]))
	}
	return line
}

// linetableLine reads the table of Python 3.10 (PEP 626): pairs of the length of a range and the increment
// of the line; -128 means no line.
func linetableLine(table []byte, line, at int) int {
	end := 0
	for i := 0; i+1 < len(table); i += 2 {
		end += int(table[i])
		step := int(int8(table[i+1]))
		if step != -128 {
			line += step
		}
		if at < end {
			if step == -128 {
				return 0
			}
			return line
		}
	}
	return 0
}

// locationLine reads the table of Python since 3.11 (PEP 657, Objects/locations.md): entries of a kind, a length in
// instructions of two bytes, and what the kind has.
func locationLine(table []byte, line, at int) int {
	end := 0
	for i := 0; i < len(table); {
		first := table[i]
		i++
		end += 2 * (int(first&7) + 1)
		none := false
		switch kind := first >> 3 & 15; {
		case kind == 15:
			none = true
		case kind == 14: // line increment, end line, two columns
			line += signed(table, &i)
			for range 3 {
				unsigned(table, &i)
			}
		case kind == 13:
			line += signed(table, &i)
		case kind >= 10:
			line += int(kind) - 10
			i += 2
		default:
			i++
		}
		if at < end {
			if none {
				return 0
			}
			return line
		}
	}
	return 0
}

// unsigned reads a varint of six-bit groups.
func unsigned(table []byte, i *int) (v int) {
	for shift := 0; *i < len(table) && shift < 36; shift += 6 {
		b := table[*i]
		*i++
		v |= int(b&0x3f) << shift
		if b&0x40 == 0 {
			break
		}
	}
	return v
}

// signed reads a varint whose sign is its lowest bit.
func signed(table []byte, i *int) int {
	v := unsigned(table, i)
	if v&1 != 0 {
		return -(v >> 1)
	}
	return v >> 1
}
