package dispatch

import (
	"errors"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
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
		lease, why, err := r.pickPlain(roles, except)
		if err != nil {
			if failed != nil {
				return failed
			}
			return err
		}
		w := lease.Worker()
		err = r.plainLeg(lease, why)
		if !exchange.Unsent(err) {
			return err
		}
		takeBack(r.undo)
		if try == maxTries || r.ctx.Err() != nil {
			return err
		}
		r.countRetry(w.ID().Role)
		failed, except = err, append(except, w)
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

func (r *run) plainLeg(lease *worker.Lease, why policy.Why) error {
	w := lease.Worker()
	fields := pd.LegFields(r.legID(), w)
	l := r.newLeg(lease, why)
	defer l.close()
	if err := l.send(r.head(fields), r.call.Request.Body); err != nil {
		return r.legError(w.ID().Role, err)
	}
	return r.relay(l)
}
