package leakprograms

import "time"

// Want is what the two statements must reach in a program that leaks: found so long after the leak
// began, as a median; 0 is never.
type Want struct{ Forgotten, Growing time.Duration }

const minute = time.Minute

// Wants are those of the programs, by name.
var Wants = map[string]Want{
	"error path, 1 of 400 of 10/s":                                            {7 * minute, 6 * minute},
	"unbounded Zipf cache, 1 hit in 2 refreshed":                              {0, minute},
	"unbounded Zipf cache, 1 hit in 5":                                        {0, minute},
	"unbounded Zipf cache, 1 hit in 20":                                       {0, minute},
	"unbounded Zipf cache, none refreshed":                                    {0, minute},
	"cache +1/s, replaces 1 per 20 added":                                     {0, minute},
	"cache +1/s, replaces 1 per 2 added":                                      {0, minute},
	"stuck worker of 16 each ~5 min, own path":                                {0, 60 * minute},
	"streams 1 s to 5 min, 1 in 70 forgotten":                                 {40 * minute, 31 * minute},
	"1 in 100 of 2/s, only after a day":                                       {12 * minute, 405 * minute},
	"one line: parameters, requests 5/s, a path that leaks 1 each 2 min":      {0, 17 * minute},
	"one line: sessions 10 s to 3 h, and a path that forgets 1 in 200 of 1/s": {29 * minute, 29 * minute},
	"day and night, sessions, 1 in 300 forgotten":                             {20 * 60 * minute, 32 * 60 * minute},
	"a path that never frees leaks 1 each 2 min, after a day":                 {0, 405 * minute},
	"64 paths to one line, 1 of 400 of 5/s forgotten":                         {12 * minute, 11 * minute},
	"every second one of 1 each 5 s":                                          {5 * minute, 3 * minute},
}

// CannotKnow are the programs without a leak of which buffers look forgotten for some time.
var CannotKnow = map[string]bool{
	"1 request in 20 waits 10 min, each 2 h for 10 min": true,
	"1 in 100 requests is a session of just 2 h":        true,
}
