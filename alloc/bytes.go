package alloc

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

// Bytes is an amount of memory, or a signed difference of two amounts.
type Bytes int64

// Binary units.
const (
	KiB Bytes = 1024
	MiB       = 1024 * KiB
	GiB       = 1024 * MiB
	TiB       = 1024 * GiB
)

// String returns the amount in the largest binary unit that leaves at least one
// of it, with one decimal: "16 B", "1.5 KiB", "63.0 MiB", "-2.0 GiB".
func (b Bytes) String() string {
	if -KiB < b && b < KiB {
		return fmt.Sprintf("%d B", int64(b))
	}
	value, unit := math.Abs(float64(b))/1024, 0
	// 1023.95 would print as "1024.0" of its unit: it belongs to the next one.
	for value >= 1023.95 && unit < len(binaryUnits)-1 {
		value /= 1024
		unit++
	}
	if b < 0 {
		value = -value
	}
	return fmt.Sprintf("%.1f %s", value, binaryUnits[unit])
}

var binaryUnits = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Set reads an amount as String writes it, and as people type it: a decimal number, then a
// unit, with or without a space between. Units are those of the GNU tools, in any case: KiB, Ki
// and K are 1024 bytes, KB is 1000, and so on up to E; B or nothing is bytes. A fraction of a
// byte is rounded to the nearest byte. The error names the text and the units that can be used,
// and leaves the amount as it was. It makes *Bytes a flag.Value.
func (b *Bytes) Set(s string) error {
	text := strings.TrimSpace(s)
	split := strings.LastIndexAny(text, "0123456789.") + 1
	number, suffix := text[:split], strings.TrimSpace(text[split:])
	unit, ok := unitNamed(suffix)
	if !ok {
		return fmt.Errorf("parse bytes %q: unknown unit %q: use B, KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000)", s, suffix)
	}
	if len(number) > 40 || strings.Trim(number, "+-.0123456789") != "" {
		return fmt.Errorf("parse bytes %q: want a decimal number and a unit, such as 24GiB or 1.5 MiB", s)
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return fmt.Errorf("parse bytes %q: want a decimal number and a unit, such as 24GiB or 1.5 MiB", s)
	}
	n := roundRat(value.Mul(value, new(big.Rat).SetInt64(unit)))
	if !n.IsInt64() {
		return fmt.Errorf("parse bytes %q: out of range: want less than 8 EiB", s)
	}
	*b = Bytes(n.Int64())
	return nil
}

// roundRat rounds to the nearest integer, halves away from zero.
func roundRat(r *big.Rat) *big.Int {
	twice := new(big.Int).Lsh(r.Denom(), 1)
	n := new(big.Int).Abs(r.Num())
	n.Lsh(n, 1).Add(n, r.Denom()).Quo(n, twice)
	if r.Sign() < 0 {
		n.Neg(n)
	}
	return n
}

// unitNamed returns the factor of a unit's name.
func unitNamed(name string) (int64, bool) {
	name = strings.ToUpper(name)
	if name == "" || name == "B" {
		return 1, true
	}
	exponent := strings.IndexByte("KMGTPE", name[0]) + 1
	if exponent == 0 {
		return 0, false
	}
	base := int64(1024)
	switch name[1:] {
	case "", "I", "IB":
	case "B":
		base = 1000
	default:
		return 0, false
	}
	factor := int64(1)
	for range exponent {
		factor *= base
	}
	return factor, true
}
