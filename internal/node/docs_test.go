package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func doc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestOperationsListsSettings keeps the table of settings equal to the code.
func TestOperationsListsSettings(t *testing.T) {
	text := doc(t, "OPERATIONS.md")
	for _, s := range Settings() {
		flag := ""
		if s.Flag != "" {
			flag = "`--" + s.Flag + "`"
		}
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| %s \\| %s \\| %s \\| [^|]+ \\| %s \\|$", regexp.QuoteMeta("`"+s.Key+"`"),
			regexp.QuoteMeta(flag), regexp.QuoteMeta("`"+s.Env()+"`"), regexp.QuoteMeta(s.Help)))
		if !row.MatchString(text) {
			t.Errorf("docs/OPERATIONS.md has no row for %s with its flag %q, its environment variable and %q", s.Key, flag, s.Help)
		}
		if v := fmt.Sprint(s.Default); v != "" && !strings.ContainsAny(v, "/[") && !strings.Contains(text, "| `"+v+"` |") {
			t.Errorf("docs/OPERATIONS.md does not have the default %q of %s", v, s.Key)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(text, -1) {
		known := false
		for _, s := range Settings() {
			known = known || s.Key == m[1]
		}
		if !known {
			t.Errorf("docs/OPERATIONS.md lists %q, which is no setting", m[1])
		}
	}
}

// TestOperationsListsExitStatuses keeps the table of exit statuses equal to the code.
func TestOperationsListsExitStatuses(t *testing.T) {
	text := doc(t, "OPERATIONS.md")
	for _, c := range []Code{CodeUsage, CodeConfig, CodeAddressInUse, CodeAddress, CodeDataLocked, CodeDataNewer, CodeDataDamaged,
		CodeDataUnusable, CodeModel, CodeInternal} {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| %d \\|[^|]*`%s`[^|]*\\|", (&Error{Code: c}).ExitStatus(), c))
		if !row.MatchString(text) {
			t.Errorf("docs/OPERATIONS.md does not give %s the status %d", c, (&Error{Code: c}).ExitStatus())
		}
	}
}

// TestMetricsAreListed opens a whole server and compares what it has registered with docs/METRICS.md, in both directions.
func TestMetricsAreListed(t *testing.T) {
	c := Defaults()
	c.Listen, c.Admin, c.Data, c.Models = "127.0.0.1:0", "127.0.0.1:0", t.TempDir(), t.TempDir()
	c.NoModel, c.Echo = true, true
	r := prometheus.NewRegistry()
	n, err := Open(context.Background(), c, Options{Metrics: r})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(holdfast_[a-z_]+)` \\|").FindAllStringSubmatch(doc(t, "METRICS.md"), -1) {
		listed[m[1]] = true
	}
	registered := map[string]bool{}
	ch := make(chan *prometheus.Desc)
	go func() { r.Describe(ch); close(ch) }()
	for d := range ch {
		name := regexp.MustCompile(`fqName: "([a-z_]+)"`).FindStringSubmatch(d.String())[1]
		if !strings.HasPrefix(name, "holdfast_") {
			continue
		}
		registered[name] = true
		if !listed[name] {
			t.Errorf("docs/METRICS.md does not list %s", name)
		}
	}
	for name := range listed {
		if !registered[name] && !strings.HasPrefix(name, "holdfast_scheduler_") && name != "holdfast_build_info" { // made with a model, and with the process
			t.Errorf("docs/METRICS.md lists %s, which nothing registers", name)
		}
	}
	if len(registered) < 12 {
		t.Errorf("only %d metrics are registered", len(registered))
	}
}
