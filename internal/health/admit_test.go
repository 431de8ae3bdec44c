package health_test

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

func TestPendingIsProbedAtGrowingIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		w := s.add(worker.Regular, host, 0)
		s.until(9 * time.Second)
		s.wantState(w, "pending")
		s.wantTimes("probed", s.takeDials(host), 0, 0.25, 0.75, 1.75, 3.75, 5.75, 7.75)

		s.serve(host)
		s.until(9749 * time.Millisecond)
		s.wantState(w, "pending")
		s.until(9750 * time.Millisecond)
		s.wantState(w, "ready")
		s.takeDials(host)
		s.until(25 * time.Second)
		s.wantTimes("probed when ready", s.takeDials(host), 14.75, 19.75, 24.75)
	})
}

// TestNewcomerIsNotKeptWaiting: a server that has long been dead is asked anew
// from the start when another worker is announced there.
func TestNewcomerIsNotKeptWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.add(worker.Prefill, host, 0)
		s.until(10 * time.Second)
		s.takeDials(host)
		s.add(worker.Decode, host, 0)
		s.until(12 * time.Second)
		s.wantTimes("probed", s.takeDials(host), 10, 10.25, 10.75, 11.75)
	})
}

func TestAddedWhileOthersAreProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		s.serve("other:8000")
		first := s.ready()
		s.sleep(3 * time.Second)
		other := s.add(worker.Decode, "other:8000", 0)
		synctest.Wait()
		s.wantState(first, "ready")
		s.wantState(other, "ready")
		s.wantTimes("the first was probed", e.takeSeen("/health"), 0)
	})
}

func TestAdmissionReadsModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host).set("/v1/models", body(`{"object":"list","data":[{"id":"base","x":1},{"id":"lora","parent":"base"}]}`))
		w := s.ready()
		if got, want := w.Models().Names(), []string{"base", "lora"}; !slices.Equal(got, want) {
			t.Errorf("models %q, want %q", got, want)
		}
		cards := s.checker.Cards(w)
		if len(cards) != 2 || cards[1].ID != "lora" || string(cards[1].Raw) != `{"id":"lora","parent":"base"}` {
			t.Errorf("cards %q", cards)
		}
	})
}

// TestModelListAnswers is case 2.2: a worker whose model list cannot be had is
// tried again and again, and what is merely forbidden keeps nobody out.
func TestModelListAnswers(t *testing.T) {
	const all = "any"
	tests := []struct {
		name   string
		answer http.HandlerFunc
		state  string
		models string
		err    string // in the last error
	}{
		{"unauthorized", status(401), "ready", all, ""},
		{"forbidden", status(403), "ready", all, ""},
		{"not found", status(404), "ready", all, ""},
		{"method not allowed", status(405), "ready", all, ""},
		{"501", status(501), "ready", all, ""},
		{"empty list", list(), "ready", "", ""},
		{"redirect", http.RedirectHandler("/elsewhere", http.StatusFound).ServeHTTP, "pending", all, "status 302"},
		{"server error", status(500), "pending", all, "status 500"},
		{"unavailable", status(503), "pending", all, "status 503"},
		{"broken JSON", body(`{"data":[`), "pending", all, "unexpected end of JSON input"},
		{"no JSON", body("<html>"), "pending", all, "invalid character"},
		{"no list", body(`{"object":"error"}`), "pending", all, "no model list"},
		{"null for a list", body(`{"data":null}`), "pending", all, "no model list"},
		{"entry without id", body(`{"data":[{"id":"m"},{"object":"model"}]}`), "pending", all, "an entry without an id"},
		{"entry of another kind", body(`{"data":["m"]}`), "pending", all, "an entry without an id"},
		{"no answer", hang, "pending", all, "context deadline exceeded"},
		{"closed", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "pending", all, "EOF"},
		{"reset", reset, "pending", all, "connection reset by peer"},
		{"endless", func(w http.ResponseWriter, _ *http.Request) {
			for range 80 {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
					return
				}
			}
		}, "pending", all, "answer too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				e := s.serve(host)
				e.set("/v1/models", tt.answer)
				w := s.add(worker.Regular, host, 0)
				s.until(6 * time.Second)
				if tt.state == "ready" {
					s.until(2 * time.Minute) // the list is asked for again and again
				}
				s.wantState(w, tt.state)
				models := all
				if m := w.Models(); m != nil {
					models = strings.Join(m.Names(), ",")
				}
				if models != tt.models {
					t.Errorf("serves %q, want %q", models, tt.models)
				}
				if got := s.checker.LastError(w); (tt.err == "") != (got == "") || !strings.Contains(got, tt.err) {
					t.Errorf("last error %q, want %q in it", got, tt.err)
				}
				warnings := 0
				if tt.state == "ready" && tt.models == all {
					warnings = 1
				}
				if got := s.log.with(t, "model list cannot be read"); len(got) != warnings {
					t.Errorf("%d warnings, want %d: %v", len(got), warnings, got)
				}
				if tt.state == "ready" {
					return
				}
				e.set("/v1/models", list("m"))
				s.sleep(s.longest())
				s.wantState(w, "ready")
			})
		})
	}
}

// longest is the time within which a pending worker is surely probed, the end
// of a probe that hangs included.
func (s *stage) longest() time.Duration {
	cfg := health.Default()
	return cfg.Timeout + cfg.LastRetry
}

// TestResultTouchesOnlyWorkersAttachedBefore: what a probe finds says nothing
// of a worker that came while it ran.
func TestResultTouchesOnlyWorkersAttachedBefore(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		state  string // of both, one second after the second one came
	}{
		{"success", status(200), "ready"},
		{"failure", status(503), "pending"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				e := s.serve(host)
				e.set("/health", slow(time.Second, tt.answer))
				first := s.add(worker.Prefill, host, 0)
				s.sleep(500 * time.Millisecond)
				second := s.add(worker.Decode, host, 0)
				s.until(1500 * time.Millisecond)
				s.wantState(first, tt.state)
				s.wantState(second, "pending")
				if got := s.checker.LastError(second); got != "" {
					t.Errorf("the newcomer has the error %q of an older probe", got)
				}
				s.until(2 * time.Second) // probed again at once
				s.wantState(second, tt.state)
				s.wantTimes("probed", e.takeSeen("/health"), 0, 1)
			})
		})
	}
}

// TestOneCheckerPerServer: ranks and roles behind one base URL share a probe.
func TestOneCheckerPerServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		var workers []*worker.Worker
		for _, role := range worker.Roles() {
			for _, rank := range []worker.Rank{0, worker.AtRank(0), worker.AtRank(1)} {
				s.register(role, host, rank)
				workers = append(workers, s.worker(role, host, rank))
			}
		}
		synctest.Wait()
		for _, w := range workers {
			s.wantState(w, "ready")
		}
		e.takeSeen("/health")
		s.until(21 * time.Second)
		s.wantTimes("probed", e.takeSeen("/health"), 5, 10, 15, 20)

		e.set("/health", status(503))
		s.until(36 * time.Second)
		for _, w := range workers {
			s.wantState(w, "down")
		}
	})
}

func TestProbePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(c *health.Config) { c.Path = "/healthz/ready" })
		e := s.serve(host)
		e.set("/healthz/ready", status(204))
		e.set("/health", status(500))
		s.ready()
		s.wantTimes("the path was asked for", e.takeSeen("/healthz/ready"), 0)
	})
}

func TestBasePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		e.set("/health", status(500))
		e.set("/llm/health", status(200))
		e.set("/llm/v1/models", list("m"))
		w := s.add(worker.Regular, host+"/llm", 0)
		synctest.Wait()
		s.wantState(w, "ready")
	})
}
