package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/holdfast-ai/holdfast/proto/wirepb"
	"github.com/holdfast-ai/holdfast/transport"
	"github.com/holdfast-ai/holdfast/transport/client"
	"github.com/holdfast-ai/holdfast/transport/transporttest"
)

func Example() {
	objects := transporttest.New() // in a program: a Holdfast server
	server, err := transport.NewServer(transport.Options{Dispatcher: objects})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	web := httptest.NewServer(server)
	defer web.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, web.URL, client.Options{Name: "example/1"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	object := c.Address("session", "main")
	a, err := c.Attach(object, client.AttachOptions{Tail: 100})
	if err != nil {
		log.Fatal(err)
	}
	accepted, err := c.Submit(ctx, object, &wirepb.Submit{MessageId: client.NewMessageID(), Text: "hello"})
	if err != nil {
		log.Fatal(err)
	}
	for {
		ev, err := a.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if m := ev.Entry.GetUserMessage(); m != nil {
			fmt.Println("said:", m.Text)
		}
		if e := ev.Entry; e.GetTurn() == accepted.Turn && e.GetTerminal() != nil {
			fmt.Println("ended:", e.GetTerminal().Outcome)
			return
		}
	}
	// Output:
	// said: hello
	// ended: OUTCOME_COMPLETED
}
