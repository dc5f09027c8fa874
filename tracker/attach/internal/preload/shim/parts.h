// Reads parts of this process's memory that may not be there. The kernel copies them, and finds out
// by that: what it says is there has been read.

static ssize_t some(void *to, word from, size_t n) {
	struct iovec here = {to, n}, there = {(void *)from, n};
	return process_vm_readv(getpid(), &here, 1, &there, 1, 0);
}

static int copy(void *to, word from, size_t n) { return some(to, from, n) == (ssize_t)n; }

static word word_at(word address) {
	word w = 0;
	return copy(&w, address, sizeof w) ? w : 0;
}

// gather copies parts to one place, one behind the other, and returns how many bytes it copied
// before the first that is not there; -1 if that is none, or if an address is no program's. The
// parts are "here" for process_vm_writev, and their copy is "there": the kernel looks up each page
// that is there, which takes ten times as long as the copy of a part, and only follows the
// addresses of what is here. The process number is asked for each time: a child made by a system
// call has another, and must not write into its parent.
static ssize_t gather(void *to, const struct iovec *parts, unsigned n) {
	struct iovec copies = {to, 0};
	for (unsigned i = 0; i < n; i++)
		copies.iov_len += parts[i].iov_len;
	return process_vm_writev(getpid(), parts, n, &copies, 1, 0);
}

// read_parts copies parts to one place, one behind the other, and says which of them are there. It
// returns whether all are. There are at most IOV_MAX parts, and the size of each is a multiple of a
// word's, or 0.
static int read_parts(void *to, const struct iovec *parts, unsigned n, unsigned char *is_there) {
	unsigned char *next = to;
	int all = 1;
	for (unsigned i = 0; i < n; i++) {
		ssize_t got = gather(next, parts + i, n - i);
		for (; i < n && got >= (ssize_t)parts[i].iov_len; i++) {
			is_there[i] = 1;
			got -= (ssize_t)parts[i].iov_len;
			next += parts[i].iov_len;
		}
		if (i < n) { // it may be there even so: that the address of a later one is no program's fails the whole call
			is_there[i] = gather(next, parts + i, 1) == (ssize_t)parts[i].iov_len;
			all = all && is_there[i];
			next += parts[i].iov_len;
		}
	}
	return all;
}
