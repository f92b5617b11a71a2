package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/actors"
	"github.com/holdfast-ai/holdfast/actors/session"
	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/internal/clock"
	"github.com/holdfast-ai/holdfast/internal/metrics"
	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/pebble"
	"github.com/holdfast-ai/holdfast/transport"
	"github.com/holdfast-ai/holdfast/web"
)

// Transport and actors never see each other: the types alone say that the one serves the other.
var _ transport.Dispatcher = (*actors.Host)(nil)

// Options are what a program gives a node beside its configuration. The zero value works.
type Options struct {
	Kinds   []actors.Kind // beside "session"
	Version string        // of the build; default "devel"
	Clock   clock.Clock
	Logger  *slog.Logger         // default: none
	Metrics *prometheus.Registry // default: a new one of package metrics
	Serving func()               // called once clients are answered; may be nil
}

func (o Options) withDefaults() Options {
	if o.Version == "" {
		o.Version = "devel"
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = metrics.NewRegistry(o.Version)
	}
	return o
}

// Node is a server with everything open.
type Node struct {
	c Config
	o Options

	listener, admin net.Listener // admin is nil if it is off
	store           *storage.Store
	catalog         *inference.Catalog
	host            *actors.Host
	transport       *transport.Server

	closers []closer // in the order of opening
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup // goroutines of this package
	failed  chan error     // buffered: the first failure of a listener
}

type closer struct {
	name  string
	close func() error
}

// Open opens all layers, from the ground up, and closes them again if one fails. Nothing is served before Run.
func Open(ctx context.Context, c Config, o Options) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := &Node{c: c, o: o.withDefaults(), failed: make(chan error, 2)}
	n.ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for _, open := range []func() error{
		n.openListeners, // first: a port in use is found before the data folder is touched
		n.openStorage,   // the engine's lock keeps other servers away from the folder
		n.openCatalog,   // loads nothing yet
		n.openHost,      // wakes nothing yet
		n.openTransport, // accepts nothing yet
	} {
		if err := open(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

func (n *Node) onClose(name string, f func() error) { n.closers = append(n.closers, closer{name, f}) }

func (n *Node) openListeners() error {
	listen := func(what, addr string) (net.Listener, error) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, listenError(what, addr, err)
		}
		n.onClose(what+" listener", func() error {
			if err := l.Close(); !errors.Is(err, net.ErrClosed) { // its http.Server may have closed it
				return err
			}
			return nil
		})
		return l, nil
	}
	var err error
	if n.listener, err = listen("clients", n.c.Listen); err != nil {
		return err
	}
	if n.c.Admin != "" {
		n.admin, err = listen("admin", n.c.Admin)
	}
	return err
}

func (n *Node) openStorage() error {
	engine, err := pebble.Open(n.c.Data, pebble.Options{Logger: n.logger("pebble"), Registerer: n.o.Metrics, Clock: n.o.Clock})
	if err != nil {
		return dataError(n.c.Data, err)
	}
	n.store, err = storage.Open(engine, storage.Options{Logger: n.logger("storage"), Registerer: n.o.Metrics})
	if err != nil {
		return errors.Join(dataError(n.c.Data, err), engine.Close())
	}
	n.onClose("storage", n.store.Close) // the engine too
	return nil
}

func (n *Node) openCatalog() error {
	o, err := n.catalogOptions()
	if err != nil {
		return err
	}
	if n.catalog, err = inference.NewCatalog(o); err != nil {
		return ModelError(err)
	}
	n.onClose("models", n.catalog.Close)
	return nil
}

func (n *Node) openHost() error {
	kinds := append([]actors.Kind{session.Kind(session.Options{
		Registerer: n.o.Metrics, MaxQueue: n.c.Limits.MaxQueue, MaxAttempts: n.c.Limits.MaxAttempts, MaxText: n.c.Limits.MaxFrameBytes,
	})}, n.o.Kinds...)
	var err error
	n.host, err = actors.NewHost(actors.Options{
		Store: n.store, Models: n.catalog, Kinds: kinds,
		Clock: n.o.Clock, Logger: n.o.Logger, Registerer: n.o.Metrics,
	})
	if err != nil {
		return &Error{Code: CodeInternal, Err: err}
	}
	n.onClose("actors", n.host.Close)
	return nil
}

func (n *Node) openTransport() error {
	var err error
	n.transport, err = transport.NewServer(transport.Options{
		Dispatcher: n.host, Web: web.Handler(), Ready: n.checks(),
		AllowedOrigins: n.c.AllowedOrigins, AllowedHosts: n.c.AllowedHosts,
		Version:        "holdfast/" + n.o.Version,
		MaxConnections: n.c.Limits.MaxConnections, MaxFrameBytes: n.c.Limits.MaxFrameBytes, MaxAttachments: n.c.Limits.MaxAttachments,
		DrainSpread: n.c.Drain.Spread, Echo: n.c.Echo,
		Clock: n.o.Clock, Logger: n.logger("transport"), Registerer: n.o.Metrics,
	})
	if err != nil {
		return &Error{Code: CodeInternal, Err: err}
	}
	n.onClose("transport", n.transport.Close)
	return nil
}

// checks are what /readyz asks.
func (n *Node) checks() []transport.Check {
	all := []transport.Check{{Name: "storage", Probe: func(context.Context) error { return n.store.Failed() }}}
	if !n.c.NoModel {
		all = append(all, transport.Check{Name: "model", Probe: func(context.Context) error { return n.catalog.Ready(n.c.Model) }})
	}
	return all
}

func (n *Node) logger(layer string) *slog.Logger { return n.o.Logger.With("component", layer) }

// Addr is where clients connect, with the port that was taken.
func (n *Node) Addr() string { return n.listener.Addr().String() }

// AdminAddr is where metrics are; "" if nowhere.
func (n *Node) AdminAddr() string {
	if n.admin == nil {
		return ""
	}
	return n.admin.Addr().String()
}

// Run serves until ctx ends or a listener fails, then drains and closes. It must be called once, instead of Close.
func (n *Node) Run(ctx context.Context) error {
	err := n.start(ctx)
	if err == nil {
		select {
		case <-ctx.Done():
			n.o.Logger.Info("stopping", "cause", context.Cause(ctx), "timeout", n.c.Drain.Timeout)
		case err = <-n.failed:
		}
		n.drain()
	}
	err = errors.Join(err, n.Close())
	n.o.Logger.Info("stopped")
	return err
}

// start begins to serve.
func (n *Node) start(ctx context.Context) error {
	// Turns that a crash interrupted go on first: their clients come back to see them.
	if err := n.host.Start(ctx); err != nil {
		return &Error{Code: CodeInternal, Message: "wake interrupted turns", Err: err}
	}
	n.serve("clients", n.listener, &http.Server{
		Handler: n.transport, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(n.logger("http").Handler(), slog.LevelDebug),
	})
	if n.admin != nil {
		n.serve("admin", n.admin, &http.Server{
			Handler: adminHandler(n.o.Metrics), ReadHeaderTimeout: 10 * time.Second,
			ErrorLog: slog.NewLogLogger(n.logger("http").Handler(), slog.LevelDebug),
		})
	}
	if !n.c.NoModel {
		// Loading takes a while, and the page can be looked at meanwhile; the catalog logs how it ends.
		n.work.Go(func() { _ = n.catalog.Load(n.ctx, n.c.Model) })
	}
	n.o.Logger.Info("serving", "listen", n.Addr(), "admin", n.AdminAddr(), "data", n.c.Data, "version", n.o.Version,
		"store", fmt.Sprintf("%x", n.store.Node().StoreID), "boot", n.store.Node().Boot)
	if n.o.Serving != nil {
		n.o.Serving()
	}
	return nil
}

// serve runs s on l until the node closes.
func (n *Node) serve(what string, l net.Listener, s *http.Server) {
	n.work.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.failed <- &Error{Code: CodeAddress, Message: "serve " + what + " on " + l.Addr().String(), Err: err}
		}
	})
	n.onClose(what+" server", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			return s.Close() // a request is still at work, such as a profile
		}
		return nil
	})
}

// drain lets clients and turns end, for as long as the configuration allows. What is cut is not lost: clients resume
// from their cursors, turns from their last durable token.
func (n *Node) drain() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.ctx), n.c.Drain.Timeout)
	defer cancel()
	// Clients first, so that they are elsewhere or waiting while turns end; /readyz is false from here on.
	if err := n.transport.Drain(ctx); err != nil {
		n.o.Logger.Warn("connections were cut", "err", err)
	}
	if err := n.host.Drain(ctx); err != nil {
		n.o.Logger.Warn("turns were interrupted and go on at the next start", "err", err)
	}
}

// Close closes all layers at once, in the reverse order of their opening, and waits for everything that they run.
func (n *Node) Close() error {
	n.cancel()
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		c := n.closers[i]
		if err := c.close(); err != nil {
			errs = append(errs, &Error{Code: CodeInternal, Message: "close " + c.name, Err: err})
		}
	}
	n.closers = nil
	n.work.Wait()
	return errors.Join(errs...)
}
