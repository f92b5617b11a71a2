package transport_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/holdfast-ai/holdfast/transport"
	"github.com/holdfast-ai/holdfast/transport/transporttest"
)

func Example() {
	host := transporttest.New() // in a program: the host of the objects
	s, err := transport.NewServer(transport.Options{Dispatcher: host})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	web := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(s.Drain(ctx), web.Shutdown(ctx), s.Close(), <-served)
	// Output: <nil> <nil> <nil> http: Server closed
}
