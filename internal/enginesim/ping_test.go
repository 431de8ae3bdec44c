package enginesim_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/zmtp"
)

// TestRegistration compares whole messages with those of real engines.
func TestRegistration(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  enginesim.Config
		want string // hexadecimal, spaces are free
	}{
		{
			"p2p",
			enginesim.Config{Role: "prefill", Connector: "p2p", Advertise: "10.0.0.2:20001", ZMQAddress: "10.0.0.2:21001"},
			`83a474797065a150ac687474705f61646472657373ae31302e302e302e323a32
			 30303031ab7a6d715f61646472657373ae31302e302e302e323a3231303031`,
		},
		{
			"p2p, shorter",
			enginesim.Config{Role: "prefill", Connector: "p2p", Advertise: "10.0.0.1:8100", ZMQAddress: "10.0.0.1:21001"},
			`83 a4 74797065 a1 50 ac 687474705f61646472657373 ad 31302e302e302e313a38313030
			 ab 7a6d715f61646472657373 ae 31302e302e302e313a3231303031`,
		},
		{
			"moriio",
			enginesim.Config{
				Role: "decode", Connector: "moriio", Advertise: "10.0.0.3:8200",
				HandshakePort: 7301, NotifyPort: 62005, TPSize: 8, TransferMode: "WRITE",
			},
			`86a474797065a144ac687474705f61646472657373ad31302e302e302e333a38
			 323030ab7a6d715f61646472657373d929686f73743a31302e302e302e332c68
			 616e647368616b653a373330312c6e6f746966793a3632303035a764705f7369
			 7a6501a774705f73697a6508ad7472616e736665725f6d6f6465a55752495445`,
		},
		{
			"moriio, other ports",
			enginesim.Config{
				Role: "decode", Connector: "moriio", Advertise: "10.0.0.2:8200",
				ZMQAddress: "host:10.0.0.2,handshake:6301,notify:61005",
			},
			`86 a474797065 a144 ac687474705f61646472657373 ad31302e302e302e323a38323030
			 ab7a6d715f61646472657373 d929 686f73743a31302e302e302e322c68616e647368616b653a363330312c6e6f746966793a3631303035
			 a764705f73697a65 01 a774705f73697a65 01 ad7472616e736665725f6d6f6465 a55752495445`,
		},
	} {
		e, err := enginesim.New(tt.cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Join(strings.Fields(tt.want), "")
		if got := hex.EncodeToString(e.Registration()); got != want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, got, want)
		}
	}
}

// TestRegistrationForms compares the forms for which there is no capture.
func TestRegistrationForms(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		name string
		cfg  enginesim.Config
		want string
	}{
		{
			"old moriio",
			enginesim.Config{
				Role: "prefill", Connector: "moriio", Advertise: "[::1]:8000", OldMoRIIO: true, DPSize: 200, TPSize: 100000, TransferMode: "READ",
			},
			"\x88\xa4type\xa8register\xa4role\xa1P\xafrequest_address\xd9\x20http://[::1]:8000/v1/completions" +
				"\xaehandshake_port\xcd\x23\x28\xabnotify_port\xcd\x27\x10\xa7dp_size\xcc\xc8" +
				"\xa7tp_size\xd3\x00\x00\x00\x00\x00\x01\x86\xa0\xadtransfer_mode\xa4READ",
		},
		{
			"moriio with IPv6",
			enginesim.Config{Role: "prefill", Connector: "moriio", Advertise: "[::1]:8000", TransferMode: "READ"},
			"\x86\xa4type\xa1P\xachttp_address\xaa[::1]:8000\xabzmq_address\xd9\x24host:::1,handshake:9000,notify:10000" +
				"\xa7dp_size\x01\xa7tp_size\x01\xadtransfer_mode\xa4READ",
		},
		{
			"nixl",
			enginesim.Config{
				Connector: "nixl", Advertise: "e:8000", Discovery: "r:1",
				ExtraRegistration: map[string]string{"kv_connector": "nixl", "a": long},
			},
			"\x85\xa4type\xa1P\xachttp_address\xa6e:8000\xabzmq_address\xa6e:9000\xa1a\xda\x01\x2c" + long + "\xackv_connector\xa4nixl",
		},
	} {
		e, err := enginesim.New(tt.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, string(e.Registration())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestRegistrationErrors(t *testing.T) {
	for _, tt := range []struct {
		cfg  enginesim.Config
		want string
	}{
		{enginesim.Config{Connector: "p2p"}, "advertised address"},
		{enginesim.Config{Discovery: "r:1"}, "advertised address"},
		{enginesim.Config{Connector: "moriio", Advertise: "e:1", ZMQAddress: "e:2"}, "no ZMQ address"},
		{enginesim.Config{Connector: "moriio", Advertise: "e:64000"}, "no room"},
		{enginesim.Config{TransferMode: "read"}, "transfer mode"},
		{enginesim.Config{TPSize: -1}, "positive"},
	} {
		if _, err := enginesim.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt.cfg, err)
		}
	}
	for _, discovery := range []string{"", "nowhere"} {
		e, err := enginesim.New(enginesim.Config{Advertise: "e:1", Discovery: discovery})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.RunPings(t.Context()); err == nil {
			t.Errorf("no error for %q", discovery)
		}
	}
}

// pings is a router's ZMQ socket that notes when registrations come.
type pings struct {
	start time.Time

	mu   sync.Mutex
	list []string
}

func (p *pings) handle(m zmtp.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, fmt.Sprintf("%v %q %d", time.Since(p.start), m.Peer.Identity, len(m.Frames)))
}

// take returns what came since the last call.
func (p *pings) take() string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := strings.Join(p.list, ", ")
	p.list = nil
	return s
}

// runs starts run, and returns what ends it.
func runs(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- run(ctx) }()
	return func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

func (w *world) router(p *pings) (stop func()) {
	r := zmtp.NewRouter(w.net.listen("router:30001"), zmtp.Config{Handle: p.handle})
	return runs(w.t.(*testing.T), r.Run)
}

func TestPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := &pings{start: time.Now()}
		e := w.start(enginesim.Config{Role: "decode", Connector: "p2p", Discovery: "router:30001"})
		stopEngine := runs(t, e.RunPings)
		time.Sleep(6*time.Second + ms) // before there is a router
		stopRouter := w.router(p)
		time.Sleep(2 * time.Second)
		if got, want := p.take(), `6.1s "engine:9000" 1, 6.1s "engine:9000" 1, 6.1s "engine:9000" 1`; got != want {
			t.Errorf("queued: %s, want %s", got, want)
		}
		time.Sleep(4 * time.Second) // it is 12.001 s
		if got, want := p.take(), `9s "engine:9000" 1, 12s "engine:9000" 1`; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if a := w.do(request{path: "/sim/pings", body: `{"paused":true}`}); a.status != 204 || !e.Stats().PingsPaused {
			t.Errorf("%+v", a)
		}
		time.Sleep(10 * time.Second)
		if got := p.take(); got != "" {
			t.Errorf("paused: %s", got)
		}
		e.PausePings(false)
		time.Sleep(2 * time.Second)
		if got, want := p.take(), `24s "engine:9000" 1`; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		stopRouter()
		stopRouter = w.router(p) // and again
		time.Sleep(3 * time.Second)
		if got, want := p.take(), `27s "engine:9000" 1`; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		stopEngine()
		stopRouter()
	})
}

// TestPingIdentity checks who has an identity, and that pings end with the engine.
func TestPingIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := &pings{start: time.Now()}
		defer w.router(p)()
		for i, tt := range []struct {
			cfg  enginesim.Config
			want string
		}{
			{enginesim.Config{Connector: "moriio"}, `""`},
			{enginesim.Config{Connector: "nixl"}, `""`},
			{enginesim.Config{Connector: "nixl", PingIdentity: true, ZMQAddress: "me"}, `"me"`},
			{enginesim.Config{Connector: "p2p", ZMQAddress: "it"}, `"it"`},
		} {
			tt.cfg.Discovery, tt.cfg.PingInterval = "router:30001", time.Hour
			tt.cfg.Advertise = fmt.Sprintf("e%d:8000", i)
			e := w.start(tt.cfg)
			p.start = time.Now()
			stop := runs(t, e.RunPings)
			if got, want := p.take(), "0s "+tt.want+" 1"; got != want {
				t.Errorf("%s, want %s", got, want)
			}
			e.Close()
			stop() // has ended, but for this
		}
	})
}
