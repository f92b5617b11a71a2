package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
)

// meter shows a pull: as a bar on a terminal, as a few lines elsewhere, and not at all where there is nothing to fetch.
type meter struct {
	w        io.Writer
	model    string
	terminal bool
	bar      *progressbar.ProgressBar
	stage    fetch.Stage
	tenth    int64 // last shown on a line
}

func newMeter(w io.Writer, m *inference.Manifest) *meter {
	f, ok := w.(*os.File)
	return &meter{w: w, model: m.Name, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

func (m *meter) progress(p fetch.Progress) {
	if p.Stage == fetch.Verifying { // of what is there: over in a moment
		return
	}
	if p.Stage != m.stage {
		m.done()
		m.stage, m.tenth = p.Stage, -1
		if p.Stage == fetch.Waiting {
			_, _ = fmt.Fprintf(m.w, "waiting for another pull of %s\n", m.model)
		}
	}
	if p.Total <= 0 {
		return
	}
	what := fmt.Sprintf("%s %s", p.Stage, m.model)
	if m.terminal {
		if m.bar == nil {
			m.bar = progressbar.NewOptions64(p.Total, progressbar.OptionSetWriter(m.w), progressbar.OptionSetDescription(what),
				progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionUseANSICodes(true),
				progressbar.OptionFullWidth(), progressbar.OptionSetPredictTime(true))
		}
		_ = m.bar.Set64(p.Done) // a bar that cannot be drawn is no reason to stop
		return
	}
	if tenth := 10 * p.Done / p.Total; tenth > m.tenth {
		m.tenth = tenth
		_, _ = fmt.Fprintf(m.w, "%s: %d %% of %s\n", what, 10*tenth, megabytes(p.Total))
	}
}

// done leaves the line of the bar.
func (m *meter) done() {
	if m.bar != nil {
		_, _ = fmt.Fprintln(m.w)
		m.bar = nil
	}
}
