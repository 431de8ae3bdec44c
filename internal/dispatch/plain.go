package dispatch

import (
	"errors"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/worker"
)

// maxTries is how often a leg, or a pair, is tried: once more elsewhere.
const maxTries = 2

// plain carries the request out as one leg to a worker of the first of the
// roles that has a candidate. A worker that cannot be reached is replaced once.
func (r *run) plain(roles ...worker.Role) error {
	var except []*worker.Worker
	var failed error
	for try := 1; ; try++ {
		lease, reason, err := r.pickPlain(roles, except)
		if err != nil {
			if failed != nil {
				return failed
			}
			return err
		}
		w := lease.Worker()
		err = r.plainLeg(lease, reason)
		if !exchange.Unsent(err) {
			return err
		}
		takeBack(r.undo)
		if try == maxTries || r.ctx.Err() != nil {
			return err
		}
		r.d.counts.retries[w.ID().Role].Add(1)
		failed, except = err, append(except, w)
	}
}

func (r *run) pickPlain(roles []worker.Role, except []*worker.Worker) (*worker.Lease, string, error) {
	want := r.want()
	want.Except = except
	var last error
	for _, role := range roles {
		choice := r.choice(role)
		grants, err := worker.Pick(worker.Need{Pool: r.d.deps.Pools[role], Take: worker.Acquire, Want: want, Chooser: choice})
		if err == nil {
			r.undo = choice.Keep(grants[0].Worker())
			return grants[0].Lease, choice.Reason(), nil
		}
		if last == nil || r.registered(role) {
			last = err
		}
	}
	if len(roles) > 1 {
		none, _ := errors.AsType[*worker.NoneError](last)
		return nil, "", r.noneError(none)
	}
	return nil, "", last
}

func (r *run) plainLeg(lease *worker.Lease, reason string) error {
	w := lease.Worker()
	fields := pd.LegFields(r.legID(), w)
	l := r.newLeg(lease, reason)
	defer l.close()
	if err := l.send(r.head(fields), r.call.Request.Body); err != nil {
		return r.legError(w.ID().Role, err)
	}
	return r.relay(l)
}
