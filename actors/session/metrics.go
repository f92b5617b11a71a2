package session

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	turns      *prometheus.CounterVec
	duplicates prometheus.Counter
	attempts   prometheus.Counter
	resumed    prometheus.Counter
	parked     prometheus.Counter
	tokens     prometheus.Counter
	prompt     prometheus.Counter
	firstChunk prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	const ns, sub = "holdfast", "session"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	m := &metrics{
		turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "turns_total", Help: "Turns that ended, by outcome.",
		}, []string{"outcome"}),
		duplicates: counter("duplicates_total", "Submits whose message id was known."),
		attempts:   counter("attempts_total", "Attempts at turns, first ones included."),
		resumed:    counter("resumed_total", "Attempts that went on from durable tokens."),
		parked:     counter("parked_total", "Turns given up after too many attempts."),
		tokens:     counter("completion_tokens_total", "Tokens generated."),
		prompt:     counter("prompt_tokens_total", "Prompt tokens of turns that ended."),
		firstChunk: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "first_chunk_seconds",
			Help:    "From the start of an attempt to the first piece of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}),
	}
	if r != nil {
		r.MustRegister(m.turns, m.duplicates, m.attempts, m.resumed, m.parked, m.tokens, m.prompt, m.firstChunk)
	}
	return m
}
