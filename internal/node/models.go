package node

import (
	"path/filepath"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/echo"
	"github.com/holdfast-ai/holdfast/inference/scheduler"
	"github.com/holdfast-ai/holdfast/inference/wasm"
	"github.com/holdfast-ai/holdfast/models"
)

// echoModel is the scripted model of test configurations.
const echoModel = "echo"

// catalogOptions lists the models and the runtimes of this build.
func (n *Node) catalogOptions() (inference.CatalogOptions, error) {
	all, err := models.Manifests()
	if err != nil {
		return inference.CatalogOptions{}, &Error{Code: CodeInternal, Err: err}
	}
	o := inference.CatalogOptions{
		Manifests: all, Default: n.c.Model, Dir: n.c.Models, Cache: filepath.Join(n.c.Models, ".cache"),
		Runtimes: []inference.Runtime{wasm.NewRuntime(wasm.Options{
			Slots: n.c.Inference.Slots, Context: n.c.Inference.Context, Logger: n.logger("wasm"),
			Scheduler: scheduler.Options{Clock: n.o.Clock, Logger: n.logger("scheduler"), Registerer: n.o.Metrics},
		})},
		Clock: n.o.Clock, Logger: n.logger("catalog"), Registerer: n.o.Metrics,
	}
	if n.c.NoModel {
		o.Default = ""
	}
	if n.c.Echo {
		o.Manifests = append(o.Manifests, &inference.Manifest{
			Name: echoModel, Version: "1", Title: "Scripted answers, for tests", License: "Apache-2.0",
			Task: "generate", Family: echoModel, Runtime: "echo",
		})
		o.Runtimes = append(o.Runtimes, echo.NewRuntime(echo.Options{Clock: n.o.Clock}))
		if n.c.NoModel {
			o.Default = echoModel
		}
	}
	return o, nil
}
