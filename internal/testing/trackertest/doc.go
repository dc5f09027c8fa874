// Package trackertest runs a MemTracker over any device: the simulated GPU, an
// emulated driver, a real one.
//
// These are the checks of what must always be true of the library, whichever program uses it.
// Those without a package are this one's, and hold after every operation of the oracle's
// random programs, or after every round of those whose goroutines run at once.
//
// 1. The ledger is exact: live bytes are the sum over live records and over groups.
//
//	replay.compare
//	subject.check
//	RequireExact
//	tracker.TestWhatWasLiveAtThePeakIsKnown
//
// 2. The deltas of all marks, added up, give the last mark's live table.
//
//	subject.marked
//	tracker/internal/ledger.TestAMarkIsOfOneInstant
//
// 3. allocated <= reserved; blocks tile their segment; current <= peak.
//
//	pool.check
//	subject.checkLevels
//	internal/testing/cachetest.Invariants
//
// 4. Any goroutine may call anything, callbacks included. No lock is held while code that is not
// ours runs.
//
//	world.callback
//	world.await
//	tracker.TestClockMayUseTheTracker
//	tracker.TestWritersMayCallAnything
//	tracker.TestLoggersMayCallAnything
//
// 5. A failed call changes nothing; a call that changed something does not report failure.
//
//	worker.impossible
//	worker.freeTwice
//	subject.check
//	tracker.TestFreeAfterCloseSucceeds
//	alloc/cache.TestFreeErrorsChangeNothing
//	alloc/cache.TestDriverErrorChangesNothing
//
// 6. What is written survives the program's death.
//
//	subject.checkReport
//	tracker.TestReportOfAKilledProgram
//
// 7. Closing the tracker takes every hook and every kept event away.
//
//	subject.checkClosed
//	world.finish
//	tracker.TestCloseReleasesTheDevicesEvents
//
// 8. Everything kept is bounded.
//
//	subject.catchUp
//	subject.checkReaders
//	tracker.TestPathsAreBounded
//	tracker.TestOpenSectionsAreBounded
//	tracker.TestReportIsBounded
//	tracker/internal/ledger.TestNamedStacksAreBounded
//
// 9. Whoever looks holds no allocation up for more than a millisecond.
//
//	internal/slab.TestReadHoldsTheLockForOneChunk
//	internal/slab.TestAChangeIsCopiedOnceForAllViews
//	tracker/internal/ledger.TestAMarkTakesFewBucketsAtOnce
//	tracker/internal/ledger.TestReadHoldsTheLockForAChunkOfEvents
//	internal/spinlock.TestWhoAskedIsNext
//	tracker/live.BenchmarkAllocBesideReaders
//
// 10. Text from outside is escaped for the place it goes to and is valid UTF-8 there.
//
//	subject.checkJSON
//	tracker.TestNamesFromOutsideInAReport
//	tracker/export/html.TestPageEscapesWhatItShows
//
// 11. A value that a driver did not give is unknown, never 0 and never made up.
//
//	subject.checkLevels
//	alloc/cache.TestOutOfMemoryWithoutMemInfo
//	tracker.TestUntrackedIsUnknownWhereMoreIsRegisteredThanTheDriverHasInUse
package trackertest
