package main

import (
	"bufio"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// samples collects durations from many goroutines.
type samples struct {
	mu struct {
		sync.Mutex
		ms []float64
	}
}

func (s *samples) add(ds []float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ms = append(s.mu.ms, ds...)
}

// quantiles in milliseconds.
func (s *samples) quantiles() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.mu.ms
	sort.Float64s(v)
	q := func(p float64) float64 {
		if len(v) == 0 {
			return 0
		}
		return float64(int(v[int(p*float64(len(v)-1)+.5)]*1000)) / 1000
	}
	return map[string]float64{"p50": q(.5), "p90": q(.9), "p99": q(.99), "max": q(1)}
}

func msSince(t, now time.Time) float64 { return float64(now.Sub(t)) / 1e6 }

// rssKB is the resident set of a process, shared pages included.
func rssKB(pid int) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if p := strings.Fields(s.Text()); len(p) > 1 && p[0] == "Rss:" {
			n, _ := strconv.Atoi(p[1])
			return n
		}
	}
	return 0
}

// cpuSeconds is the user and system time of a process so far.
func cpuSeconds(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	u, _ := strconv.ParseFloat(f[11], 64)
	s, _ := strconv.ParseFloat(f[12], 64)
	return (u + s) / 100 // clock ticks are 1/100 s on every Linux that this runs on
}

// cpuWindow reads the server's CPU time at two moments.
type cpuWindow struct {
	at   [2]float64
	done chan struct{}
}

func watchCPU(pid int, from, until time.Time) *cpuWindow {
	w := &cpuWindow{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for i, t := range []time.Time{from, until} {
			time.Sleep(time.Until(t))
			w.at[i] = cpuSeconds(pid)
		}
	}()
	return w
}

// fill adds CPU a unit of work and memory to r.
func (w *cpuWindow) fill(r result, pid int, ops int64) {
	<-w.done
	if pid == 0 || ops == 0 {
		return
	}
	r["server_cpu_s"] = w.at[1] - w.at[0]
	r["server_us_per_op"] = (w.at[1] - w.at[0]) * 1e6 / float64(ops)
	r["rss_kb"] = rssKB(pid)
}
