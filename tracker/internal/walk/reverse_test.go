package walk_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// was is what the model knows of an address; nothing if it has none.
type was struct {
	is   walk.State
	what int
}

// event is one of the model's, and all that there was before it.
type event struct {
	action mem.Action
	at     alloc.Ptr
	what   int // the buffer's number
	before map[alloc.Ptr]was
}

// program makes random events at few addresses, some of which hold something in the beginning. It
// returns what there is at the end, too.
func program(random *rand.Rand) (events []event, end map[alloc.Ptr]was) {
	const addresses = 8
	now := make(map[alloc.Ptr]was)
	next := 0
	for p := range alloc.Ptr(addresses) {
		if is := walk.Nothing + walk.State(random.IntN(3)); is != walk.Nothing {
			now[p] = was{is, next}
			next++
		}
	}
	for range random.IntN(60) {
		p := alloc.Ptr(random.IntN(addresses))
		e := event{at: p, what: now[p].what, before: maps.Clone(now)}
		switch now[p].is {
		case walk.Live:
			e.action = []mem.Action{mem.Freed, mem.Unregistered}[random.IntN(2)]
			delete(now, p)
			if e.action == mem.Freed && random.IntN(2) == 0 {
				now[p] = was{walk.Pending, e.what}
			}
		case walk.Pending:
			e.action = mem.FreeCompleted
			delete(now, p)
		default:
			e.action, e.what = []mem.Action{mem.Allocated, mem.Registered, mem.FreeFailed}[random.IntN(3)], next
			now[p] = was{walk.Live, next}
			next++
		}
		events = append(events, e)
	}
	return events, now
}

// TestReverse goes back over random programs, and compares what it knows before each event with what there
// was. It sets all of the end, or only what is pending then.
func TestReverse(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		events, end := program(random)
		all := random.IntN(2) == 0
		back := make(walk.Reverse[int])
		for p, x := range end {
			if all || x.is == walk.Pending {
				back.Set(p, x.is, x.what)
			}
		}
		after := end
		for _, e := range slices.Backward(events) {
			got := back.Undo(walk.Of(e.action), e.at, e.what)
			if got.State != walk.Unknown {
				require.Equal(t, after[e.at].what, got.Value, "seed %d", seed)
			}
			require.Equal(t, after[e.at].is == walk.Pending, got.State == walk.Pending, "seed %d: which frees left memory pending", seed)
			after = e.before
			for p := range alloc.Ptr(8) {
				want, got := after[p], back[p]
				switch got.State {
				case walk.Unknown:
					require.Equal(t, end[p], want, "seed %d: it is as at the end", seed)
				case walk.Nothing:
					require.Zero(t, want, "seed %d", seed)
				default:
					require.Equal(t, want, was{got.State, got.Value}, "seed %d", seed)
				}
			}
			require.LessOrEqual(t, len(back), len(after)+len(end), "seed %d: what is gone takes no memory", seed)
		}
	}
}
