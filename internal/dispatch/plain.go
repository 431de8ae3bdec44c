package dispatch

import (
	"errors"
	"net/http"
	"slices"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// maxTries is how often a leg, or a pair, is tried: once more elsewhere.
const maxTries = 2

// plain carries the request out as one leg to a worker of the first of the
// roles that has a candidate. A worker that cannot be reached is replaced once.
// A stored response is known to the worker alone that made it: the others are
// asked in turn until one has it.
func (r *run) plain(roles ...worker.Role) error {
	var except []*worker.Worker
	var failed error
	for try := 1; ; try++ {
		lease, why, err := r.pickPlain(roles, except)
		if err != nil {
			if failed != nil {
				return failed
			}
			return err
		}
		w := lease.Worker()
		err = r.plainLeg(lease, why, roles, except)
		notStored := errors.Is(err, errNotStored)
		if !notStored && !exchange.Unsent(err) {
			return err
		}
		takeBack(r.undo)
		except = append(except, w)
		if notStored {
			try-- // a search, no failure
			failed = &Error{
				Status: http.StatusNotFound, Code: "response_not_found",
				Message: "no worker that is ready has this response stored",
			}
			continue
		}
		if try == maxTries || r.ctx.Err() != nil {
			return err
		}
		r.countRetry(w.ID().Role)
		failed = err
	}
}

func (r *run) pickPlain(roles []worker.Role, except []*worker.Worker) (*worker.Lease, policy.Why, error) {
	want := r.want()
	want.Except = except
	var last error
	for _, role := range roles {
		choice := r.choice(role)
		grants, err := worker.Pick(worker.Need{Pool: r.d.deps.Pools[role], Take: worker.Acquire, Want: want, Chooser: choice})
		if err == nil {
			w := grants[0].Worker()
			r.undo = choice.Keep(w)
			return grants[0].Lease, choice.Why(w), nil
		}
		if last == nil || r.registered(role) {
			last = err
		}
	}
	if len(roles) > 1 {
		none, _ := errors.AsType[*worker.NoneError](last)
		return nil, policy.Why{}, r.noneError(none)
	}
	return nil, policy.Why{}, last
}

// others reports whether one of the roles has a candidate besides w.
func (r *run) others(roles []worker.Role, except []*worker.Worker, w *worker.Worker) bool {
	want := r.want()
	want.Except = append(slices.Clip(except), w)
	return slices.ContainsFunc(roles, func(role worker.Role) bool {
		_, err := worker.Pick(worker.Need{Pool: r.d.deps.Pools[role], Take: worker.Check, Want: want})
		return err == nil
	})
}

// errNotStored says that a worker does not have the response asked for.
var errNotStored = errors.New("not stored there")

// maxNotStored is how much is read of an answer that is not passed on.
const maxNotStored = 64 << 10

// plainLeg sends the one leg and relays its answer. If the worker does not have a
// stored response, and one of the roles has another one to be asked, the error is
// errNotStored.
func (r *run) plainLeg(lease *worker.Lease, why policy.Why, roles []worker.Role, except []*worker.Worker) error {
	w := lease.Worker()
	fields := pd.LegFields(r.legID(), w)
	l := r.newLeg(lease, why)
	defer l.close()
	if err := l.send(r.head(fields), r.call.Request.Body); err != nil {
		return r.legError(w.ID().Role, err)
	}
	if l.answer.Status == http.StatusNotFound && r.call.Request.Stored() && r.others(roles, except, w) {
		_, _ = readAnswer(l, maxNotStored) // the connection is kept
		return errNotStored
	}
	return r.relay(l)
}
