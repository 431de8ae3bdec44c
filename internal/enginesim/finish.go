package enginesim

import (
	"errors"
	"net/http"
)

// conclude ends the answer, whatever the work came to.
func (j *job) conclude(err error) error {
	var inj injection
	switch {
	case errors.Is(err, errClosed):
		inj = "abort"
	case errors.As(err, &inj), err == nil, errors.Is(err, errLoad):
	default:
		if errors.Is(err, errGone) {
			j.c.linger()
			if j.leg() == LegDecode {
				j.e.conn.drop(j) // before the load; nothing to do after it
			}
		}
		j.settle()
		return err
	}
	if j.late != nil {
		if j.leg() == LegDecode {
			j.e.conn.drop(j)
		}
		return j.failed(j.late)
	}
	if inj == "error_event" || errors.Is(err, errLoad) {
		j.end(finishError)
		return j.failed(internalError())
	}
	switch inj {
	case "abort":
		j.end(finishAbort)
	case "error_finish":
		j.end(finishError)
	}
	j.settle()
	return j.deliver()
}

// end gives the choices whose end was not sent a finish reason.
func (j *job) end(reason string) {
	for _, s := range j.seqs {
		if s.finish == "" || j.stream && !s.over {
			s.finish = reason
		}
	}
}

func (j *job) failed(e *apiError) error {
	j.settle()
	if !j.stream {
		return j.c.refuse(e)
	}
	if err := j.events(j.view.failure(j, e)); err != nil {
		return err
	}
	j.c.endStream()
	return nil
}

func (j *job) deliver() error {
	if !j.stream {
		if v, ok := j.view.(interface{ unfit(*job) *apiError }); ok {
			if err := v.unfit(j); err != nil {
				return j.c.refuse(err)
			}
		}
		body := j.view.whole(j)
		return j.c.answer(http.StatusOK, "application/json", body)
	}
	for _, s := range j.seqs {
		if !s.over {
			if err := j.deliverDelta(s); err != nil {
				return err
			}
		}
	}
	if err := j.events(j.view.closing(j)); err != nil {
		return err
	}
	j.c.endStream()
	return nil
}

// deliverDelta sends what is pending of s.
func (j *job) deliverDelta(s *sequence) error {
	before := j.c.sent
	err := j.events(j.view.delta(j, s.take()))
	s.started = s.started || j.c.sent > before
	s.over = err == nil && s.finish != ""
	return err
}

// settle counts the request and gives its blocks back, once. It comes before the
// end of the answer, so that who has read that sees true figures.
func (j *job) settle() {
	if j.settled || j.ticket == nil {
		return
	}
	j.settled = true
	e := j.e
	e.mu.Lock()
	for i, s := range j.seqs {
		reason := s.finish
		if reason == "" {
			reason = finishAbort
		}
		j.ticket.rank.finished[reason]++
		if j.ticket.granted {
			e.keepLocked(s, i%j.n == 0, j.extra())
		}
	}
	e.mu.Unlock()
	e.conn.finished(j)
	e.leave(j.ticket)
}

// usageOf returns the token counts of the answer so far.
func (j *job) usageOf() (prompt, completion int) {
	for _, s := range j.seqs {
		completion += len(s.tokens)
	}
	return j.promptTokens(), completion
}
