// A library that calls back. Built without tables and without frame pointers, nothing tells where its caller is.
int frameless(int (*back)(int), int n) { return back(n) + 1; }
