//go:build browser

package web_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience is how long a page may take to reach an awaited state; reaching it never takes this long.
const patience = 30 * time.Second

// chromium finds the browser: the one named by CHROMIUM, else the first on the path.
func chromium(t *testing.T) string {
	t.Helper()
	if name := os.Getenv("CHROMIUM"); name != "" {
		return name
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	t.Fatal("no Chromium found: install the package chromium, or name a binary in CHROMIUM")
	return ""
}

// browser starts one Chromium with a fresh profile. Tabs that share it share its storage.
func browser(t *testing.T) context.Context {
	t.Helper()
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(chromium(t)),
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.NoSandbox, chromedp.Headless, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("disable-background-timer-throttling", true),
		chromedp.Flag("disable-backgrounding-occluded-windows", true),
		chromedp.Flag("disable-renderer-backgrounding", true),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(patience),
	)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		cancel()
		cancelAlloc()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return ctx
}

// look is how a tab's device is.
type look struct {
	width, height int64
	dark          bool
	touch         bool
	calm          bool // prefers-reduced-motion
}

var (
	desktop     = look{width: 1180, height: 820}
	desktopDark = look{width: 1180, height: 820, dark: true}
	phone       = look{width: 360, height: 740, touch: true}
	phoneDark   = look{width: 360, height: 740, touch: true, dark: true}
)

// tab is one open page. Everything that it logs as an error, and every request that leaves origin, fails the test.
type tab struct {
	t      *testing.T
	ctx    context.Context
	origin string

	started bool
	mu      struct {
		sync.Mutex
		complaints []string
		allowed    []string
	}
}

// open opens a tab of br with this look at address.
func open(t *testing.T, br context.Context, l look, address string) *tab {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(br)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, origin: u.Host}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	b.do(
		command(network.Enable, network.EnableParams{}),
		command(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: l.width, Height: l.height, DeviceScaleFactor: 2, Mobile: l.touch,
		}),
		command(emulation.SetTouchEmulationEnabled, emulation.SetTouchEmulationEnabledParams{Enabled: l.touch}),
		command(emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}),
		command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: map[bool]string{true: "dark", false: "light"}[l.dark]},
			{Name: "prefers-reduced-motion", Value: map[bool]string{true: "reduce", false: "no-preference"}[l.calm]},
		}}),
		chromedp.Navigate(address),
	)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, c := range b.mu.complaints {
			t.Errorf("browser: %s", c)
		}
	})
	return b
}

// command sends one protocol command whose result does not matter.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

func (b *tab) listen(event any) {
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || u.Host != b.origin {
			b.complain("request to another origin: " + e.Request.URL)
		}
	case *network.EventWebSocketCreated:
		if u, err := url.Parse(e.URL); err != nil || u.Host != b.origin {
			b.complain("socket to another origin: " + e.URL)
		}
	case *runtime.EventExceptionThrown:
		b.complain("exception: " + (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.complain(fmt.Sprintf("console.%s: %s", e.Type, e.Args[0].Value))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.complain("log: " + e.Entry.Text)
		}
	}
}

func (b *tab) complain(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.mu.allowed {
		if strings.Contains(what, a) {
			return
		}
	}
	b.mu.complaints = append(b.mu.complaints, what)
}

// expect allows complaints that contain s: a refused handshake is logged by the browser itself.
func (b *tab) expect(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.allowed = append(b.mu.allowed, s)
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, step := range steps {
		run(b, step)
	}
}

func run[T any](b *tab, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx := b.ctx
	if b.started { // a deadline on a tab's first action would end the tab with it
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	b.started = true
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatalf("browser: %v", err)
	}
	return v
}

// eval returns the value of a JavaScript expression, awaited if it is a promise.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// js runs JavaScript for its effect.
func (b *tab) js(statements string) {
	b.t.Helper()
	eval[chromedp.Void](b, statements)
}

// await waits until a JavaScript expression is truthy.
func (b *tab) await(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool]("Boolean("+expression+")", chromedp.WithPollingInterval(20*time.Millisecond)))
	if err != nil {
		b.t.Fatalf("never came true: %s: %v\npage: %s", expression, err, eval[string](b, "document.body.innerText"))
	}
}

// write types text into the composer and sends it.
func (b *tab) write(text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS("#text"), text), chromedp.Click(chromedp.CSS("#send")))
}

// answer is the text of the nth turn's answer, from 1.
func answer(n int) string {
	return fmt.Sprintf(`(document.querySelectorAll('article[data-turn] .prose')[%d]?.textContent ?? '')`, n-1)
}

// ended says whether the nth turn has ended.
func ended(n int) string {
	return fmt.Sprintf(`document.querySelectorAll('article[data-turn]')[%d]?.querySelector('.foot, .note')?.parentElement.querySelector('.foot:not(:empty), .note:not(:empty)')`, n-1)
}

// picture writes a screenshot for people into the folder SCREENSHOTS, if there is one.
func (b *tab) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	png := run(b, chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
