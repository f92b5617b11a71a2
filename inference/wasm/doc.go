// Package wasm runs language models of the Llama family inside this process, on WebAssembly: nothing native, the same
// bits on every machine, and the speed of a good AVX2 build on one core.
//
// The central type is Stepper, which implements inference.Stepper: one instance of a guest (guest/llama.c, compiled
// ahead and embedded) whose one function computes a batch of rows, a row being one token of one slot. Prefill is many
// rows of one slot, batched decode one row of many slots; both stream the weights once. Runtime composes it with
// tokenizer, chat template and scheduler into an inference.Model.
//
//	runtime := wasm.NewRuntime(wasm.Options{Slots: 4})
//	model, err := runtime.Load(ctx, manifest, dir, cache, nil)
//	if err != nil {
//		return err
//	}
//	defer model.Close()
//	usage, err := model.Run(ctx, request, emit)
//
// The weights are quantised again when a model is first loaded: int8 with one scale a row, in tiles that suit the
// guest's SIMD (layout R8). The result, the image, stays in the cache folder, guarded by checksums, and every later
// start reads it into huge pages. Compiled code is kept beside it, so the folder must belong to its owner alone.
//
// The guest cannot be preempted. It calls back after every millisecond of work or sooner; there the garbage collector
// gets its turn and a step whose context is done is abandoned.
//
// The caller's duties: rows of a slot start at position 0 and leave no gaps; logits are read before the next step; one
// goroutine steps.
package wasm
