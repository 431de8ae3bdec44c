package dispatch

import (
	"errors"
	"fmt"
	"net/http"
	"unique"

	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// route gives the request its plan and carries it out.
func (r *run) route() error {
	if err := r.defaultModel(); err != nil {
		return err
	}
	req := r.call.Request
	switch {
	case req.Route.Class == openai.Pairable && req.Whole == "":
		return r.pairOrPlain()
	case req.Route.Class == openai.Pairable:
		return r.plainOnly(&Error{
			Status: http.StatusBadRequest, Code: "not_in_pd", Param: req.Whole,
			Message: req.Whole + " needs one worker that computes prompt and tokens, and this fleet has only prefill and decode workers",
		})
	case req.Route.Class == openai.Whole:
		return r.plainOnly(&Error{
			Status: http.StatusNotImplemented, Code: "not_served_in_pd",
			Message: "this path needs a worker that computes prompt and tokens, and this fleet has only prefill and decode workers",
		})
	case req.Route.Class == openai.Stored:
		return r.plain(worker.Regular, worker.Decode)
	default:
		return r.plain(worker.Regular, worker.Prefill, worker.Decode)
	}
}

// pairOrPlain shares the work between prefill and decode if it can, else uses
// one worker that does both.
func (r *run) pairOrPlain() error {
	pairErr := r.pairs()
	none, ok := errors.AsType[*worker.NoneError](pairErr)
	if !ok {
		return pairErr
	}
	plainErr := r.plain(worker.Regular)
	if !errors.Is(plainErr, worker.ErrNone) {
		return plainErr
	}
	if r.pairsOfOtherDialects() {
		return &Error{
			Status: http.StatusNotImplemented, Code: "not_served_by_connector", Err: none,
			Message: "the KV connector of this fleet does not serve this path",
		}
	}
	if r.registered(worker.Prefill) || r.registered(worker.Decode) {
		return r.noneError(none)
	}
	regular, _ := errors.AsType[*worker.NoneError](plainErr)
	return r.noneError(regular)
}

// plainOnly uses a regular worker. If there is none although a pair could be
// had, inPairs is the error.
func (r *run) plainOnly(inPairs *Error) error {
	err := r.plain(worker.Regular)
	none, ok := errors.AsType[*worker.NoneError](err)
	if !ok {
		return err
	}
	if !r.registered(worker.Regular) && (r.registered(worker.Prefill) || r.registered(worker.Decode)) {
		return inPairs
	}
	return r.noneError(none)
}

// registered reports whether any worker of the role may serve the model, ready
// or not.
func (r *run) registered(role worker.Role) bool {
	model := r.want().Model
	for _, w := range r.d.members(role) {
		if w.Serves(model) {
			return true
		}
	}
	return false
}

// members returns the workers of a role as the registry has them now. Requests
// that are about to start have no need for it: picks reconcile.
func (d *Dispatcher) members(role worker.Role) []*worker.Worker {
	d.deps.Pools[role].Reconcile()
	return d.deps.Pools[role].Snapshot().Workers
}

// pairsOfOtherDialects reports whether a pair could be had of a dialect that is
// built but does not serve the route.
func (r *run) pairsOfOtherDialects() bool {
	var all uint64
	for _, group := range r.d.takes {
		all |= group.dialects
	}
	rest := all &^ r.dialects()
	if rest == 0 {
		return false
	}
	want := r.want()
	want.Dialects = rest
	_, err := worker.Pick(
		worker.Need{Pool: r.d.deps.Pools[worker.Prefill], Take: worker.Check, Want: want},
		worker.Need{Pool: r.d.deps.Pools[worker.Decode], Take: worker.Check, Want: want},
	)
	return err == nil
}

// dialects returns the bits of the dialects that serve the request's route.
func (r *run) dialects() uint64 {
	var bits uint64
	for i, d := range r.d.deps.Dialects {
		spec := d.Spec()
		if spec.Serves(r.call.Request.Route) {
			bits |= 1 << i
		}
	}
	return bits
}

func (r *run) want() worker.Want {
	var want worker.Want
	if model := r.call.Request.Model; model != "" {
		want.Model = unique.Make(model)
	}
	return want
}

// defaultModel settles which model a request means that names none: the one
// that every worker would take. Two legs must not mean different ones.
func (r *run) defaultModel() error {
	req := r.call.Request
	if req.Model != "" || req.Route.Class == openai.Auxiliary && len(req.Body) == 0 {
		return nil
	}
	model := ""
	for _, role := range worker.Roles() {
		for _, w := range r.d.members(role) {
			names := w.Models().Names()
			if len(names) == 0 || names[0] == model {
				continue
			}
			if model != "" {
				return &Error{
					Status: http.StatusBadRequest, Code: "model_required", Param: "model",
					Message: fmt.Sprintf("the workers serve several models, such as %q and %q: name one in model", model, names[0]),
				}
			}
			model = names[0]
		}
	}
	req.Model = model
	return nil
}

// choice prepares the role's policy for this request.
func (r *run) choice(role worker.Role) policy.Choice {
	model := r.call.Request.Model
	r.choosing.Work, r.choosing.Model, r.choosing.BytesPerToken = r.work(role), model, r.d.tokens.ratio(model)
	return r.d.deps.Policies[role].Prepare(&r.choosing, r.d.deps.Pools[role].Snapshot())
}
