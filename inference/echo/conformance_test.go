package echo_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-ai/holdfast/inference/echo"
	"github.com/holdfast-ai/holdfast/inference/inferencetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		o   echo.Options
		ask string
	}{
		"plan":    {echo.Options{}, "/echo n=30 seed=3"},
		"text":    {echo.Options{}, "/echo text=Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich 🙂 im Jänner"},
		"tool":    {echo.Options{}, `/echo n=12 tool=weather args={"city":"Bern"}`},
		"no plan": {echo.Options{NoPlan: true}, "/echo n=30"},
	} {
		t.Run(name, func(t *testing.T) {
			inferencetest.Run(t, inferencetest.Config{
				Open:   func(*testing.T) inferencetest.Model { return echo.New(c.o) },
				Ask:    c.ask,
				NoPlan: c.o.NoPlan,
				Bad:    []string{"/echo n=x", "/echo speed=3", "/echo gap=-1s", "/echo args={", "/echo error=odd fail=1", "/echo tool="},
			})
		})
	}
}
