package zmq_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/discovery/zmq"
	"github.com/baton-llm/baton/internal/memnet"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
	"github.com/baton-llm/baton/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a listener on an in-memory network.
type fixture struct {
	net      memnet.Network
	registry *registry.Registry
	metrics  *prometheus.Registry
	log      bytes.Buffer
	stop     context.CancelFunc
	done     chan error
}

const address = "10.0.0.1:30001"

func newFixture(t *testing.T, cfg zmq.Config) *fixture {
	t.Helper()
	f := &fixture{registry: registry.New(), metrics: prometheus.NewRegistry(), done: make(chan error, 1)}
	l, err := f.net.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Allowed == nil {
		if cfg.Allowed, err = zmq.ParseAllowed(nil); err != nil {
			t.Fatal(err)
		}
	}
	cfg.TTL = 10 * time.Second
	listener := zmq.NewListener(l, cfg, zmq.Deps{
		Registry: f.registry, Registerer: f.metrics, Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
	})
	ctx, stop := context.WithCancel(t.Context())
	f.stop = stop
	go func() { f.done <- listener.Run(ctx) }()
	return f
}

// peer sends messages from an address, as an engine does.
func (f *fixture) peer(t *testing.T, source string, payloads ...[]byte) {
	t.Helper()
	dealer := zmtp.NewDealer("tcp://"+address, zmtp.DealerConfig{
		Identity: "same for all",
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return f.net.DialFrom(ctx, source, "tcp", addr)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- dealer.Run(ctx) }()
	for _, p := range payloads {
		if err := dealer.Send(p); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	cancel()
	<-done
}

func (f *fixture) close(t *testing.T) {
	t.Helper()
	f.stop()
	if err := <-f.done; err != nil {
		t.Error(err)
	}
}

func (f *fixture) counts(t *testing.T, want string) {
	t.Helper()
	const head = "# HELP baton_registrations_total Registrations over ZMQ by result: added, replaced, updated or kept, or the reason why one was dropped.\n" +
		"# TYPE baton_registrations_total counter\n"
	var text strings.Builder
	text.WriteString(head)
	for pair := range strings.FieldsSeq(want) {
		result, n, _ := strings.Cut(pair, "=")
		text.WriteString("baton_registrations_total{result=\"" + result + "\"} " + n + "\n")
	}
	if err := testutil.GatherAndCompare(f.metrics, strings.NewReader(text.String()), "baton_registrations_total"); err != nil {
		t.Error(err)
	}
}

func (f *fixture) ids() []string {
	var ids []string
	for _, role := range worker.Roles() {
		for _, r := range f.registry.List(role) {
			ids = append(ids, role.String()+" "+r.ID.String()+" "+r.Endpoint.Dialect)
		}
	}
	return ids
}

func ping(role, http, zmqAddr string, more ...any) []byte {
	return pack(append([]any{"type", role, "http_address", http, "zmq_address", zmqAddr}, more...)...)
}

// TestLifetimes: a ping registers, pings keep, silence ends, another ZMQ address
// is another process. The identity of the peer, which all share here, means
// nothing (case 2.32).
func TestLifetimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, zmq.Config{Dialect: "nixl"})
		defer f.close(t)
		f.peer(t, "10.0.0.2", ping("P", "10.0.0.2:8000", "10.0.0.2:9000"))
		f.peer(t, "10.0.0.3", ping("D", "10.0.0.3:8000", "10.0.0.3:9000", "kv_connector", "nixl"))
		f.peer(t, "10.0.0.2", ping("P", "10.0.0.2:8000", "10.0.0.2:9000"), ping("P", "10.0.0.2:8000", "10.0.0.2:9000"))
		got := strings.Join(f.ids(), ", ")
		if want := "prefill http://10.0.0.2:8000#1 p2p, decode http://10.0.0.3:8000#1 nixl"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		time.Sleep(9 * time.Second)
		f.peer(t, "10.0.0.2", ping("P", "10.0.0.2:8000", "10.0.0.2:9001"))
		time.Sleep(2 * time.Second)
		if got, want := strings.Join(f.ids(), ", "), "prefill http://10.0.0.2:8000#2 p2p"; got != want {
			t.Errorf("after 11 s: got %s, want %s", got, want)
		}
		f.counts(t, "added=2 kept=2 replaced=1")
	})
}

// TestRefused: what is wrong is dropped and counted by reason, said once in a
// while, and stops nothing.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, zmq.Config{Dialect: "nixl"})
		defer f.close(t)
		for range 50 {
			f.peer(t, "10.0.0.2",
				[]byte("rubbish"),
				ping("HELLO", "10.0.0.2:8000", "z"),
				ping("P", "169.254.169.254:80", "z"),
				ping("P", "93.184.216.34:80", "z"),
				ping("P", "example.com:80", "z"),
				ping("P", "10.0.0.2:8000", "host:10.0.0.2,handshake:1,notify:2", "transfer_mode", "PUSH"),
				ping("D", "10.0.0.2:8000", "10.0.0.2:9000"),
			)
		}
		f.counts(t, "added=1 bad_address=50 bad_mode=50 kept=49 not_allowed=100 not_msgpack=50 unknown_type=50")
		if n := strings.Count(f.log.String(), "registration dropped"); n != 5 {
			t.Errorf("%d lines logged, want one for each of 5 reasons:\n%s", n, f.log.String())
		}
	})
}

// TestPeersNotAllowed: a peer outside of the allowed networks is not heard.
func TestPeersNotAllowed(t *testing.T) {
	allowed, err := zmq.ParseAllowed([]string{"10.1.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, zmq.Config{Dialect: "nixl", Allowed: allowed})
		defer f.close(t)
		f.peer(t, "10.0.0.2", ping("P", "10.1.0.2:8000", "z"))
		f.peer(t, "10.1.0.2", ping("P", "10.1.0.2:8000", "z"))
		if got := f.ids(); len(got) != 1 {
			t.Errorf("got %v, want the one of the allowed peer", got)
		}
	})
}

func TestAllowed(t *testing.T) {
	def, err := zmq.ParseAllowed(nil)
	if err != nil {
		t.Fatal(err)
	}
	some, err := zmq.ParseAllowed([]string{"198.51.100.0/24", "203.0.113.9"})
	if err != nil {
		t.Fatal(err)
	}
	all, err := zmq.ParseAllowed([]string{"0.0.0.0/0", "::/0"})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		addr           string
		def, some, all bool
	}{
		{"127.0.0.1", true, false, true},
		{"10.9.8.7", true, false, true},
		{"::1", true, false, true},
		{"::ffff:10.9.8.7", true, false, true},
		{"fd12::1", true, false, true},
		{"8.8.8.8", false, false, true},
		{"198.51.100.77", false, true, true},
		{"203.0.113.9", false, true, true},
		{"203.0.113.10", false, false, true},
		{"169.254.169.254", false, false, false},
		{"fe80::1%eth0", false, false, false},
		{"fd00:ec2::254", false, false, false},
	}
	for _, tt := range tests {
		addr := netip.MustParseAddr(tt.addr)
		if got := def.Has(addr); got != tt.def {
			t.Errorf("default has %s: %v", addr, got)
		}
		if got := some.Has(addr); got != tt.some {
			t.Errorf("named networks have %s: %v", addr, got)
		}
		if got := all.Has(addr); got != tt.all {
			t.Errorf("all networks have %s: %v", addr, got)
		}
	}
	if _, err := zmq.ParseAllowed([]string{"10.0.0.0/33"}); err == nil {
		t.Error("10.0.0.0/33 is accepted")
	}
}

// TestBindFailure: a taken address is an error at once, not a log line.
func TestBindFailure(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = zmq.Listen(t.Context(), zmq.Config{Address: l.Addr().String()}, zmq.Deps{
		Registry: registry.New(), Registerer: prometheus.NewRegistry(),
	})
	if err == nil {
		t.Error("no error")
	}
}
