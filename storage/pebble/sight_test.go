package pebble

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-ai/holdfast/storage"
	"github.com/holdfast-ai/holdfast/storage/storagetest"
)

// figures gathers counters and gauges, and the number of observations of histograms, by name and label.
func figures(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "holdfast_storage_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// TestWhatAnOperatorSees: each trouble is in the figures and in the log.
func TestWhatAnOperatorSees(t *testing.T) {
	var text bytes.Buffer
	registry := prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(&text, nil))
	disk := storagetest.NewDisk()
	e, err := Open("data", Options{FS: disk.FS(), Logger: log, Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	s, err := storage.Open(e, storage.Options{Logger: log, Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		write(t, s, n, []byte("x"))
	}
	got := figures(t, registry)
	for name, want := range map[string]float64{
		"commits_total ok": 3, "activations_total": 3, "group_commits": 4, "sync_seconds": 4, // the start is a commit too
		"read_only": 0, "quarantined_objects": 0, "disk_slow_total": 0, "write_stalls_total": 0, "failed_groups_total": 0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, want %v", name, value, want)
		}
	}
	if got["commit_bytes_total"] == 0 {
		t.Error("no bytes are counted")
	}
	if text.Len() > 0 {
		t.Errorf("without trouble the log has %s", text.String())
	}

	events := e.listener()
	events.DiskSlow(pebble.DiskSlowInfo{Path: "data/000002.log", OpType: vfs.OpTypeSync, Duration: 3 * time.Second})
	events.WriteStallBegin(pebble.WriteStallBeginInfo{Reason: "memtable count limit reached"})
	disk.FailSyncs(storagetest.ErrDisk)
	if err := tryWrite(s, 9, []byte("x")); !errors.Is(err, storage.ErrReadOnly) {
		t.Fatalf("a failed sync returns %v", err)
	}
	if err := s.Close(); !errors.Is(err, storagetest.ErrDisk) {
		t.Fatalf("close returns %v", err)
	}
	got = figures(t, registry)
	for _, name := range []string{"read_only", "disk_slow_total", "write_stalls_total", "failed_groups_total", "commits_total read_only"} {
		if got[name] != 1 {
			t.Errorf("%s is %v, want 1", name, got[name])
		}
	}
	for _, want := range []string{
		`level=WARN msg="disk is slow" path=data/000002.log operation=sync duration=3s`,
		`level=WARN msg="storage stalls writes"`,
		`level=ERROR msg="storage is read-only: a write failed" folder=data error="write data/`,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, text.String())
		}
	}
}

// TestRegistererIsTaken: two engines on one registry would mix their figures.
func TestRegistererIsTaken(t *testing.T) {
	registry := prometheus.NewRegistry()
	_, s := mustOpen(t, "data", Options{FS: vfs.NewMem(), Registerer: registry})
	defer mustClose(t, s)
	openFails(t, "other", Options{FS: vfs.NewMem(), Registerer: registry}, nil, "duplicate metrics collector")
}
