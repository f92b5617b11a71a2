package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"runtime"
	"sort"
	"strings"
	"time"
)

// config is what the flags say.
type config struct {
	mode, adapter, addr string
	conns, objects      int
	tokens, gapMS       int
	warm, dur, settle   time.Duration
	pid                 int
	prefix              string
	total               int
}

// result is one line of output.
type result map[string]any

func main() {
	log.SetFlags(0)
	log.SetPrefix("loadgen: ")
	var c config
	flag.StringVar(&c.mode, "mode", "ack", "ack, stream or idle")
	flag.StringVar(&c.adapter, "adapter", "holdfast", "server: "+strings.Join(adapterNames(), ", "))
	flag.StringVar(&c.addr, "addr", "127.0.0.1:8420", "host:port of the server; loopback only")
	flag.IntVar(&c.conns, "c", 64, "connections, at most 20,000")
	flag.IntVar(&c.objects, "k", 0, "distinct objects; 0 is one a connection")
	flag.IntVar(&c.tokens, "tokens", 128, "stream: tokens an answer")
	flag.IntVar(&c.gapMS, "gap", 0, "stream: ms between tokens; 0 is as fast as they come")
	flag.IntVar(&c.total, "n", 2_000_000, "messages at most")
	flag.DurationVar(&c.warm, "warm", time.Second, "not counted, at the start")
	flag.DurationVar(&c.dur, "d", 8*time.Second, "counted time")
	flag.DurationVar(&c.settle, "settle", 5*time.Second, "idle: wait before memory is read")
	flag.IntVar(&c.pid, "pid", 0, "process of the server, for CPU and memory")
	flag.StringVar(&c.prefix, "prefix", fmt.Sprintf("b%d-", time.Now().UnixNano()%1e9), "of object names")
	flag.Parse()
	if err := c.valid(); err != nil {
		log.Fatal(err)
	}
	time.AfterFunc(2*time.Minute, func() { log.Fatal("two minutes are over") })
	run, ok := map[string]func(*config) (result, error){"ack": runAck, "stream": runStream, "idle": runIdle}[c.mode]
	if !ok {
		log.Fatalf("no mode %q; see -help", c.mode)
	}
	r, err := run(&c)
	if err != nil {
		log.Fatal(err)
	}
	r["mode"], r["adapter"], r["c"], r["gomaxprocs"] = c.mode, c.adapter, c.conns, runtime.GOMAXPROCS(0)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		log.Fatal(err)
	}
}

func (c *config) valid() error {
	host, _, err := net.SplitHostPort(c.addr)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("-addr %s is not a loopback address: this tool loads this machine only", c.addr)
	}
	if c.conns < 1 || c.conns > 20_000 || c.total > 2_000_000 || c.warm+c.dur+c.settle > 100*time.Second {
		return fmt.Errorf("-c, -n or a duration is out of bounds; see -help")
	}
	if c.objects == 0 {
		c.objects = c.conns
	}
	if _, ok := adapters[c.adapter]; !ok {
		return fmt.Errorf("no adapter %q; there are %s", c.adapter, strings.Join(adapterNames(), ", "))
	}
	return nil
}

func (c *config) object(i int) string { return fmt.Sprintf("%s%d", c.prefix, i%c.objects) }

func adapterNames() []string {
	var n []string
	for k := range adapters {
		n = append(n, k)
	}
	sort.Strings(n)
	return n
}
