// The ring in which the shim leaves events, in memory that the watcher has too: see package
// memring. Of its head, only the shim writes lost and written, and only the watcher read and
// wake_at. Hold the lock for all of this.

enum { RING = 1 << 20 };

typedef struct {
	word lost[2], apart[6]; // how many events were dropped, and when the first was
	word written, apart_too[7];
	word read, apart_again[7];
	word wake_at;
} head;

enum { HEAD = 4096 };

static head *ring;          // NULL: there is none
static word written, woken; // what the head has; the wake_at for which the watcher was woken

// without_limit reports whether this process may write so much into a file. It would get a signal.
static int without_limit(word size) {
	struct rlimit most;
	return !getrlimit(RLIMIT_FSIZE, &most) && (most.rlim_cur == RLIM_INFINITY || most.rlim_cur >= size);
}

// map makes a file that nobody can make smaller, and maps it.
static void *map(word size, int *file) {
	void *at = MAP_FAILED;
	if (!without_limit(size) || (*file = memfd_create("gpumemtrack", MFD_CLOEXEC | MFD_ALLOW_SEALING)) < 0)
		return NULL;
	if (!ftruncate(*file, (off_t)size) && !fcntl(*file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
	if (at != MAP_FAILED)
		return at;
	close(*file);
	*file = -1;
	return NULL;
}

// share makes the ring, or only a page for what is lost, and returns its file; -1 if it cannot.
static int share(word **lost) {
	int file = -1;
	head *its = ring = map(HEAD + RING, &file);
	if (!its)
		its = map(HEAD, &file);
	if (its)
		*lost = its->lost;
	return file;
}

// leave_ring takes the ring from the child of a fork: it is the parent's. What a signal interrupted
// may still write there.
static void leave_ring(void) {
	if (ring)
		mmap(ring, HEAD + RING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	ring = NULL;
	written = woken = 0;
}

static void copy_in(word at, const void *from, size_t n) {
	unsigned char *bytes = (unsigned char *)ring + HEAD;
	size_t begin = at % RING, first = n < RING - begin ? n : RING - begin;
	memcpy(bytes + begin, from, first);
	memcpy(bytes, (const unsigned char *)from + first, n - first);
}

// write_down adds a record, and reports whether there was room.
static int write_down(const void *from, word n) {
	word used = written - __atomic_load_n(&ring->read, __ATOMIC_ACQUIRE);
	if (used > RING - sizeof n - n) // also if the program wrote there
		return 0;
	copy_in(written, &n, sizeof n);
	copy_in(written + sizeof n, from, n);
	written += sizeof n + n;
	__atomic_store_n(&ring->written, written, __ATOMIC_SEQ_CST); // before wake_at is read: the watcher writes that, and then reads this
	return 1;
}

// wants_to_be_woken reports whether the watcher sleeps, and has not been woken yet.
static int wants_to_be_woken(void) {
	word at = __atomic_load_n(&ring->wake_at, __ATOMIC_SEQ_CST);
	if (at == woken || (int64_t)(written - at) < 0)
		return 0;
	woken = at;
	return 1;
}
