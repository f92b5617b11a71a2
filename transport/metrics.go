package transport

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/proto"
	"github.com/holdfast-ai/holdfast/proto/wirepb"
)

// metrics are the figures of one Server. Label values come from fixed sets.
type metrics struct {
	connections prometheus.Gauge
	opened      *prometheus.CounterVec // encoding
	closed      *prometheus.CounterVec // reason
	attachments prometheus.Gauge
	attaches    prometheus.Counter
	received    *prometheus.CounterVec // kind
	sent        *prometheus.CounterVec // kind
	bytesIn     prometheus.Counter
	bytesOut    prometheus.Counter
	refusals    *prometheus.CounterVec // code
	panics      prometheus.Counter

	sentEntries prometheus.Counter // of sent, looked up once
	sentStatus  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "holdfast", Subsystem: "transport", Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		o := prometheus.CounterOpts{Namespace: "holdfast", Subsystem: "transport", Name: name, Help: help}
		return prometheus.NewCounterVec(o, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "holdfast", Subsystem: "transport", Name: name, Help: help})
	}
	m := &metrics{
		connections: gauge("connections", "WebSocket connections that are open."),
		opened:      vec("connections_opened_total", "Connections since the start, by encoding.", "encoding"),
		closed:      vec("connections_closed_total", "Connections that ended, by reason; slow_consumer is a peer that took nothing.", "reason"),
		attachments: gauge("attachments", "Objects that connections follow, counted once a connection."),
		attaches:    counter("attaches_total", "Attachments since the start."),
		received:    vec("frames_received_total", "Frames of clients, by kind.", "kind"),
		sent:        vec("frames_sent_total", "Frames to clients, by kind.", "kind"),
		bytesIn:     counter("received_bytes_total", "Bytes of WebSocket connections read."),
		bytesOut:    counter("sent_bytes_total", "Bytes of WebSocket connections written."),
		refusals:    vec("refusals_total", "Refusals sent, by code.", "code"),
		panics:      counter("panics_total", "Panics caught while a frame or request was handled."),
	}
	m.sentEntries = m.sent.WithLabelValues("entry")
	m.sentStatus = m.sent.WithLabelValues("status")
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.connections, m.opened, m.closed, m.attachments, m.attaches, m.received, m.sent, m.bytesIn, m.bytesOut, m.refusals, m.panics,
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("transport: register metrics: %w", errors.Join(err, errors.New("use one registry a server")))
		}
	}
	return m, nil
}

func (m *metrics) refused(code proto.Code) {
	m.refusals.WithLabelValues(string(Lookup(code).Code)).Inc()
}

// kindOf names the body of a frame, for metrics and messages.
func kindOf(f *wirepb.Frame) string {
	if f.GetBody() == nil {
		return "unknown"
	}
	m := f.ProtoReflect()
	d := m.WhichOneof(m.Descriptor().Oneofs().ByName("body"))
	return string(d.Name())
}
