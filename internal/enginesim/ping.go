package enginesim

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/baton-llm/baton/internal/zmtp"
)

// Registration returns the message by which the engine registers, in msgpack.
func (e *Engine) Registration() []byte { return packMap(e.registration()) }

// registration lists its members in the order in which real engines write them:
//
//	p2p, others  type http_address zmq_address
//	moriio       type http_address zmq_address dp_size tp_size transfer_mode
//	moriio, old  type role request_address handshake_port notify_port dp_size
//	             tp_size transfer_mode
func (e *Engine) registration() []member {
	cfg := &e.cfg
	role := "P" // also of an engine that does both
	if cfg.Role == RoleDecode {
		role = "D"
	}
	list := []member{{"type", role}, {"http_address", cfg.Advertise}, {"zmq_address", cfg.ZMQAddress}}
	if cfg.Connector == ConnectorMoRIIO {
		c, _ := parseComposite(cfg.ZMQAddress) // checked by New
		if cfg.OldMoRIIO {
			list = []member{
				{"type", "register"},
				{"role", role},
				{"request_address", "http://" + cfg.Advertise + "/v1/completions"},
				{"handshake_port", c.handshake},
				{"notify_port", c.notify},
			}
		}
		list = append(list, member{"dp_size", cfg.DPSize}, member{"tp_size", cfg.TPSize}, member{"transfer_mode", cfg.TransferMode})
	}
	for _, key := range slices.Sorted(maps.Keys(cfg.ExtraRegistration)) {
		list = append(list, member{key, cfg.ExtraRegistration[key]})
	}
	return list
}

// PausePings holds registrations back, or lets them go on at the next interval. The
// connection stays.
func (e *Engine) PausePings(paused bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pingsPaused = paused
}

// RunPings registers at Config.Discovery, at once and every PingInterval, until ctx
// ends or the engine is closed, and returns nil then. Like a ZMQ socket it connects
// again, and up to 1000 registrations wait meanwhile. While the engine is dead
// nothing is sent and nothing waits. It may run before the engine serves HTTP, as
// with real engines.
func (e *Engine) RunPings(ctx context.Context) error {
	if e.cfg.Discovery == "" {
		return errors.New("enginesim: no discovery address to register at")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(closedContext{e.done}, cancel)()
	for ctx.Err() == nil {
		life, alive := e.alive()
		if alive {
			if err := e.pingLife(ctx, life); err != nil {
				return err
			}
		}
		select {
		case <-life.next:
		case <-ctx.Done():
		}
	}
	return nil
}

// pingLife registers until the engine dies.
func (e *Engine) pingLife(ctx context.Context, l *life) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(closedContext{l.over}, cancel)()
	cfg := zmtp.DealerConfig{
		Dial:    func(ctx context.Context, addr string) (net.Conn, error) { return e.cfg.DialZMQ(ctx, addr) },
		Backoff: func(int) time.Duration { return 100 * time.Millisecond }, // as libzmq
		Lost:    func(err error) { e.log.Debug("router lost", "err", err) },
	}
	if e.cfg.PingIdentity || e.cfg.Connector == ConnectorP2P {
		cfg.Identity = e.cfg.ZMQAddress
	}
	dealer := zmtp.NewDealer("tcp://"+e.cfg.Discovery, cfg)
	var wg sync.WaitGroup
	var err error
	wg.Go(func() {
		err = dealer.Run(ctx)
		cancel()
	})
	e.ping(ctx, dealer)
	wg.Wait()
	return err
}

func (e *Engine) ping(ctx context.Context, dealer *zmtp.Dealer) {
	ticker := time.NewTicker(e.cfg.PingInterval)
	defer ticker.Stop()
	for {
		e.mu.Lock()
		paused := e.pingsPaused
		e.mu.Unlock()
		if !paused {
			_ = dealer.Send(e.Registration()) // a full queue loses the newest, as in ZMQ
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
