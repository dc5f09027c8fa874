package leakprograms

import "time"

// Want is what the two statements must reach in a program that leaks: found so long after the leak
// began, as a median; 0 is never.
type Want struct{ Forgotten, Growing time.Duration }

const minute = time.Minute

// Wants are those of the programs, by name.
var Wants = map[string]Want{
	"10 requests a second, 1 in 400 forgotten on an error path":                                                {7 * minute, 6 * minute},
	"a cache without a bound, refreshes 1 hit in 2":                                                            {0, minute},
	"a cache without a bound, refreshes 1 hit in 5":                                                            {0, minute},
	"a cache without a bound, refreshes 1 hit in 20":                                                           {0, minute},
	"a cache without a bound, refreshes nothing":                                                               {0, minute},
	"a cache that adds 1 a second, and replaces 1 for each 20 that it adds":                                    {0, minute},
	"a cache that adds 1 a second, and replaces 1 for each 2 that it adds":                                     {0, minute},
	"16 workers; every 5 min or so one gets stuck for 10 s and forgets its buffers, on a call path of its own": {0, 60 * minute},
	"streams of 1 s to 5 min, 1 in 70 forgotten":                                                               {40 * minute, 31 * minute},
	"2 requests a second, 1 in 100 forgotten from the second day on":                                           {12 * minute, 405 * minute},
	"one line for parameters, 5 requests a second, and a call path that leaks 1 every 2 min":                   {0, 17 * minute},
	"one line for sessions of 10 s to 3 h, and for 1 request a second, of which 1 in 200 is forgotten":         {29 * minute, 29 * minute},
	"sessions, many by day and few by night, 1 in 300 forgotten":                                               {20 * 60 * minute, 32 * 60 * minute},
	"a call path that never frees leaks 1 every 2 min, from the second day on":                                 {0, 405 * minute},
	"64 call paths to one line, 5 requests a second, 1 in 400 forgotten":                                       {12 * minute, 11 * minute},
	"1 request every 5 s, every second one forgotten":                                                          {5 * minute, 3 * minute},
}

// CannotKnow are the programs without a leak of which buffers look forgotten for some time.
var CannotKnow = map[string]bool{
	"every 2 h, for 10 min, 1 request in 20 waits until these are over": true,
	"1 request in 100 is a session of exactly 2 h":                      true,
}
