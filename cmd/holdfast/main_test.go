package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/holdfast-ai/holdfast/internal/testmodel"
)

// binary is the built program, in a folder of its own.
var binary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic("build: " + err.Error() + "\n" + string(out))
	}
	return m.Run()
}

// TestScripts runs the program as people do, with a scripted model.
func TestScripts(t *testing.T) {
	testscript.Run(t, params("testdata", nil))
}

// TestModelScripts does so with the real model.
func TestModelScripts(t *testing.T) {
	folder := filepath.Dir(filepath.Dir(testmodel.Path(t)))
	testscript.Run(t, params("testdata/model", func(e *testscript.Env) { e.Setenv("HOLDFAST_MODELS", folder) }))
}

func params(dir string, more func(*testscript.Env)) testscript.Params {
	return testscript.Params{
		Dir:      dir,
		Deadline: time.Now().Add(4 * time.Minute),
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOLDFAST", binary) // for scripts that take PATH away
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("HOLDFAST_MODELS", filepath.Join(e.WorkDir, "models"))
			if more != nil {
				more(e)
			}
			s := &servers{byName: make(map[string]*server)}
			e.Values[serversKey{}] = s
			e.Defer(s.killAll)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"server": cmdServer, "exits": cmdExits, "eventually": cmdEventually, "newerformat": cmdNewerFormat,
		},
	}
}

type serversKey struct{}

// servers are the processes of one script.
type servers struct{ byName map[string]*server }

type server struct {
	cmd      *exec.Cmd
	out, err *os.File
	done     chan struct{}
}

func (s *servers) killAll() {
	for _, p := range s.byName {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// cmdServer starts, signals and awaits servers:
//
//	server start NAME [flags…]      until it says where to chat; sets $ADDR; output goes to NAME.out and NAME.err
//	server signal NAME SIGNAL       TERM, INT or KILL
//	server wait NAME STATUS         until it has ended; -1 after a KILL
func cmdServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: server start|signal|wait NAME …")
	}
	s := ts.Value(serversKey{}).(*servers)
	name := args[1]
	switch args[0] {
	case "start":
		s.byName[name] = startServer(ts, name, args[2:])
	case "signal":
		sig := map[string]os.Signal{"TERM": sigterm, "INT": os.Interrupt, "KILL": os.Kill}[args[2]]
		ts.Check(s.byName[name].cmd.Process.Signal(sig))
	case "wait":
		p := s.byName[name]
		select {
		case <-p.done:
		case <-time.After(time.Minute):
			ts.Fatalf("the server does not end")
		}
		if got := strconv.Itoa(p.cmd.ProcessState.ExitCode()); got != args[2] {
			ts.Fatalf("the server ended with status %s, want %s:\n%s", got, args[2], ts.ReadFile(name+".err"))
		}
	default:
		ts.Fatalf("unknown: server %s", args[0])
	}
}

var chatAt = regexp.MustCompile(`Chat at http://([^/]+)/`)

func startServer(ts *testscript.TestScript, name string, flags []string) *server {
	p := &server{done: make(chan struct{})}
	var err error
	p.out, err = os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	p.err, err = os.Create(ts.MkAbs(name + ".err"))
	ts.Check(err)
	p.cmd = exec.Command(binary, append([]string{"serve"}, flags...)...)
	p.cmd.Dir = ts.MkAbs(".")
	for _, key := range []string{"PATH", "HOME", "HOLDFAST_MODELS"} {
		p.cmd.Env = append(p.cmd.Env, key+"="+ts.Getenv(key))
	}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	ts.Check(p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		_, _ = p.out.Close(), p.err.Close()
		close(p.done)
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if at := chatAt.FindStringSubmatch(ts.ReadFile(name + ".out")); at != nil {
			ts.Setenv("ADDR", at[1])
			return p
		}
		select {
		case <-p.done:
			ts.Fatalf("the server ended at its start:\n%s", ts.ReadFile(name+".err"))
		default:
		}
		if time.Now().After(deadline) {
			_ = p.cmd.Process.Kill()
			ts.Fatalf("the server does not start:\n%s", ts.ReadFile(name+".err"))
		}
	}
}

// cmdExits runs a command that must end with a status: exits STATUS PROGRAM [args…].
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM …")
	}
	status := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got := strconv.Itoa(status); got != args[0] {
		ts.Fatalf("status %s, want %s", got, args[0])
	}
}

// cmdEventually repeats a command until its output has a match: eventually REGEXP PROGRAM [args…].
func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually REGEXP PROGRAM …")
	}
	pattern := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_ = ts.Exec(args[1], args[2:]...)
		if pattern.MatchString(ts.ReadFile("stdout") + ts.ReadFile("stderr")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%q does not say %q:\n%s", strings.Join(args[1:], " "), args[0], ts.ReadFile("stdout"))
		}
	}
}

// cmdNewerFormat makes a data folder that a later release has written: newerformat DIR.
func cmdNewerFormat(ts *testscript.TestScript, _ bool, args []string) {
	db, err := pebble.Open(ts.MkAbs(args[0]), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	ts.Check(err)
	ts.Check(db.Close())
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, _ ...any) { panic(format) }
