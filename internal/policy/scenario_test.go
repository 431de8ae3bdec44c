package policy_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// small is the default configuration with an index fit for many tests at once.
func small() policy.Config {
	cfg := policy.DefaultConfig()
	cfg.IndexMemory = 4 << 20
	return cfg
}

// source is a request as a policy sees it, and what it has been asked.
type source struct {
	root               []string
	key                string
	session, placement string
	header             string // session from x-session-id
	asked              map[string]int
}

func (s *source) note(what string) {
	if s.asked == nil {
		s.asked = make(map[string]int)
	}
	s.asked[what]++
}

func (s *source) KeyRoot() []string {
	s.note("root")
	return s.root
}

func (s *source) WriteKey(w openai.KeyWriter) {
	s.note("key")
	_, _ = w.Write([]byte(s.key))
}

func (s *source) Session() openai.Session {
	s.note("session")
	if s.header != "" {
		return openai.Session{Key: "header:x-session-id:" + s.header, ID: s.header}
	}
	if s.session == "" {
		return openai.Session{}
	}
	return openai.Session{Key: "session:" + s.session, ID: s.session}
}

func (s *source) Placement() string {
	s.note("placement")
	return s.placement
}

// text makes a prompt of a pattern such as A2000B500: stretches that differ in
// their letter, so that equal beginnings of patterns are equal beginnings of
// prompts.
func text(pattern string) string {
	var b strings.Builder
	for len(pattern) > 0 {
		letter := pattern[:1]
		end := 1
		for end < len(pattern) && pattern[end] >= '0' && pattern[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(pattern[1:end])
		if err != nil {
			panic(err)
		}
		b.WriteString(strings.Repeat(letter, n))
		pattern = pattern[end:]
	}
	return b.String()
}

// TestScenarios runs the scripts of testdata: one policy, a real registry and
// pool, and requests that are picked and kept as dispatch does it.
//
//	policy NAME [role=R] [window=N] [abs=N] [rel=N] [threshold=N] [ttl=D] [sessions=N]
//	worker NAME...                register
//	withdraw|renew NAME           leave; be replaced
//	block|unblock NAME            be down for a while
//	foreign NAME N                that many requests from elsewhere
//	engine NAME tokens=N          KV cache of N tokens
//	empty NAME                    its engine loses what is in it
//	pick R [prompt=PATTERN] [tokens=N] [session=S] [text=T] [model=M] [except=NAME] [lost]
//	computed|release|undo R...    prompt phase over; lease over; affinity taken back
//	burst N tokens=T [session]    distinct prompts, or new sessions, released at the end
//	finish S ; advance D ; state
//
// A pick answers "R -> worker (reason) +waiting". With lost it is not kept.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			s := &stage{reg: registry.New(), picks: make(map[string]*pick)}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				t.Helper()
				var out strings.Builder
				if err := s.do(d, &out); err != nil {
					fmt.Fprintln(&out, "error:", err)
				}
				return out.String()
			})
		})
	})
}

type stage struct {
	reg    *registry.Registry
	pool   *worker.Pool
	policy policy.Policy
	role   worker.Role
	picks  map[string]*pick
	bursts int
}

type pick struct {
	request *policy.Request
	lease   *worker.Lease
	undo    func()
	reason  string
}

func (s *stage) do(d *datadriven.TestData, out *strings.Builder) error {
	var words []string
	opts := make(map[string]string)
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) > 0 {
			opts[arg.Key] = arg.Vals[0]
		} else {
			words = append(words, arg.Key)
		}
	}
	switch d.Cmd {
	case "policy":
		return s.make(words[0], opts)
	case "worker", "withdraw", "renew", "block", "unblock", "foreign", "engine", "empty":
		return s.change(d.Cmd, words, opts)
	case "pick":
		p, err := s.pick(words, opts)
		if err != nil {
			return err
		}
		s.picks[words[0]] = p
		fmt.Fprintf(out, "%s -> %s (%s) +%d\n", words[0], short(p.lease.Worker()), p.reason, p.added())
	case "computed", "release", "undo":
		for _, name := range words {
			s.end(d.Cmd, s.picks[name])
		}
	case "burst":
		return s.burst(number(words[0]), opts, out)
	case "finish":
		s.policy.(*policy.Sticky).Finish(words[0])
	case "advance":
		by, err := time.ParseDuration(words[0])
		time.Sleep(by)
		return err
	case "state":
		s.state(out)
	default:
		return fmt.Errorf("unknown command %q", d.Cmd)
	}
	return nil
}

func (s *stage) make(name string, opts map[string]string) error {
	cfg := small()
	s.role = worker.Regular
	for _, r := range worker.Roles() {
		if r.String() == opts["role"] {
			s.role = r
		}
	}
	cfg.Role = s.role
	for name, at := range map[string]*int64{"window": &cfg.TokenWindow, "abs": &cfg.BalanceAbs} {
		if v, ok := opts[name]; ok {
			*at = int64(number(v))
		}
	}
	for name, at := range map[string]*float64{"rel": &cfg.BalanceRel, "threshold": &cfg.CacheThreshold} {
		if v, ok := opts[name]; ok {
			*at, _ = strconv.ParseFloat(v, 64)
		}
	}
	if v, ok := opts["sessions"]; ok {
		cfg.MaxSessions = number(v)
	}
	if v, ok := opts["ttl"]; ok {
		cfg.SessionTTL, _ = time.ParseDuration(v)
	}
	var err error
	if s.policy, err = policy.New(name, cfg); err != nil {
		return err
	}
	pool := worker.PoolConfig{Role: s.role, Lister: s.reg}
	if o, ok := s.policy.(worker.Observer); ok {
		pool.Observers = append(pool.Observers, o)
	}
	s.pool = worker.NewPool(pool)
	return nil
}

func (s *stage) change(cmd string, words []string, opts map[string]string) error {
	defer s.pool.Reconcile()
	if cmd == "worker" {
		for _, name := range words {
			reg := worker.Registration{ID: worker.ID{Role: s.role, URL: "http://" + name}}
			if _, _, err := s.reg.Register("test", reg, 0); err != nil {
				return err
			}
		}
		return nil
	}
	w := s.worker(words[0])
	if w == nil {
		return errors.New("no worker " + words[0])
	}
	switch cmd {
	case "withdraw":
		s.reg.Withdraw("test", s.role, w.ID().URL, 0)
	case "renew":
		s.reg.Renew(w.ID())
	case "block":
		w.Block(worker.Down)
	case "unblock":
		w.Unblock(worker.Down)
	case "empty":
		w.EmptyCache()
	case "foreign":
		w.SetForeign(int64(number(words[1])))
	case "engine":
		w.SetEngine(&worker.Engine{CacheTokens: int64(number(opts["tokens"]))})
	}
	return nil
}

func (s *stage) worker(name string) *worker.Worker {
	s.pool.Reconcile()
	for _, w := range s.pool.Snapshot().Workers {
		if w.ID().URL == "http://"+name {
			return w
		}
	}
	return nil
}

func (s *stage) pick(words []string, opts map[string]string) (*pick, error) {
	src := &source{root: []string{opts["model"]}, key: cmp.Or(opts["key"], text(opts["prompt"])), session: opts["session"], placement: opts["text"]}
	tokens := int64(len(src.key) / 4)
	if v, ok := opts["tokens"]; ok {
		tokens = int64(number(v))
	}
	p := &pick{request: &policy.Request{Work: worker.Work{Waiting: tokens, Held: tokens}, Model: opts["model"], Source: src}}
	if s.role == worker.Decode {
		p.request.Work.Waiting = 0
	}
	choice := s.policy.Prepare(p.request, s.pool.Snapshot())
	need := worker.Need{Pool: s.pool, Take: worker.Acquire, Chooser: choice}
	if name, ok := opts["except"]; ok {
		need.Want.Except = []*worker.Worker{s.worker(name)}
	}
	grants, err := worker.Pick(need)
	if err != nil {
		return nil, err
	}
	p.lease = grants[0].Lease
	p.reason = choice.Why(p.lease.Worker()).Reason
	if !slices.Contains(words, "lost") {
		p.undo = choice.Keep(p.lease.Worker())
	}
	return p, nil
}

// added is what the pick has added to its worker's waiting tokens, if it is the
// only one there.
func (p *pick) added() int64 { return p.lease.Worker().Work().Waiting }

func (s *stage) end(how string, p *pick) {
	switch how {
	case "computed":
		p.lease.Computed()
	case "release":
		p.lease.Release()
		p.request.Done()
	case "undo":
		if p.undo != nil {
			p.undo()
		}
	}
}

func (s *stage) burst(n int, opts map[string]string, out *strings.Builder) error {
	var all []*pick
	for range n {
		s.bursts++
		o := map[string]string{"prompt": opts["prompt"], "tokens": opts["tokens"]}
		if o["prompt"] == "" {
			o["key"] = fmt.Sprintf("%8d", s.bursts) + text("X1000")
		}
		if _, ok := opts["session"]; ok {
			o["session"] = fmt.Sprintf("%s-%d", opts["session"], s.bursts)
		}
		p, err := s.pick(nil, o)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	s.state(out)
	for _, p := range all {
		s.end("release", p)
	}
	return nil
}

func (s *stage) state(out *strings.Builder) {
	for _, w := range s.pool.Snapshot().Workers {
		fmt.Fprintf(out, "%s load=%d waiting=%d", short(w), w.Load(), w.Work().Waiting)
		if p, ok := s.policy.(*policy.Sticky); ok {
			fmt.Fprintf(out, " sessions=%d", p.HomeOf(w))
		}
		fmt.Fprintln(out)
	}
}

func short(w *worker.Worker) string { return strings.TrimPrefix(w.ID().String(), "http://") }

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}
