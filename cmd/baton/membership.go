package main

import (
	"context"
	"log/slog"

	"github.com/baton-llm/baton/internal/worker"
)

// membershipLog says which workers come and go. It is told with a pool locked,
// so it hands the lines to a goroutine; should that lag far behind, lines are
// dropped.
type membershipLog struct {
	log   *slog.Logger
	lines chan membershipLine
}

type membershipLine struct {
	added bool
	id    worker.ID
}

func newMembershipLog(log *slog.Logger) *membershipLog {
	return &membershipLog{log: log, lines: make(chan membershipLine, 4096)}
}

var _ worker.Observer = (*membershipLog)(nil)

// WorkerAdded implements [worker.Observer].
func (l *membershipLog) WorkerAdded(w *worker.Worker) { l.put(true, w) }

// WorkerRemoved implements [worker.Observer].
func (l *membershipLog) WorkerRemoved(w *worker.Worker) { l.put(false, w) }

func (l *membershipLog) put(added bool, w *worker.Worker) {
	select {
	case l.lines <- membershipLine{added, w.ID()}:
	default:
	}
}

// Run writes the lines until ctx is done.
func (l *membershipLog) Run(ctx context.Context) error {
	for {
		select {
		case line := <-l.lines:
			if line.added {
				l.log.LogAttrs(ctx, slog.LevelInfo, "worker added", slog.Any("worker", line.id))
			} else {
				l.log.LogAttrs(ctx, slog.LevelInfo, "worker removed", slog.Any("worker", line.id))
			}
		case <-ctx.Done():
			return nil
		}
	}
}
