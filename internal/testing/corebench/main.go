//go:build unix

// Command corebench measures what the core of a tracker costs, each figure beside a peer that does the same work: "make
// bench-core" runs it. What one row compares runs in one process and in turns, and counts the processor time of all threads, so
// that other programs on the machine change a row's figures alike. A figure is the median of the rounds, and so is a ratio.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"time"
)

func main() {
	rounds := flag.Int("rounds", 5, "how often each is measured")
	only := flag.String("run", "", "a pattern of the rows to measure")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "corebench:", err)
		os.Exit(2)
	}
	fmt.Printf("%s, %d processors; medians of %d rounds in turns; ns of processor time, except where it says otherwise\n", runtime.Version(), runtime.NumCPU(), *rounds)
	for _, r := range rows() {
		if pattern.MatchString(r.name) {
			r.measure(*rounds)
		}
	}
}

// row is a part of the table: the tracker's way of some work, and those of its peers.
type row struct {
	name string
	// ways sets up what is compared, first what the others are compared with. note says what is missing, if anything is.
	ways func() (ways []*way, note string)
}

// way does some work again and again.
type way struct {
	name  string
	run   func(n int)         // does the work n times
	value func(n int) float64 // instead of run: what one of n works takes
	n     int                 // how often in a round; 0 for what takes roundTime
	end   func()              // may be nil
	each  []float64           // value of each round
}

// roundTime is about how long a way takes in a round.
const roundTime = 200 * time.Millisecond

func (r row) measure(rounds int) {
	ways, note := r.ways()
	for _, w := range ways {
		w.prepare()
	}
	for range rounds {
		for _, w := range ways {
			runtime.GC() // what another way left is not this one's
			w.each = append(w.each, w.value(w.n))
		}
	}
	fmt.Printf("\n%s\n", r.name)
	for i, w := range ways {
		fmt.Printf("  %-72s %8.1f", w.name, median(w.each))
		if i > 0 {
			ratios := make([]float64, rounds)
			for round := range ratios {
				ratios[round] = w.each[round] / ways[0].each[round]
			}
			fmt.Printf(" %7.2f times", median(ratios))
		}
		fmt.Println()
		if w.end != nil {
			w.end()
		}
	}
	if note != "" {
		fmt.Println("  " + note)
	}
}

// prepare sets value, and n.
func (w *way) prepare() {
	if w.value != nil {
		return
	}
	w.value = func(n int) float64 {
		before := processorTime()
		w.run(n)
		return perWork(processorTime()-before, n)
	}
	if w.n > 0 {
		return
	}
	for w.n = 1000; ; w.n *= 4 {
		if took := time.Duration(w.value(w.n) * float64(w.n)); took > roundTime/8 {
			w.n = int(float64(w.n) * float64(roundTime) / float64(took))
			return
		}
	}
}

func perWork(took time.Duration, n int) float64 { return float64(took.Nanoseconds()) / float64(n) }

// processorTime returns what all threads of the process took, in the program and in the kernel for it.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func median(values []float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	return sorted[len(sorted)/2]
}
