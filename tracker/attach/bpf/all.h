// What is needed to watch every process of the machine: which of them run, and how much of the ring
// buffer each may fill.
#pragma once

// share is what a process has in the ring buffer.
struct share {
	uint32_t bytes, before; // since the mark, and before that
	word mark;              // a position of the ring buffer: all that was written before it is counted in before, or read
	word lost, since;       // number of its events that were dropped, and when the first was
};

MAP(everything, ARRAY, 1, uint32_t, word);                // since when every process is watched; 0 if only some are
MAP(shares, HASH, MAX_PROCESSES, uint32_t, struct share); // by process
MAP(programs, LRU_HASH, MAX_PROCESSES, uint32_t, word);   // by process, watched or not: when its program began

// watching_all returns since when every process is watched; 0 if only some are.
static INLINE word watching_all(void)
{
	uint32_t only = 0;
	word *since = bpf_map_lookup_elem(&everything, &only);
	return since ? *since : 0;
}

// share_of returns the share of a process; NULL if there is none, or not every process is watched.
static INLINE struct share *share_of(word id)
{
	uint32_t pid = id >> 32;
	struct share none = {};
	if (!watching_all())
		return NULL;
	struct share *s = bpf_map_lookup_elem(&shares, &pid);
	if (s)
		return s;
	bpf_map_update_elem(&shares, &pid, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&shares, &pid);
}

// lose_of counts an event of a process that was dropped, and reports whether the process has a
// share.
static INLINE bool lose_of(word id)
{
	uint32_t pid = id >> 32;
	struct share *s = bpf_map_lookup_elem(&shares, &pid);
	if (!s)
		return 0;
	__sync_fetch_and_add(&s->lost, 1);
	if (!s->since)
		s->since = bpf_ktime_get_ns();
	return 1;
}

// lost_of returns how many events of a process were dropped, as far as they are counted by process.
static INLINE word lost_of(word id)
{
	uint32_t pid = id >> 32;
	struct share *s = bpf_map_lookup_elem(&shares, &pid);
	return s ? s->lost : 0;
}

enum { MOST_SHARE = 4 };

// has_room reports whether a process may write a number of bytes. Where every process is watched,
// each has at most MOST_SHARE times as many unread bytes as are free, as in a switch whose ports
// share a buffer: however many flood, some stays free for the others.
static INLINE bool has_room(word id, word size)
{
	struct share *s = share_of(id);
	if (!s)
		return 1;
	word read = bpf_ringbuf_query(&ring, BPF_RB_CONS_POS), written = bpf_ringbuf_query(&ring, BPF_RB_PROD_POS), used = written - read;
	if (read >= s->mark) { // what was counted in before is read
		s->before = s->bytes;
		s->bytes = 0;
		s->mark = written;
	}
	if (used >= ring_bytes || (word)s->before + s->bytes + size > MOST_SHARE * (ring_bytes - used))
		return 0;
	__sync_fetch_and_add(&s->bytes, size);
	return 1;
}
