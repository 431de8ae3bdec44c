package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/baton-llm/baton/internal/enginesim"
)

// runSim runs one simulated engine until it is told to end.
func runSim(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var cfg enginesim.Config
	var host, logLevel string
	var port uint16
	flags := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	flags.StringVar(&host, "host", "127.0.0.1", "address to listen on")
	flags.Uint16Var(&port, "port", 8000, "port to listen on; 0: any free one")
	flags.StringVar(&cfg.Role, "role", enginesim.RoleRegular, "regular, prefill or decode")
	flags.StringSliceVar(&cfg.Models, "model", []string{"demo"}, "served names; name=parent is a LoRA adapter")
	flags.StringVar(&cfg.Connector, "kv-connector", "nixl", "nixl, p2p or moriio; empty for none")
	flags.StringVar(&cfg.EngineID, "engine-id", "", "engine id of the connector (default random)")
	flags.IntVar(&cfg.BlockSize, "block-size", 16, "tokens in a block of the KV cache")
	flags.IntVar(&cfg.Blocks, "blocks", 4096, "blocks of the KV cache")
	flags.DurationVar(&cfg.Validity, "kv-lease-duration", 0, "how long a hand-off stays pinned (default 30s, moriio 1h)")
	flags.IntVar(&cfg.MaxSeqs, "max-num-seqs", 256, "sequences that run at once")
	flags.IntVar(&cfg.DPSize, "data-parallel-size", 1, "data-parallel ranks")
	flags.IntVar(&cfg.TPSize, "tensor-parallel-size", 1, "tensor-parallel ranks")
	flags.DurationVar(&cfg.PrefillBase, "prefill-base", 0, "time of any prefill")
	flags.DurationVar(&cfg.PrefillPerToken, "prefill-per-token", 0, "further time for each uncached prompt token")
	flags.DurationVar(&cfg.DecodePerToken, "decode-per-token", 0, "time of each further output token")
	flags.StringVar(&cfg.APIKey, "api-key", "", "key that requests need")
	flags.BoolVar(&cfg.Strict, "strict", false, "report requests that a router should not send to an engine of this role")
	flags.BoolVar(&cfg.NoStartTime, "no-start-time", false, "leave process_start_time_seconds out of /metrics")
	flags.BoolVar(&cfg.NoStats, "disable-log-stats", false, "leave the vllm: lines out of /metrics")
	pairFlags(flags, &cfg)
	flags.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	if err := parse(flags, args, stdout); err != nil {
		return err
	}
	log, err := newLogger(stderr, "text", logLevel)
	if err != nil {
		return usageError{err}
	}
	cfg.Logger = log
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	if cfg.Advertise == "" {
		cfg.Advertise = listener.Addr().String()
	}
	engine, err := enginesim.New(cfg)
	if err != nil {
		_ = listener.Close() // nothing was served
		return usageError{err}
	}
	fmt.Fprintf(stdout, "listening on http://%s\n", listener.Addr())

	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	var wg sync.WaitGroup
	defer wg.Wait()
	if cfg.Discovery != "" {
		wg.Go(func() {
			if err := engine.RunPings(ctx); err != nil {
				log.Error("no registrations", "err", err)
			}
		})
	}
	defer stop()
	return serveEngine(ctx, engine, listener)
}

// pairFlags are about the other engine and about registration.
func pairFlags(flags *pflag.FlagSet, cfg *enginesim.Config) {
	flags.StringVar(&cfg.Advertise, "advertise", "", "host:port of the engine for others (default the address it listens on)")
	flags.StringVar(&cfg.ZMQAddress, "zmq-address", "", "address that request ids name (default of the ports; see --handshake-port)")
	flags.IntVar(&cfg.HandshakePort, "handshake-port", 0, "moriio: port that stands for the engine (default --port + 1000, as of other connectors)")
	flags.IntVar(&cfg.NotifyPort, "notify-port", 0, "moriio: notify port (default --port + 2000)")
	flags.StringVar(&cfg.TransferMode, "transfer-mode", enginesim.TransferWrite, "moriio: READ or WRITE")
	flags.DurationVar(&cfg.TransferTimeout, "transfer-timeout", 30*time.Second, "moriio: how long a decode leg waits for its blocks")
	flags.DurationVar(&cfg.DeferTimeout, "defer-timeout", time.Minute, "moriio: how long prefill keeps blocks to write")
	flags.BoolVar(&cfg.WriteWaits, "write-waits", false, "moriio: prefill answers when its decode leg has come")
	flags.DurationVar(&cfg.SendTimeout, "send-timeout", 0, "p2p: how long prefill stands still if decode is out of reach (0: no limit)")
	flags.StringVar(&cfg.Discovery, "discovery", "", "host:port of a router to register with over ZMQ")
	flags.DurationVar(&cfg.PingInterval, "ping-interval", 3*time.Second, "time between registrations")
	flags.BoolVar(&cfg.PingIdentity, "ping-identity", false, "give the ZMQ socket an identity, as p2p always does")
	flags.StringToStringVar(&cfg.ExtraRegistration, "registration", nil, "further members of a registration, such as kv_connector=nixl")
	flags.BoolVar(&cfg.OldMoRIIO, "old-moriio", false, "moriio: register in the form of older engines")
}

// serveEngine serves until ctx is done. Like vLLM by default, it then cuts off
// what runs.
func serveEngine(ctx context.Context, engine *enginesim.Engine, listener net.Listener) error {
	server := engine.NewServer()
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
	case err := <-done:
		engine.Close()
		return err
	}
	engine.Close()
	_ = server.Close() // nobody is waited for
	if err := <-done; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
