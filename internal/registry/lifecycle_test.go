package registry_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/cockroachdb/datadriven"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/scenario"
	"github.com/baton-llm/baton/internal/worker"
)

// TestLifecycle runs the scripts of testdata/lifecycle: real registry, pools,
// leases and holds, real goroutines, and a clock that only "advance" moves.
//
//	register ROLE HOST [source=S] [ttl=D] [zmq=] [mode=] [tp=] [dp=] [dialect=] [incarnation=] [group=]
//	withdraw|remove|renew ROLE HOST [source=S]
//	block|unblock ROLE HOST REASON     as the owner of that reason would
//	models ROLE HOST NAMES             as the owner of health would
//	advance D
//	reverse                           lists come in the other order from here on
//	reconcile [ROLE]
//	pick ROLE[/check|/hold]... as NAME [policy=P] [model=M] [pair=HOST] [except=HOST] [work=WAITING/HELD]
//	release|computed|start|drop NAME [ROLE]
//	spread N ROLE [policy=P] [end=release]   N picks one after another; how often each was chosen
//	park NAME at list|choose ; resume NAME
//	state [ROLE]                      without a reconcile
func TestLifecycle(t *testing.T) {
	datadriven.Walk(t, "testdata/lifecycle", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage()
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				return s.run(t, d)
			})
			s.finish(t)
		})
	})
}

type stage struct {
	*scenario.Stage
	reg      *registry.Registry
	pools    map[worker.Role]*worker.Pool
	members  map[worker.Role][]*worker.Worker // as the observer was told
	all      []*worker.Worker
	requests map[string][]worker.Grant
	reversed bool
}

func newStage() *stage {
	s := &stage{
		Stage:    scenario.New(),
		reg:      registry.New(),
		pools:    make(map[worker.Role]*worker.Pool),
		members:  make(map[worker.Role][]*worker.Worker),
		requests: make(map[string][]worker.Grant),
	}
	for _, role := range worker.Roles() {
		s.pools[role] = worker.NewPool(worker.PoolConfig{
			Role:      role,
			Lister:    s,
			Observers: []worker.Observer{s},
			Dialects: func(e worker.Endpoint) uint64 {
				return map[string]uint64{"nixl": 1, "other": 2}[e.Speaks()]
			},
		})
	}
	return s
}

func (s *stage) Stamp(role worker.Role) uint64 { return s.reg.Stamp(role) }

func (s *stage) List(role worker.Role) []worker.Registration {
	regs := s.reg.List(role)
	slices.SortFunc(regs, func(a, b worker.Registration) int { return cmp.Compare(a.ID.URL, b.ID.URL) })
	if s.reversed {
		slices.Reverse(regs)
	}
	s.Reach("list")
	return regs
}

func (s *stage) WorkerAdded(w *worker.Worker) {
	role := w.ID().Role
	for _, m := range s.members[role] {
		if m.Label() == w.Label() {
			s.Log("BUG: %s added before %s was removed", name(w), name(m))
		}
	}
	s.members[role] = append(s.members[role], w)
	s.all = append(s.all, w)
	s.Log("+ %v %s", role, name(w))
}

func (s *stage) WorkerRemoved(w *worker.Worker) {
	role := w.ID().Role
	s.members[role] = slices.DeleteFunc(s.members[role], func(m *worker.Worker) bool { return m == w })
	s.Log("- %v %s", role, name(w))
}

// parkingChooser lets a script stop a request inside its choice.
type parkingChooser struct {
	policy.Choice
	s *stage
}

func (c parkingChooser) Choose(cands *worker.Candidates) *worker.Worker {
	w := c.Choice.Choose(cands)
	c.s.Reach("choose")
	return w
}

// byLoad is least load without turns: ties go by position.
type byLoad struct{ policy.LeastLoad }

type byLoadChoice struct{ policy.Choice }

func (p byLoad) Prepare(r *policy.Request, snap *worker.Snapshot) policy.Choice {
	return byLoadChoice{p.LeastLoad.Prepare(r, snap)}
}

func (byLoadChoice) Choose(c *worker.Candidates) *worker.Worker {
	best := c.At(0)
	for i := range c.Len() {
		if c.At(i).Chosen() < best.Chosen() {
			best = c.At(i)
		}
	}
	return best
}

func (s *stage) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	words, opts := split(d)
	if err := s.do(d.Cmd, words, opts); err != nil {
		s.Log("error: %v", err)
	}
	s.Settle()
	for _, role := range worker.Roles() {
		s.checkMembers(t, role)
	}
	return strings.Join(append(s.Take(), ""), "\n")
}

// checkMembers is L7 after every command: what the observer was told equals
// what the pool holds.
func (s *stage) checkMembers(t *testing.T, role worker.Role) {
	t.Helper()
	if !s.Idle() {
		return
	}
	got := slices.Clone(s.members[role])
	slices.SortFunc(got, func(a, b *worker.Worker) int { return cmp.Compare(a.Label(), b.Label()) })
	if want := s.pools[role].Snapshot().Workers; !slices.Equal(got, want) {
		t.Errorf("%v: observer has %d workers, pool %d", role, len(got), len(want))
	}
}

func (s *stage) do(cmd string, words []string, opts map[string]string) error {
	switch cmd {
	case "register":
		return s.register(words, opts)
	case "withdraw", "remove", "renew", "block", "unblock", "models":
		return s.change(cmd, words, opts)
	case "advance":
		d, err := time.ParseDuration(words[0])
		time.Sleep(d)
		return err
	case "reverse":
		s.reversed = !s.reversed
	case "reconcile":
		for _, role := range roles(words) {
			s.Go("reconcile", func() string { s.pools[role].Reconcile(); return "" })
			s.Settle()
		}
	case "pick":
		return s.pick(words, opts)
	case "release", "computed", "start", "drop":
		return s.end(cmd, words)
	case "spread":
		return s.spread(words, opts)
	case "park":
		s.Park(words[0], words[2])
	case "resume":
		if !s.Resume(words[0]) {
			return fmt.Errorf("%s is not parked", words[0])
		}
	case "state":
		s.state(roles(words))
	default:
		return fmt.Errorf("unknown command %q", cmd)
	}
	return nil
}

func (s *stage) register(words []string, opts map[string]string) error {
	reg := worker.Registration{
		ID: worker.ID{Role: role(words[0]), URL: "http://" + words[1]},
		Endpoint: worker.Endpoint{
			ZMQ: opts["zmq"], Mode: opts["mode"], Dialect: opts["dialect"], Incarnation: opts["incarnation"],
			TP: number(opts["tp"]), DP: number(opts["dp"]),
		},
	}
	if group, ok := opts["group"]; ok {
		reg.Labels = map[string]string{worker.GroupLabel: group}
	}
	ttl, _ := time.ParseDuration(opts["ttl"])
	id, change, err := s.reg.Register(cmp.Or(opts["source"], "test"), reg, ttl)
	if err == nil {
		s.Log("%s %v", short(id), change)
	}
	return err
}

func (s *stage) change(cmd string, words []string, opts map[string]string) error {
	r, url, source := role(words[0]), "http://"+words[1], cmp.Or(opts["source"], "test")
	switch cmd {
	case "withdraw":
		if !s.reg.Withdraw(source, r, url, 0) {
			return registry.ErrUnknown
		}
		return nil
	case "remove":
		return s.reg.Remove(source, r, url, 0)
	}
	w := s.worker(r, url)
	if w == nil {
		return fmt.Errorf("no worker %s", url)
	}
	switch cmd {
	case "renew":
		s.Log("renewed: %v", s.reg.Renew(w.ID()))
	case "block":
		w.Block(reason(words[2]))
	case "unblock":
		w.Unblock(reason(words[2]))
	case "models":
		w.SetModels(worker.NewModels(strings.Split(words[2], ",")...))
	}
	return nil
}

func (s *stage) worker(r worker.Role, url string) *worker.Worker {
	for _, w := range s.pools[r].Snapshot().Workers {
		if w.ID().URL == url {
			return w
		}
	}
	return nil
}

func (s *stage) needs(specs []string, opts map[string]string) ([]worker.Need, error) {
	var p policy.Policy = byLoad{}
	if name := cmp.Or(opts["policy"], "least_load"); name != "load_only" {
		var err error
		if p, err = policy.New(name, policy.DefaultConfig()); err != nil {
			return nil, err
		}
	}
	var needs []worker.Need
	for _, spec := range specs {
		roleName, how, _ := strings.Cut(spec, "/")
		pool := s.pools[role(roleName)]
		var work worker.Work
		if v, ok := opts["work"]; ok {
			waiting, held, _ := strings.Cut(v, "/")
			work = worker.Work{Waiting: int64(number(waiting)), Held: int64(number(held))}
		}
		n := worker.Need{
			Pool:    pool,
			Take:    map[string]worker.Take{"": worker.Acquire, "hold": worker.AcquireHold, "check": worker.Check}[how],
			Chooser: parkingChooser{p.Prepare(&policy.Request{Work: work}, pool.Snapshot()), s},
		}
		if m, ok := opts["model"]; ok {
			n.Want.Model = unique.Make(m)
		}
		if url, ok := opts["except"]; ok {
			n.Want.Except = []*worker.Worker{s.worker(pool.Role(), "http://"+url)}
		}
		if url, ok := opts["pair"]; ok {
			n.Want.Pair = s.worker(worker.Prefill, "http://"+url)
		}
		if d, ok := opts["dialects"]; ok {
			n.Want.Dialects = uint64(number(d))
		}
		needs = append(needs, n)
	}
	return needs, nil
}

func (s *stage) pick(words []string, opts map[string]string) error {
	i := slices.Index(words, "as")
	request := words[i+1]
	needs, err := s.needs(words[:i], opts)
	if err != nil {
		return err
	}
	s.Go(request, func() string {
		grants, err := worker.Pick(needs...)
		if err != nil {
			return err.Error()
		}
		s.requests[request] = grants
		var chosen []string
		for _, g := range grants {
			if w := g.Worker(); w != nil {
				chosen = append(chosen, fmt.Sprintf("%v %s", w.ID().Role, name(w)))
			}
		}
		return "-> " + strings.Join(chosen, ", ")
	})
	return nil
}

func (s *stage) end(cmd string, words []string) error {
	grants := s.requests[words[0]]
	if grants == nil {
		return fmt.Errorf("%s has nothing", words[0])
	}
	for i := range grants {
		g := &grants[i]
		if g.Worker() == nil || len(words) > 1 && g.Worker().ID().Role != role(words[1]) {
			continue
		}
		switch cmd {
		case "release":
			g.Lease.Release()
		case "computed":
			g.Lease.Computed()
		case "drop":
			g.Hold.Drop()
		case "start":
			if lease, err := g.Hold.Start(); err != nil {
				s.Log("%s: %v", words[0], err)
			} else {
				g.Lease = lease
			}
		}
	}
	return nil
}

func (s *stage) spread(words []string, opts map[string]string) error {
	counts := make(map[string]int)
	var open []*worker.Lease
	for range number(words[0]) {
		needs, err := s.needs(words[1:2], opts)
		if err != nil {
			return err
		}
		grants, err := worker.Pick(needs...)
		if err != nil {
			return err
		}
		counts[name(grants[0].Worker())]++
		if opts["end"] == "release" {
			grants[0].Lease.Release()
		} else {
			open = append(open, grants[0].Lease)
		}
	}
	for _, l := range open {
		l.Release()
	}
	for _, n := range slices.Sorted(maps.Keys(counts)) {
		s.Log("%s %d", n, counts[n])
	}
	return nil
}

func (s *stage) state(roles []worker.Role) {
	for _, role := range roles {
		for _, w := range s.pools[role].Snapshot().Workers {
			s.Log("%v %s", role, describe(w))
		}
		for _, w := range s.all {
			if w.ID().Role == role && w.Departed() && w.Chosen() != 0 {
				s.Log("%v %s (departed)", role, describe(w))
			}
		}
	}
}

func describe(w *worker.Worker) string {
	text := fmt.Sprintf("%s load=%d picked=%d", name(w), w.Load(), w.Picked())
	if w.Holds() != 0 {
		text += fmt.Sprintf(" holds=%d", w.Holds())
	}
	if work := w.ChosenWork(); work != (worker.Work{}) {
		text += fmt.Sprintf(" waiting=%d held=%d", work.Waiting, work.Held)
	}
	if e := w.Endpoint(); e != (worker.Endpoint{}) {
		text += fmt.Sprintf(" zmq=%s", e.ZMQ)
	}
	return text + " " + w.Blocked().String()
}

// finish ends what the script left open and checks L9: all loads are 0.
func (s *stage) finish(t *testing.T) {
	for n := range s.requests {
		for _, g := range s.requests[n] {
			if g.Lease != nil {
				g.Lease.Release()
				g.Lease.Release()
			}
			if g.Hold != nil {
				g.Hold.Drop()
			}
		}
	}
	for _, w := range s.all {
		if w.Chosen() != 0 || w.ChosenWork() != (worker.Work{}) {
			t.Errorf("%s ends with %s", w.ID(), describe(w))
		}
	}
	if !s.Idle() {
		t.Error("the script ends with requests still running")
	}
}

func split(d *datadriven.TestData) (words []string, opts map[string]string) {
	opts = make(map[string]string)
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) > 0 {
			opts[arg.Key] = strings.Join(arg.Vals, ",")
		} else {
			words = append(words, arg.Key)
		}
	}
	return words, opts
}

func role(s string) worker.Role {
	for _, r := range worker.Roles() {
		if r.String() == s {
			return r
		}
	}
	panic("unknown role " + strconv.Quote(s))
}

func roles(words []string) []worker.Role {
	if len(words) == 0 {
		return worker.Roles()
	}
	return []worker.Role{role(words[0])}
}

func reason(s string) worker.Block {
	for b := worker.Pending; b <= worker.Full; b <<= 1 {
		if b.String() == s {
			return b
		}
	}
	panic("unknown reason " + strconv.Quote(s))
}

func number(s string) int {
	n, err := strconv.Atoi(cmp.Or(s, "0"))
	if err != nil {
		panic(err)
	}
	return n
}

func name(w *worker.Worker) string { return short(w.ID()) }

func short(id worker.ID) string { return strings.TrimPrefix(id.String(), "http://") }

func TestClaimedError(t *testing.T) {
	r := registry.New()
	reg := worker.Registration{ID: worker.ID{Role: worker.Decode, URL: "http://a"}}
	for _, source := range []string{"static", "api"} {
		if _, _, err := r.Register(source, reg, 0); err != nil {
			t.Fatal(err)
		}
	}
	err := r.Remove("api", worker.Decode, "http://a", 0)
	claimed, ok := errors.AsType[*registry.ClaimedError](err)
	if !ok || !slices.Equal(claimed.Sources, []string{"static"}) {
		t.Errorf("got %v, want a claim of static", err)
	}
}
