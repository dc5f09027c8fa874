package otlp

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// The bounds of a queue: what waits while the server does not answer. At an interval of 15 s that is about a quarter of
// an hour.
const (
	maxQueued      = 64
	maxQueuedBytes = 16 << 20
)

// Queue delivers payloads in order, one at a time. Add never waits: when there are too many, the oldest is dropped. Its
// methods may be called from any goroutine.
type Queue struct {
	client *Client

	mu      sync.Mutex
	waiting []queued
	bytes   int
	busy    bool // the first of waiting is being sent
	stats   QueueStats
	empty   chan struct{} // closed when nothing waits; nil if nobody waits for it
	ended   bool          // Close has returned

	added  chan struct{} // has one element if there may be something to send
	stop   context.CancelFunc
	closed chan struct{}
}

type queued struct {
	payload []byte
	items   int
}

// QueueStats counts items: data points, say.
type QueueStats struct {
	Delivered, Dropped int64
	LastError          error // of the latest that was not delivered
}

// NewQueue starts a queue, which Close stops. The client's Warn is called when payloads begin to be refused or dropped.
func NewQueue(client *Client) *Queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{client: client, added: make(chan struct{}, 1), stop: cancel, closed: make(chan struct{})}
	go q.run(ctx)
	return q
}

var errClosed = errors.New("nothing is sent any more")

var errTooSlow = errors.New("the server does not take data as fast as it comes: the oldest is dropped")

// Add adds a payload of some items. After Close it drops them.
func (q *Queue) Add(payload []byte, items int) {
	q.mu.Lock()
	if q.ended {
		q.stats.Dropped += int64(items)
		q.stats.LastError = errClosed
		q.mu.Unlock()
		return
	}
	q.waiting = append(q.waiting, queued{payload, items})
	q.bytes += len(payload)
	dropped := false
	for len(q.waiting) > maxQueued || q.bytes > maxQueuedBytes && len(q.waiting) > 1 {
		oldest := 0
		if q.busy {
			oldest = 1
		}
		if oldest == len(q.waiting)-1 {
			break
		}
		one := q.waiting[oldest]
		q.waiting = append(q.waiting[:oldest], q.waiting[oldest+1:]...)
		q.bytes -= len(one.payload)
		q.stats.Dropped += int64(one.items)
		q.stats.LastError = errTooSlow
		dropped = true
	}
	q.mu.Unlock()
	if dropped {
		q.client.Warn(errTooSlow)
	}
	select {
	case q.added <- struct{}{}:
	default:
	}
}

func (q *Queue) run(ctx context.Context) {
	defer close(q.closed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.added:
		}
		for q.deliverFirst(ctx) {
		}
	}
}

// deliverFirst delivers or drops the oldest payload. It reports whether there was one, and ctx was not done.
func (q *Queue) deliverFirst(ctx context.Context) bool {
	q.mu.Lock()
	if len(q.waiting) == 0 || ctx.Err() != nil {
		q.mu.Unlock()
		return false
	}
	first := q.waiting[0]
	q.busy = true
	q.mu.Unlock()

	answer, err := q.client.Deliver(ctx, first.payload)
	var refused *RefusedError
	taken := err == nil || errors.As(err, &refused)
	q.mu.Lock()
	q.busy = false
	if taken {
		q.waiting = q.waiting[1:]
		q.bytes -= len(first.payload)
		if len(q.waiting) == 0 {
			q.release()
		}
		lost := min(answer.Rejected, int64(first.items))
		if err != nil {
			lost = int64(first.items)
		}
		q.stats.Dropped += lost
		q.stats.Delivered += int64(first.items) - lost
	}
	if err != nil {
		q.stats.LastError = err
	} else if answer.Rejected > 0 {
		err = &RefusedError{Why: fmt.Sprintf("%d of %d: %s", answer.Rejected, first.items, answer.Message)}
		q.stats.LastError = err
	}
	q.mu.Unlock()
	if taken && err != nil {
		q.client.Warn(err)
	}
	return taken
}

// release lets those go on that wait. q.mu is held.
func (q *Queue) release() {
	if q.empty != nil {
		close(q.empty)
		q.empty = nil
	}
}

// Wait returns when nothing waits to be sent, as after Close. The error says that ctx was done before.
func (q *Queue) Wait(ctx context.Context) error {
	q.mu.Lock()
	if len(q.waiting) == 0 {
		q.mu.Unlock()
		return nil
	}
	if q.empty == nil {
		q.empty = make(chan struct{})
	}
	empty := q.empty
	q.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stats returns what was counted so far.
func (q *Queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

// Close delivers what waits until ctx is done, and drops the rest. It is called once.
func (q *Queue) Close(ctx context.Context) QueueStats {
	q.stop()
	<-q.closed
	for q.deliverFirst(ctx) {
	}
	q.mu.Lock()
	for _, one := range q.waiting {
		q.stats.Dropped += int64(one.items)
		if q.stats.LastError == nil { // there was no attempt
			q.stats.LastError = context.Cause(ctx)
		}
	}
	q.waiting, q.bytes, q.ended = nil, 0, true
	q.release()
	q.mu.Unlock()
	return q.Stats()
}
