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
	flags.StringVar(&cfg.Connector, "kv-connector", "nixl", "nixl, or empty for none")
	flags.StringVar(&cfg.EngineID, "engine-id", "", "engine id of the connector (default random)")
	flags.IntVar(&cfg.BlockSize, "block-size", 16, "tokens in a block of the KV cache")
	flags.IntVar(&cfg.Blocks, "blocks", 4096, "blocks of the KV cache")
	flags.DurationVar(&cfg.Validity, "kv-lease-duration", 30*time.Second, "how long a hand-off stays pinned")
	flags.IntVar(&cfg.MaxSeqs, "max-num-seqs", 256, "sequences that run at once")
	flags.IntVar(&cfg.DPSize, "data-parallel-size", 1, "data-parallel ranks")
	flags.DurationVar(&cfg.PrefillBase, "prefill-base", 0, "time of any prefill")
	flags.DurationVar(&cfg.PrefillPerToken, "prefill-per-token", 0, "further time for each uncached prompt token")
	flags.DurationVar(&cfg.DecodePerToken, "decode-per-token", 0, "time of each further output token")
	flags.StringVar(&cfg.APIKey, "api-key", "", "key that requests need")
	flags.BoolVar(&cfg.Strict, "strict", false, "report requests that a router should not send to an engine of this role")
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
	cfg.Advertise = listener.Addr().String()
	engine, err := enginesim.New(cfg)
	if err != nil {
		_ = listener.Close() // nothing was served
		return usageError{err}
	}
	fmt.Fprintf(stdout, "listening on http://%s\n", listener.Addr())

	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return serveEngine(ctx, engine, listener)
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
