// Package gocronelector runs the jobs of a gocron scheduler on the leader only, and gives them its
// stamp.
//
//	elector := gocronelector.New(e) // e is a tenure.Elector, on any engine
//	go elector.Run(ctx, tenure.WithSinks(sink))
//	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//	…
//	_, err = s.NewJob(gocron.CronJob("0 3 * * *", false), elector.Task(func(ctx context.Context, term *tenure.Term) error {
//		return sink.Write(ctx, term.Stamp(), report)
//	}))
//
// Every process has the same jobs. gocron asks the elector before each run; on processes that do
// not lead, the run is skipped. The context of a job ends with the term. The group is given up only
// after all running jobs have returned, so a planned handover never runs a job on two processes.
//
// # Limitations
//
// A run that is due while nobody leads, or in the moment of a handover, is skipped and not made up
// for. A job that was interrupted is not started again by the next leader: it runs when it is due
// next.
//
// A leader that is paused or cut off cannot know that another leads. Use the stamp with a fenced
// sink, see package fence. A job that gocron.NewTask made starts on the leader only, but sees no
// term, is not cancelled, and is not waited for.
package gocronelector
